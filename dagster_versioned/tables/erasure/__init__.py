"""Erasing rows from every version that is kept: what goes, what stands in its place, that nothing comes back."""
