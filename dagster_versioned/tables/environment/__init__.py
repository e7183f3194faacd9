"""Environments: a project whose logs go on elsewhere, from one moment on, and leave production as it is."""
