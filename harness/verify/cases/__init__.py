"""The cases that a target is verified on, as data."""
