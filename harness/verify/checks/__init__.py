"""The contract checks, by topic, and what they share: `outputs` and `graph`."""
