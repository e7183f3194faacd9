"""Histories between places: found, served, pulled and pushed."""
