"""Event histories whose every block, slice and transformation anyone can check. Source: seed 002 (Open Data Fabric)."""
