"""Which code a function is: fingerprints of it and of all that it reaches. Knows no Dagster."""
