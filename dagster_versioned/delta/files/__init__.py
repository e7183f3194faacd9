"""Data files as a log lists them: statistics, partition values, deletion vectors, skipping."""
