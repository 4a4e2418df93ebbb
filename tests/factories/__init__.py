"""What the tests of several files share, imported by name: ``from factories.golden import ...``."""
