"""Which parts of two environments matter to a case: where they are equal, times are comparable.

A case that was measured in both environments needs no package that one of them lacks. Of the
packages in both, a function of the project needs torch; a peer, such as ``numba``, and a function
of the user may need any.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from harness.records import Case, Environment

_MACHINE = ("cpu", "cpu_count", "cpu_capability", "platform", "gpus", "nvml")
_SOFTWARE = ("python", "compiler")


def why_not_timed(before: Environment | None, after: Environment | None, case: Case) -> str:
    """Return the differences between two environments that can change a time; empty if none."""
    return _differences(before, after, case, (*_MACHINE, *_SOFTWARE))


def why_not_counted(before: Environment | None, after: Environment | None, case: Case) -> str:
    """Return the differences that can change a count of instructions; empty if there are none."""
    return _differences(before, after, case, _SOFTWARE)


def _differences(
    before: Environment | None, after: Environment | None, case: Case, fields: Sequence[str]
) -> str:
    if before is None or after is None:
        return "one of the files does not say which"
    parts = [(name, getattr(before, name), getattr(after, name)) for name in fields]
    old, new = dict(before.packages), dict(after.packages)
    needed = [name for name in old if name in new] if _may_need_any(case, old) else ["torch"]
    parts += [(name, old.get(name), new.get(name)) for name in needed]
    return "; ".join(
        f"{name.replace('_', ' ')} {_text(one)} before, {_text(other)} now"
        for name, one, other in parts
        if one != other
    )


def _may_need_any(case: Case, packages: Collection[str]) -> bool:
    """Whether a case is of the user or of a peer, whose name begins as that of its package."""
    own = _first_word(case.implementation)
    return ":" in case.implementation or any(_first_word(name) == own for name in packages)


def _first_word(name: str) -> str:
    """Return "transformer" for "transformer_engine" and "transformer-engine"."""
    return re.split("[_-]", name)[0]


def _text(value: object) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)
