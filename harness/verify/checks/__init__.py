"""Contract checks: what a single result does not show."""
