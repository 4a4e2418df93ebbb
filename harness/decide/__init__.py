"""What two runs say about a change, and which implementation to run."""
