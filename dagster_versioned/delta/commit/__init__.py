"""Changes of a table: transactions, their conflicts, and the rules for who writes."""
