"""Versions that wait for their checks: parked by a step, read by its run, published later or never."""
