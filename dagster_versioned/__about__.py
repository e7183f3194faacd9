"""The version of the package: the one place that says it, read by the build and recorded in every version's facts."""

__version__ = "0.1.0"
