"""Every class of published packages with "Norm" in its name: found, read, verified, tabulated."""
