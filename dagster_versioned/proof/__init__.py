"""What can be said of a version beyond its rows: what it came from, and why."""
