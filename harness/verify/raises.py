"""Calls that raise, in words: those that models make are findings, any other is a remark.

What a call is recognised by is a condition on its case. A condition names raising cases if most of
the cases that meet it raise; what no condition names is one remark with the plainest case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from harness.cases.axes import unusual
from harness.cases.inputs import LAYOUT_OF
from harness.cases.layouts import OF_DY_TOO
from harness.records import Affine, Autograd, Case, Direction, Status
from harness.records.finding import Finding, RemarkKind, Severity, remark
from harness.records.text import count, shape_text
from harness.run import Judged
from harness.verify.trigger import settings_in_words

__all__ = [
    "A_GRADIENT",
    "EXPANDED",
    "LAID_OUT",
    "NOT_CONTIGUOUS",
    "SLICE",
    "TRANSPOSED",
    "WITHOUT",
    "case_in_words",
    "cause",
    "laid_out",
    "layout_of_dy",
    "merged",
    "raises",
    "raises_in",
]

TRANSPOSED, SLICE = "transposed", "a slice of another tensor"
EXPANDED, NOT_CONTIGUOUS, VIEW = "expanded", "not contiguous", "a view of a larger tensor"
LAID_OUT = {  # what a tensor in a memory layout is
    "transposed": TRANSPOSED,
    "channels_last": TRANSPOSED,
    "channels_first": TRANSPOSED,
    "sequence_first": TRANSPOSED,
    "heads_first": TRANSPOSED,
    "reversed_axes": TRANSPOSED,
    "padded_rows": SLICE,
    "every_second": SLICE,
    "any_view": VIEW,  # a slice or transposed, by the shape
    "sliced_middle": SLICE,
    "storage_offset": SLICE,
    "chunk": SLICE,
    "expanded": EXPANDED,
    "expanded_second": EXPANDED,
    "expanded_windows": EXPANDED,
    "negated": "negated, as z.conj().imag is",
}
WITHOUT = {  # the combinations that lack an argument
    "no weight is given": {Affine.BIAS, Affine.NONE},
    "no bias is given": {Affine.WEIGHT, Affine.NONE},
    "neither weight nor bias is given": {Affine.NONE},
}
A_GRADIENT = "a gradient is computed"
_LONGEST = 44  # characters of a message; its first words tell what is the matter
_MOST = 2 / 3  # of the cases that meet a condition
_FEWEST = 3  # cases; fewer may have raised for another reason


@dataclass(frozen=True, slots=True)
class RaisingCall:
    """A call that models make."""

    axis: str
    text: str
    """Follows "it raises where "."""
    holds: Callable[[Case], bool]


def _with_gradients(case: Case) -> bool:
    return case.direction is not Direction.FORWARD


def _given(case: Case) -> set[str]:
    return {"x", *{"both": ("weight", "bias"), "none": ()}.get(case.affine, (str(case.affine),))}


def _freezes(*names: str) -> Callable[[Case], bool]:
    def holds(case: Case) -> bool:
        frozen = _given(case) - {*case.differentiated}
        return _with_gradients(case) and frozen >= {*names}

    return holds


def _lacks(affines: set[Affine]) -> Callable[[Case], bool]:
    return lambda case: case.affine in affines


def laid_out(name: str, kind: str) -> str:
    """Say how x or dy lies in memory."""
    is_of_a_sum = name == "dy" and kind in {EXPANDED, NOT_CONTIGUOUS}
    return f"{name} is {kind}{', as in y.sum().backward()' if is_of_a_sum else ''}"


def layout_of_dy(grad_output: str) -> str:
    """Return the memory layout that a gradient of y has of its own; "" if none."""
    if grad_output not in LAYOUT_OF:
        return ""
    name = LAYOUT_OF[grad_output].__name__.removeprefix("_")
    return "expanded" if name.startswith("expanded") else name


def _dy_is(*kinds: str) -> Callable[[Case], bool]:
    def holds(case: Case) -> bool:
        of_x = case.layout if case.layout in OF_DY_TOO else ""
        kind = LAID_OUT.get(layout_of_dy(case.grad_output) or of_x)
        return _with_gradients(case) and kind in kinds

    return holds


def _x_is(*kinds: str) -> Callable[[Case], bool]:
    return lambda case: LAID_OUT.get(case.layout) in kinds


_CALLS = (
    RaisingCall("autograd", "x is frozen", _freezes("x")),
    RaisingCall("autograd", "weight is frozen", _freezes("weight")),
    RaisingCall("autograd", "bias is frozen", _freezes("bias")),
    RaisingCall("autograd", "weight and bias are frozen", _freezes("weight", "bias")),
    RaisingCall(
        "autograd", "x is the output of another layer",
        lambda case: _with_gradients(case) and case.autograd is Autograd.NON_LEAF_X,
    ),
    RaisingCall(
        "autograd", "torch.inference_mode is on",
        lambda case: case.autograd is Autograd.INFERENCE_MODE,
    ),
    *(
        RaisingCall(axis, laid_out(name, kind), holds(*kinds))
        for axis, name, holds in (("grad_output", "dy", _dy_is), ("layout", "x", _x_is))
        for kind, kinds in (
            (EXPANDED, (EXPANDED,)), (TRANSPOSED, (TRANSPOSED,)), (SLICE, (SLICE,)),
            (NOT_CONTIGUOUS, (EXPANDED, TRANSPOSED, SLICE, VIEW)),
        )
        if (name, kind) != ("x", EXPANDED)  # models hardly do
    ),
    *(RaisingCall("affine", text, _lacks(affines)) for text, affines in WITHOUT.items()),
    RaisingCall("direction", A_GRADIENT, _with_gradients),
)  # fmt: skip

_AXES = {call.axis for call in _CALLS}


def cause(reason: str) -> str:
    """Return the first words of what was raised, as "AssertionError" or "TypeError: expected x"."""
    words = reason.strip().removesuffix(":")
    if len(words) <= _LONGEST:
        return words
    kind, separator, message = words.partition(": ")
    if not separator or " " in kind:  # it was declined in words
        kind, separator, message = "", "", words
    cut = message[: _LONGEST - len(kind)].rpartition(" ")[0]
    return f"{kind}{separator}{cut.rstrip(':,;')}..." if cut else kind


def raises(axis: str, text: str, reason: str, cases: int, dtypes: tuple[str, ...] = ()) -> Finding:
    """Return the finding that calls raise; ``text`` follows "it raises where "."""
    return Finding(axis, Severity.RAISES, text, dtypes, evidence=(reason, cases))


def raises_in(trials: Sequence[Judged]) -> Iterator[Finding]:
    """Yield the calls in which trials raise, and a remark on those that no condition names."""
    raised = [trial for trial in trials if trial.status is Status.ERROR]
    rest: list[Judged] = []
    for dtype in dict.fromkeys(trial.case.dtype for trial in raised):
        tried = [trial for trial in trials if trial.case.dtype == dtype]
        own = [trial for trial in raised if trial.case.dtype == dtype]
        # a dtype in which most cases raise has not been verified, and shows nothing of other axes
        is_named = 2 * len(own) <= len(tried)
        for error in dict.fromkeys(_error(trial.reason) for trial in own):
            left = [trial for trial in own if _error(trial.reason) == error]
            while is_named and (call := _most_certain(left, tried)) is not None:
                hit = [trial for trial in left if call.holds(trial.case)]
                left = [trial for trial in left if not call.holds(trial.case)]
                yield raises(call.axis, call.text, hit[0].reason, len(hit), (dtype,))
            rest += left
    if rest:
        plainest = min(rest, key=lambda trial: unusual(trial.case))
        cases = count(len(rest), "case" if len(rest) == len(raised) else "other case")
        text = f"raises in {cases} of {len(trials):,}, such as {case_in_words(plainest.case)}"
        dtypes = tuple(dict.fromkeys(trial.case.dtype for trial in rest))
        text = f"{text} ({cause(plainest.reason)})"
        evidence = plainest.reason, len(rest)
        yield replace(remark(RemarkKind.RAISES, text, dtypes), evidence=evidence)


def _error(reason: str) -> str:
    """Return what was raised without sizes, which differ from case to case."""
    return "".join(letter for letter in reason if not letter.isdigit())


def _most_certain(left: Sequence[Judged], tried: Sequence[Judged]) -> RaisingCall | None:
    """Return the call in which most cases raise, unless others raise as often; None if none is."""
    best, found = (_MOST, 0), None
    for call in _CALLS:
        hit = {trial.case for trial in left if call.holds(trial.case)}
        if len(hit) < min(_FEWEST, len(left)):
            continue
        directions = {case.direction for case in hit}
        like = [trial.case for trial in tried if trial.case.direction in directions]
        meeting = [case for case in like if call.holds(case)]
        others = [case for case in like if not call.holds(case)]
        share = len(hit) / max(1, len(meeting))
        raised = {trial.case for trial in left} - hit
        is_as_often = bool(others) and len(raised) / len(others) > share / 2
        if hit and not is_as_often and (share, len(hit)) > best:
            best, found = (share, len(hit)), call
    return found


def case_in_words(case: Case) -> str:
    """Return a case in words: "an x of 2x33, with gradients (the layout of x is transposed)"."""
    direction = "" if case.direction is Direction.FORWARD else ", with gradients"
    settings = f" ({', '.join(words)})" if (words := settings_in_words(case)) else ""
    return f"an x of {shape_text(case.shape)}{direction}{settings}"


def merged(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings: what is found again gets its dtypes, and each error is said to raise once.

    It is said of the best known call that raises it.
    """
    unique: dict[object, Finding] = {}
    known: set[str] = set()
    for number, finding in enumerate(sorted(findings, key=_how_known)):
        is_unique = finding.severity not in {Severity.RAISES, Severity.REMARK, Severity.CAUSE}
        key = number if is_unique else (finding.severity, finding.kind, finding.text)
        same = unique.get(key)
        evidence = same.evidence if same else finding.evidence
        if Severity.RAISES in {finding.severity, finding.kind}:
            reason, cases = finding.evidence
            if not same and finding.kind not in _AXES and _error(reason) in known:
                continue
            known.add(_error(reason))
            evidence = evidence[0], cases + (same.evidence[1] if same else 0)
        dtypes = tuple(dict.fromkeys((*(same.dtypes if same else ()), *finding.dtypes)))
        unique[key] = replace(same or finding, dtypes=dtypes, evidence=evidence)
    return tuple(unique.values())


def _how_known(finding: Finding) -> int:
    """Order calls by how well they are known: an axis of a case, a contract check, neither."""
    if finding.severity is not Severity.RAISES:
        return 2
    return 0 if finding.kind in _AXES else 1
