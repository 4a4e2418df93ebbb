"""The environment for calls of git that name their repository, also inside one of git's hooks."""

from __future__ import annotations

import os

__all__ = ["environment_outside_hooks"]

# set by git for its hooks: they name the repository of the hook, and overrule `git -C`
_HOOK_VARIABLES = {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR"}


def environment_outside_hooks() -> dict[str, str]:
    """Return this process's environment without what git sets for its hooks."""
    return {name: value for name, value in os.environ.items() if name not in _HOOK_VARIABLES}
