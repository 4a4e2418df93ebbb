"""Find a target, learn what it computes, and call it with the common signature."""

from __future__ import annotations

from implementations.targets.from_module import ModuleFunction

__all__ = ["ModuleFunction"]
