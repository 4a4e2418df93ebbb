"""Did it get worse? Compare two runs, or a run with a baseline."""
