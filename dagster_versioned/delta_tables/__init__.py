"""Any Delta table, ours or not: read, written, merged and maintained, by Arrow and by Spark."""
