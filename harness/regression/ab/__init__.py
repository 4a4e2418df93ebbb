"""Measure two revisions of the same implementations in one process."""
