"""The contract checks, which look beyond a single result: how one is declared, and how all are run.

A check is a function of a :class:`~harness.verify.checks.calls.Call`. It yields what is wrong, as
texts for the user. Only the first text is taken: a check ends at its first ``yield``. The modules
of this package hold the checks by topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from harness.cases.axes import is_possible
from harness.records import Affine, Autograd, Case, Direction, Status
from harness.records.finding import Finding, RemarkKind, Severity
from harness.run import ContractViolationError, ImplementationError
from harness.verify.checks.calls import Call
from harness.verify.in_scope import scope_of
from harness.verify.raises import raises
from harness.verify.words import case_in_words, cause
from implementations.contract import Implementation

__all__ = [
    "BLOCK",
    "CHECKS",
    "EVERY_SETTING",
    "FROZEN",
    "HEADS",
    "LONG",
    "LONG_TAIL",
    "MANY",
    "NO_BIAS",
    "ONE_ELEMENT",
    "ONE_ROW",
    "PADDED",
    "PATHS",
    "SMALL",
    "TAIL",
    "TRANSPOSED",
    "TWO_AXES",
    "TWO_NORMALIZED",
    "ContractCheck",
    "NotConcernedError",
    "RaisedInFormError",
    "check",
    "contract_findings",
]

_MOST_NAMED = 3  # settings in one sentence
_USUAL_EPS = 1e-5
_EPS = 0.5  # not the default, which a path may take in its place; so large that gradients show it

Setting = Mapping[str, Any]
"""Axes of a case. A kernel takes another path for long rows, for many rows, for a tail that fills
no vector, for an x with three axes or with strides; a workspace or a saved tensor may be wrong on
one path alone."""


def _setting(*shape: int, normalized_dims: int = 1, layout: str = "contiguous") -> Setting:
    return {"shape": shape, "normalized_dims": normalized_dims, "layout": layout, "eps": _EPS}


SMALL = _setting(6, 32)
"""N a multiple of a vector and of a warp; few rows."""
TAIL = _setting(131, 37)
"""N a prime; more than 128 rows."""
BLOCK = _setting(2, 35, 64)
"""N a multiple of 64; more than 64 rows; an x of three axes."""
LONG = _setting(3, 2048)
"""N a power of two over 1,024, the most threads of a block."""
LONG_TAIL = _setting(2, 3, 4099)
"""N odd and over 4,096, the longest row that many kernels keep in registers."""
LONG_ROWS = {**_setting(8, 5000), "distribution": "offset_1e3"}
"""A call that takes many times the interval in which Python switches threads, on values that show
another algorithm, which a setting of one thread alone may choose."""
CONCURRENT = (_setting(128, 256, layout="padded_rows"), _setting(1030, 32), LONG_ROWS)
"""Calls that take many of the intervals in which Python switches threads; with more rows, and with
longer ones, than a workspace may serve."""
LARGE = _setting(130, 500)
"""Almost 2^16 elements, the most with exact outputs; PyTorch uses two threads from 2^15 on."""
TWO_AXES = _setting(3, 4, 6, 10, normalized_dims=2)
"""Two normalized axes, two others; N a multiple of 4 and not of 8."""
PADDED = _setting(66, 40, layout="padded_rows")
"""Rows that are contiguous, in an x that is not."""
ONE_ROW = _setting(1, 48)
"""No sum over rows: dbias equals dy."""
NO_BIAS = {**_setting(7, 24), "affine": Affine.WEIGHT}
"""A module that is made without a bias."""
TWO_NORMALIZED = _setting(9, 5, 8, normalized_dims=2)
"""A module with parameters of two axes."""
TRANSPOSED = _setting(9, 2, 52, layout="transposed")
"""Elements of a row that are far apart."""
HEADS = _setting(2, 3, 7, 8, layout="heads_first")
"""Queries of an attention, whose heads come before the tokens."""
ONE_ELEMENT = tuple({**_setting(*shape), "affine": Affine.BIAS} for shape in ((1, 1), (5, 1)))
"""Rows of one element, whose y is the bias."""
MANY = _setting(1100, 128)
"""More than 2^17 elements, and more than 1,024 rows."""
FROZEN = tuple(
    {**SMALL, "autograd": own} for own in (Autograd.FROZEN_X, Autograd.FROZEN_PARAMETERS)
)
"""A model that is frozen in part, for checks of gradients."""
PATHS = (SMALL, TAIL, BLOCK, LONG_TAIL, TWO_AXES, PADDED)
"""One setting for each threshold."""
EVERY_SETTING = (
    SMALL, TAIL, BLOCK, LONG, LONG_TAIL, LARGE, MANY, TWO_AXES, PADDED, TRANSPOSED,
)  # fmt: skip
"""Every size and layout."""


@dataclass(frozen=True, slots=True, eq=False)
class ContractCheck:
    """A check, and what it is run on."""

    find: Callable[[Call], Iterator[str]]
    direction: Direction | None
    """Of the call that it is given; None for a backward if the target has one."""
    settings: tuple[Setting, ...]
    remark: RemarkKind | None
    """The kind of remark that it yields; None if it yields a contract violation."""
    raises_where: str
    """Of a call that models make, what follows "it raises where "; empty for other calls."""

    @property
    def name(self) -> str:
        """The name of its function."""
        return self.find.__name__

    @property
    def is_of_modules(self) -> bool:
        """Whether it calls a module with its own parameters."""
        return self.find.__module__.endswith((".modules", ".constructors", ".protocol"))

    def __call__(self, target: Implementation, case: Case) -> str | None:
        """Return what is wrong with ``target`` at the setting of ``case``, if anything.

        Raises:
            ImplementationError: the target raised in a call that the check needs.
            ContractViolationError: an output is not a tensor like its input.
        """
        with suppress(NotConcernedError):
            return next(self.find(Call.of(target, case, self.direction)), None)
        return None


CHECKS: list[ContractCheck] = []
"""All checks, in the order in which they are run; those of gradients come last."""


class NotConcernedError(Exception):
    """A check has nothing to judge in a target, such as a check of modules in a function."""


class RaisedInFormError(ImplementationError):
    """The target raised for one form of the call."""

    def __init__(self, raised: ImplementationError, form: str) -> None:
        super().__init__(raised.status, raised.reason)
        self.form = form


def check(
    direction: Direction | None,
    *settings: Setting,
    remark: RemarkKind | None = None,
    raises_where: str = "",
) -> Callable[[Callable[[Call], Iterator[str]]], ContractCheck]:
    """Declare a contract check; :class:`ContractCheck` describes the arguments."""

    def declare(find: Callable[[Call], Iterator[str]]) -> ContractCheck:
        declared = ContractCheck(find, direction, settings or (SMALL,), remark, raises_where)
        CHECKS.append(declared)
        CHECKS.sort(key=lambda known: known.direction is Direction.BACKWARD)
        return declared

    return declare


def contract_findings(
    implementation: Implementation,
    case: Case,
    is_over: Callable[[], bool] = lambda: False,
    beyond: Callable[..., Sequence[Case]] = lambda cases, *, with_sizes: (),
) -> Iterator[Finding]:
    """Yield what each check finds at its settings, each fact once.

    Args:
        implementation: the target; a check is skipped if the target declines a call that it needs.
        case: gives dtype, device and direction; each check states its settings.
        is_over: whether to stop before the next check or setting.
        beyond: see :meth:`harness.verify.search.Search.beyond`.
    """
    facts: set[str] = set()
    fit = scope_of(implementation).fit
    for declared in CHECKS:
        if implementation.forward_only and declared.direction is Direction.BACKWARD:
            continue
        if is_over():
            return
        fitted = [fit(replace(case, **setting)) for setting in declared.settings]
        own = [nearest for nearest in dict.fromkeys(fitted) if nearest and is_possible(nearest)]
        found: dict[Case, Finding | None] = {}
        with_sizes = len(own) > 1 or declared.is_of_modules
        for nearest in (*own, *(beyond(own, with_sizes=with_sizes) if own else ())):
            if found and is_over():
                break
            with suppress(ImplementationError):
                found[nearest] = _finding(declared, implementation, nearest)
        first = min(filter(None, found.values()), key=_precedence, default=None)
        if first is None:
            continue
        fact = first.evidence[0] if first.kind == RemarkKind.RAISES else first.text
        if fact in facts:
            continue
        facts.add(fact)
        is_always = all(finding is not None for finding in found.values())
        if declared.raises_where and is_always and first.kind == RemarkKind.RAISES:
            reason, cases = first.evidence
            yield raises(declared.name, declared.raises_where, reason, cases, first.dtypes)
        else:
            yield replace(first, text=first.text + _where(found))


def _finding(declared: ContractCheck, implementation: Implementation, case: Case) -> Finding | None:
    """Return what a check finds at one setting.

    Raises:
        ImplementationError: the target declines a call that the check needs.
    """
    try:
        text = declared(implementation, case)
    except ImplementationError as raised:
        if raised.status is Status.UNSUPPORTED:
            raise
        return _raised(declared, raised, case.dtype)
    except ContractViolationError as violation:
        return _Unlike(declared.name, Severity.WRONG, str(violation), (case.dtype,))
    if text is None:
        return None
    severity = Severity.REMARK if declared.remark else Severity.WRONG
    return Finding(declared.remark or declared.name, severity, text, (case.dtype,))


class _Unlike(Finding):
    """An output that is not like its input, which any check may meet."""


def _precedence(finding: Finding) -> tuple[bool, bool]:
    """Order what one check finds at its settings: what is wrong, in its own words, comes first."""
    return finding.severity is not Severity.WRONG, isinstance(finding, _Unlike)


def _raised(declared: ContractCheck, raised: ImplementationError, dtype: str) -> Finding:
    """Return the remark that a call raises."""
    of_check = f"in the check {declared.name}"
    form = f"with {raised.form}" if isinstance(raised, RaisedInFormError) else of_check
    text = f"raises {form} ({cause(raised.reason)})"
    evidence = raised.reason, 0
    return Finding(RemarkKind.RAISES, Severity.REMARK, text, (dtype,), evidence)


def _where(found: Mapping[Case, Finding | None]) -> str:
    """Return the settings at which a check fails, to end a sentence; "" if at all of them."""
    words = {case: case_in_words(replace(case, eps=_USUAL_EPS)) for case in found}
    failed = [words[case] for case, finding in found.items() if finding is not None]
    passed = [words[case] for case, finding in found.items() if finding is None]
    if not passed:
        return ""
    named = failed[:_MOST_NAMED]
    if len(failed) > len(named):
        named.append(f"{len(failed) - _MOST_NAMED} more")
    return f", for {' and '.join(named)}, but not for {passed[0]}"
