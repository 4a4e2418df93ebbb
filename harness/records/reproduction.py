"""The line of Python that runs a case again."""

from __future__ import annotations

from harness.records.case import Case

__all__ = ["python_line", "unusual"]

_FIELDS = tuple(
    name for name in Case.__dataclass_fields__ if name not in {"implementation", "shape"}
)


def python_line(case: Case, handle: str | None = None, options: str = "") -> str:
    """Return Python that runs and checks ``case`` by itself.

    Args:
        case: what to run.
        handle: the target, as Python source; by default the name of the implementation.
        options: further arguments, as Python source that begins with a comma; they may use
            ``CallOptions``.
    """
    usual = Case(implementation=case.implementation, shape=case.shape)
    names = ("shape", *(name for name in _FIELDS if getattr(case, name) != getattr(usual, name)))
    arguments = ", ".join(f"{name}={_source(getattr(case, name))}" for name in names)
    return (
        f"from harness.verify import {'CallOptions, ' if options else ''}verify_case; "
        f"print(verify_case({handle or repr(case.implementation)}, {arguments}{options}))"
    )


def unusual(case: Case) -> tuple[int, int]:
    """Return how many settings differ from the usual ones, and the number of elements."""
    return len(case.settings()), case.rows * case.hidden


def _source(value: object) -> str:
    return repr(str(value)) if isinstance(value, str) else repr(value)
