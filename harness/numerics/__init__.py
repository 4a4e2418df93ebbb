"""What is exact, what an implementation computed, and how wrong that is."""
