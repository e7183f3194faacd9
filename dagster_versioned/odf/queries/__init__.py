"""Histories that are queries over histories, and where each row of them comes from."""
