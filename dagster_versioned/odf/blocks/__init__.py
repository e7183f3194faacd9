"""Metadata blocks: what they hold, their bytes, and the rules by which they follow each other."""
