"""Calls that raise, in words: those that models make are findings, any other is a remark.

A call that models make is known by its words, which each case has that is such a call. It names
cases that raise if most of its cases do; what no call names is one remark with the plainest case.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from harness.cases.axes import unusual
from harness.cases.inputs import LAYOUT_OF
from harness.cases.layouts import OF_DY_TOO
from harness.records import Affine, Autograd, Case, Direction, Status
from harness.records.finding import Finding, RemarkKind, Severity
from harness.records.text import count, grouped
from harness.run import Judged
from harness.verify.cases import given_in
from harness.verify.words import case_in_words, cause

__all__ = [
    "A_GRADIENT",
    "EXPANDED",
    "LAID_OUT",
    "NOT_CONTIGUOUS",
    "SLICE",
    "TRANSPOSED",
    "WITHOUT",
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
_MOST = 2 / 3  # of the cases that meet a condition
_FEWEST = 3  # cases; fewer may have raised for another reason


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


# the axis of a case and, after "it raises where ", a call that models make
_CALLS = (
    *(("autograd", f"{name} is frozen") for name in ("x", "weight", "bias")),
    ("autograd", "weight and bias are frozen"),
    ("autograd", "x is the output of another layer"),
    ("autograd", "torch.inference_mode is on"),
    *(
        (axis, laid_out(name, kind))
        for axis, name in (("grad_output", "dy"), ("layout", "x"))
        for kind in (EXPANDED, TRANSPOSED, SLICE, NOT_CONTIGUOUS)
        if (name, kind) != ("x", EXPANDED)  # models hardly do
    ),
    *(("affine", text) for text in WITHOUT),
    ("direction", A_GRADIENT),
)
_AXES = {axis for axis, _ in _CALLS}


def _words_of(case: Case) -> Iterator[str]:
    """Yield the words of each call that a case is, as in :data:`_CALLS`."""
    if case.direction is not Direction.FORWARD:
        yield A_GRADIENT
        frozen = given_in(case) - {*case.differentiated}
        yield from (f"{name} is frozen" for name in frozen)
        if frozen >= {"weight", "bias"}:
            yield "weight and bias are frozen"
        if case.autograd is Autograd.NON_LEAF_X:
            yield "x is the output of another layer"
        of_x = case.layout if case.layout in OF_DY_TOO else ""
        yield from _layout_words("dy", layout_of_dy(case.grad_output) or of_x)
    if case.autograd is Autograd.INFERENCE_MODE:
        yield "torch.inference_mode is on"
    yield from _layout_words("x", case.layout)
    yield from (text for text, affines in WITHOUT.items() if case.affine in affines)


def _layout_words(name: str, layout: str) -> Iterator[str]:
    kind = LAID_OUT.get(layout, "")
    if kind in {EXPANDED, TRANSPOSED, SLICE, VIEW}:
        yield laid_out(name, kind)
        yield laid_out(name, NOT_CONTIGUOUS)


def raises(axis: str, text: str, reason: str, cases: int, dtypes: tuple[str, ...] = ()) -> Finding:
    """Return the finding that calls raise; ``text`` follows "it raises where "."""
    return Finding(axis, Severity.RAISES, text, dtypes, evidence=(reason, cases))


def raises_in(trials: Sequence[Judged]) -> Iterator[Finding]:
    """Yield the calls in which trials raise, and a remark on those that no condition names."""
    raised = [trial for trial in trials if trial.status is Status.ERROR]
    rest: list[Judged] = []
    for dtype, own in grouped((trial.case.dtype, trial) for trial in raised).items():
        tried = [trial.case for trial in trials if trial.case.dtype == dtype]
        words = {case: {*_words_of(case)} for case in tried}
        # a dtype in which most cases raise has not been verified, and shows nothing of other axes
        is_named = 2 * len(own) <= len(tried)
        for left in grouped((_error(trial.reason), trial) for trial in own).values():
            while is_named and (call := _most_certain(left, tried, words)) is not None:
                axis, text = call
                hit = [trial for trial in left if text in words[trial.case]]
                left = [trial for trial in left if text not in words[trial.case]]
                yield raises(axis, text, hit[0].reason, len(hit), (dtype,))
            rest += left
    if rest:
        plainest = min(rest, key=lambda trial: unusual(trial.case))
        cases = count(len(rest), "case" if len(rest) == len(raised) else "other case")
        text = f"raises in {cases} of {len(trials):,}, such as {case_in_words(plainest.case)}"
        text = f"{text} ({cause(plainest.reason)})"
        dtypes = tuple(dict.fromkeys(trial.case.dtype for trial in rest))
        evidence = plainest.reason, len(rest)
        yield Finding(RemarkKind.RAISES, Severity.REMARK, text, dtypes, evidence)


def _error(reason: str) -> str:
    """Return what was raised without sizes, which differ from case to case."""
    return "".join(letter for letter in reason if not letter.isdigit())


def _most_certain(
    left: Sequence[Judged], tried: Sequence[Case], words: Mapping[Case, set[str]]
) -> tuple[str, str] | None:
    """Return the call in which most cases raise, unless others raise as often; None if none is."""
    best, found = (_MOST, 0), None
    raised = {trial.case for trial in left}
    for axis, text in _CALLS:
        hit = {case for case in raised if text in words[case]}
        if len(hit) < min(_FEWEST, len(left)):
            continue
        directions = {case.direction for case in hit}
        like = [text in words[case] for case in tried if case.direction in directions]
        meeting, others = like.count(True), like.count(False)
        share = len(hit) / max(1, meeting)
        is_as_often = others > 0 and len(raised - hit) / others > share / 2
        if hit and not is_as_often and (share, len(hit)) > best:
            best, found = (share, len(hit)), (axis, text)
    return found


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


def _how_known(finding: Finding) -> tuple[bool, bool]:
    """Order calls by how well they are known: an axis of a case, a contract check, neither."""
    return finding.severity is not Severity.RAISES, finding.kind not in _AXES
