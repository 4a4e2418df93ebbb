"""Sweep files that come with the package: copy one to start your own."""
