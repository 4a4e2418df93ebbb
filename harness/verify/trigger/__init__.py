"""Name the trigger of a mistake: the conditions that every failed case has and no other case."""
