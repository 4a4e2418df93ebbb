"""Find a target, learn what it computes, and call it with the common signature."""
