"""Whether a history is what its chain says, up to the roots."""
