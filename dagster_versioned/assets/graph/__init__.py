"""The asset graph as Dagster's jobs and sensors see it: where assets are stored, and how their partitions map."""
