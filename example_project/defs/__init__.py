"""The assets, one module per concern."""
