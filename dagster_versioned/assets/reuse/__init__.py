"""Assets whose functions are not called again for what they have computed."""
