"""A verdict as a document: what a target is, or the mistake that it makes, on one screen.

The short form states each fact once: the sentence with the mistake and where it holds, the smallest
example with numbers, what the target declines, and a command that repeats it. The verbose form adds
every failed case, cause, count and reason.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import isfinite, prod
from operator import attrgetter
from textwrap import shorten
from typing import TYPE_CHECKING

from harness.records import Status
from harness.records.finding import SILENT, Finding, Severity
from harness.records.text import count, grouped, listed, seconds_text, shape_text, ulp_text
from harness.report.document import (
    Cell,
    Document,
    Facts,
    Table,
    Text,
    columns,
    number,
    terminal_lines,
)
from harness.store import to_plain
from harness.verify.result import Example, Explanation, Grade, Outcome, Verdict
from harness.verify.scope import AFFINE_WORDS, Scope
from harness.verify.words import case_in_words, cause

if TYPE_CHECKING:
    from harness.verify.self_test import SelfTest

__all__ = [
    "document_of_explanation",
    "document_of_self_test",
    "document_of_verdict",
    "headline",
    "verdict_as_json",
]

_MOST_LINES = 15  # a verdict fits a screen
_MOST_REMARKS = 4
_MOST_SENTENCES = 5  # after the first
_MOST_MISTAKES = 2
_MOST_CHARACTERS = 190  # of one fact: two lines
_MOST_ELEMENTS = 12  # of a tensor that a person reads
_COMBINATION = {2: "pair", 3: "triple", 4: "quadruple"}
_UP_TO = "up to a condition number of "
# "writes to x" has no subject, "dbias changes" has
_NO_SUBJECT = re.compile(r"(?!(?:dbias|called|its)\b)\w*(?:s|ed|took) ")
_OF_AXES = re.compile(r"(several|\d or more) normalized axes")

Row = tuple[str, str]
"""A name, empty if it is that of the row before, and a fact."""


def verdict_as_json(target: str, verdict: Verdict) -> dict[str, object]:
    """Return the verdict on ``target``, as the user wrote it, as plain values."""
    plain = to_plain(verdict)
    if verdict.scope is not None:
        plain["scope"]["axes"] = verdict.scope.axes
        plain["scope"]["affines"] = to_plain(verdict.scope.taken("affine"))
    implied = ("ok", "out_of_guarantee", "failed", "outcome", "passed", "reproduce")
    plain |= {name: to_plain(getattr(verdict, name)) for name in implied}
    return {**plain, "target": target, "headline": headline(verdict)}


def document_of_verdict(verdict: Verdict, *, verbose: bool = False) -> Document:
    """Return a verdict in words, on one screen unless ``verbose``."""
    if verbose:
        return (*_short(verdict, len(verdict.findings)), *_details(verdict))
    limits: list[tuple[int, ...]] = [
        *((remarks,) for remarks in range(_MOST_REMARKS, -1, -1)),
        *((0, facts) for facts in range(_MOST_LINES, -1, -1)),
        *((0, 0, sentences) for sentences in range(_MOST_SENTENCES, -1, -1)),
    ]
    for limit in limits:
        document = _short(verdict, *limit)
        if len([*terminal_lines(document)]) < _MOST_LINES:
            break
    return (*document, Text("everything: --verbose"))


def _short(
    verdict: Verdict, remarks: int, facts: int | None = None, sentences: int = _MOST_SENTENCES
) -> Document:
    """Return at most so many remarks, facts and further sentences, and a command that repeats."""
    first, *others = _sentences(verdict)
    rows = [*_facts(verdict), *_remarks(verdict, remarks)][:facts]
    command = f"repeat it: {verdict.example.commands}" if verdict.example else ""
    if not command and verdict.reproduce:
        command = f"repeat it in Python: {verdict.reproduce}"
    return (
        Text(_cut(first, 3 * _MOST_CHARACTERS // 2), "title"),
        *(Text(f"  {_cut(text)}") for text in others[:sentences]),
        *([Facts("", tuple((name, _cut(text)) for name, text in rows))] if rows else []),
        *([Text(command, "code")] if command else []),
    )


def _cut(text: str, most: int = _MOST_CHARACTERS) -> str:
    return shorten(text, most, placeholder=" ...")


# --- sentences: what it is, or which mistake it makes, and where --------------------------------


def headline(verdict: Verdict) -> str:
    """Return the outcome in one sentence."""
    return _sentences(verdict)[0]


def _sentences(verdict: Verdict) -> list[str]:
    """Return the outcome in sentences: one per group of dtypes, the most important first."""
    name, scope = verdict.target, verdict.scope
    over = "" if scope is None else f" over {scope.axes}"
    match verdict.outcome:
        case Outcome.NOT_VERIFIED:
            return [f"{name} was not verified: {_why_not_verified(verdict)}.", *_so_far(verdict)]
        case Outcome.WRONG:
            return [*_wrong(verdict), *_inaccurate(verdict), *_right(verdict), *_so_far(verdict)]
        case Outcome.RIGHT:
            left = f", in {count(verdict.cases, 'case')}" if verdict.left else ""
            first = f"{name} is a LayerNorm{over}{left}{_but_raises(verdict)}."
            return [first, *_unverified(verdict)]
    how = [text.removeprefix("Inaccurate in ") for text in _inaccurate(verdict)]
    first = f"{name} is a LayerNorm{over}, but inaccurate in "
    dtypes = f"{listed(verdict.inaccurate_dtypes)}."
    sentences = [first + how[0]] if len(how) == 1 else [first + dtypes, *how]
    return [*sentences, *_right(verdict), *_unverified(verdict)]


def _wrong(verdict: Verdict) -> Iterator[str]:
    """Yield the mistakes, and where results are wrong."""
    groups = grouped((_mistakes(verdict, dtype), dtype) for dtype in verdict.wrong_dtypes)
    name, is_all = verdict.target, not (verdict.inaccurate_dtypes or verdict.right_dtypes)
    within = "" if is_all else f" in {listed(verdict.wrong_dtypes)}"
    if _is_right_over_the_last_axis(verdict):
        first = f"{name} is a LayerNorm over the last axis, and wrong over several axes{within}"
    elif not verdict.failed:
        first = f"{name} violates the contract of a LayerNorm{within}"
    else:
        first = f"{name} is not a LayerNorm{within}"
    texts = {}
    for mistakes, dtypes in groups.items():
        known = ", and ".join(f"it {text}" for text in mistakes)
        texts[listed(dtypes)] = known or _numbers(verdict, dtypes)
    if len(texts) == 1:
        yield f"{first}: {', '.join(texts.values())}."
    else:
        yield f"{first}."
        yield from (f"In {dtypes}: {text}." for dtypes, text in texts.items())
    yield from _where(verdict)
    if _is_right_over_the_last_axis(verdict):
        yield "To verify it over the last axis alone: --normalized-dims 1."


def _mistakes(verdict: Verdict, dtype: str) -> tuple[str, ...]:
    """Return what a target does wrong in a dtype, as ends of a sentence that begins with "it"."""
    if verdict.instead is not None and verdict.scope is not None:
        return (f"computes {verdict.instead} over {verdict.scope.axes}",)
    causes = (own for own in verdict.of(Severity.CAUSE) if own.kind == "mistake")
    return tuple(own.text for own in causes if dtype in own.dtypes)[:_MOST_MISTAKES]


def _numbers(verdict: Verdict, dtypes: Iterable[str]) -> str:
    """Return what is wrong where no mistake is known."""
    example = verdict.example
    if example is not None and example.computed and example.case.dtype in dtypes:
        return _error(example)
    wrong = (*verdict.failures, *verdict.violations)
    own = [finding.text for finding in wrong if {*finding.dtypes} & {*dtypes}]
    return _clause(own[0].partition("; ")[0]) if own else "results are wrong"


def _clause(text: str) -> str:
    return f"it {text}" if _NO_SUBJECT.match(text) else text


def _where(verdict: Verdict) -> Iterator[str]:
    """Yield the conditions under which results are wrong, and the number of cases."""
    if not verdict.failed:
        return
    dtypes = verdict.wrong_dtypes
    answered = sum(own.answered for own in verdict.counts if own.dtype in dtypes)
    cases = f"{verdict.failed:,} of {count(answered, 'case')}"
    where = [
        f"{own.text}{_within(own.dtypes, dtypes)}"
        for own in verdict.of(Severity.CAUSE)
        if own.kind == "trigger"
    ]
    is_crash = all(own.kind == Status.CRASHED for own in verdict.failures)
    if where:
        yield f"{re.sub('^w', 'W', '; '.join(where))}: {cases}."
    else:
        yield f"{'Crashed' if is_crash else 'Wrong'} in {cases}."


def _is_right_over_the_last_axis(verdict: Verdict) -> bool:
    """Whether nothing but the cases of several normalized axes is wrong."""
    return verdict.is_right_on_last_axis and verdict.instead is None and not verdict.violations


def _inaccurate(verdict: Verdict) -> Iterator[str]:
    for finding in verdict.of(Severity.INACCURATE):
        if dtypes := [own for own in finding.dtypes if own in verdict.inaccurate_dtypes]:
            yield f"Inaccurate in {listed(dtypes)}: {finding.text}."


def _right(verdict: Verdict) -> Iterator[str]:
    if verdict.right_dtypes:
        yield f"Right in {listed(verdict.right_dtypes)}{_but_raises(verdict)}."


def _but_raises(verdict: Verdict) -> str:
    where = dict.fromkeys(finding.text for finding in verdict.raises)
    return f", but it raises where {listed([*where], 'or')}" if where else ""


def _unverified(verdict: Verdict) -> Iterator[str]:
    for own in verdict.counts:
        if not own.is_verified and own.dtype not in verdict.wrong_dtypes:
            of = count(own.answered + own.declined, "case")
            yield f"Not verified in {own.dtype}: it gave a result in {own.answered} of {of}."


def _why_not_verified(verdict: Verdict) -> str:
    if verdict.ended:
        first, *others = verdict.ended.splitlines()
        return " ".join([f"it {first}", *others[-1:]])
    if verdict.scope is None and verdict.declined:
        return verdict.declined[0].text.rstrip(".")
    tried = verdict.cases + sum(own.declined for own in verdict.counts)
    if verdict.left:
        return f"the time was over after {tried:,} of {count(tried + verdict.left, 'case')}"
    return f"it gave a result in {verdict.cases} of {count(tried, 'case')}"


def _so_far(verdict: Verdict) -> Iterator[str]:
    """Yield what is known of a target whose verification ended early."""
    if verdict.ended and verdict.is_wrong:
        crashes = [own.text for own in verdict.failures if own.text in verdict.ended]
        ended = verdict.ended.replace(crashes[0], "crashed") if crashes else verdict.ended
        yield f"The verification ended early: it {ended}."
    elif verdict.ended and verdict.cases:
        right = verdict.ok + verdict.out_of_guarantee
        yield f"Until then {right:,} of {count(verdict.cases, 'case')} were right."


# --- facts ---------------------------------------------------------------------------------------


def _facts(verdict: Verdict) -> Iterator[Row]:
    outcome = verdict.outcome
    if verdict.example is not None:
        label = "smallest example" if outcome is Outcome.WRONG else "worst case"
        yield from _example(label, verdict.example)
        if verdict.example.computed and _mistakes(verdict, verdict.example.case.dtype):
            yield "error", _error(verdict.example)  # without a known mistake it is the mistake
    if outcome in {Outcome.RIGHT, Outcome.INACCURATE}:
        yield "verified", _verified(verdict)
        yield from _named("accuracy", _accuracy(verdict))
    if verdict.coverage and outcome is not Outcome.WRONG:
        every = f"every {_COMBINATION[verdict.strength]} of {sum(verdict.coverage.values())}"
        inaccurate = sum(own.inaccurate for own in verdict.counts)
        some = f"; {inaccurate:,} are inaccurate" if inaccurate else ""
        beyond = verdict.out_of_guarantee
        some += f"; {beyond:,} have no error bound" if beyond else ""
        yield "tried", f"{count(verdict.cases, 'case')}: {every} conditions{some}"
    elif verdict.left:
        yield "not tried", f"{count(verdict.left, 'case')}: the time was over"
    crashed = [own.evidence.case for own in verdict.failures if own.kind == Status.CRASHED]
    yield from _named("crashed for", map(case_in_words, crashed))
    if verdict.failed:
        violations = dict.fromkeys(finding.text for finding in verdict.violations)
        yield from _named("also", (_clause(text) for text in [*violations][:_MOST_MISTAKES]))
    yield from _named("raises", _raises(verdict))
    yield from _named("declines", _declines(verdict))
    if step := _next_step(verdict):
        yield "next", step


def _named(name: str, texts: Iterable[str]) -> Iterator[Row]:
    """Yield one row per text, of which the first has the name."""
    yield from ((name if index == 0 else "", text) for index, text in enumerate(texts))


def _example(label: str, example: Example) -> Iterator[Row]:
    """Yield a call, what it returns, and what is right."""
    parameters = {"weight": (example.weight, "1"), "bias": (example.bias, "0")}
    given = [_tensor("x", example.x, example.shape)]
    for name, (values, usual) in parameters.items():
        shown = _tensor(name, values) if values else f"{name} {usual}"
        given.append(f"no {name}" if values is None else shown)
    given += [_tensor("dy", example.dy, example.shape)] if example.dy else []
    yield label, "; ".join([f"{', '.join(given)}, eps {example.eps:g}", *example.conditions])
    if example.computed:
        yield from zip(("it returns", "right"), _returned(example), strict=True)


def _error(example: Example) -> str:
    allowed = example.allowed_ulp
    error = f"{example.output} is {ulp_text(example.error_ulp)}"
    if not isfinite(example.error_ulp):
        return error
    return f"{error} off" + ("" if allowed is None else f", where {allowed:.3g} are allowed")


def _returned(example: Example) -> tuple[str, str]:
    """Return what the call gives and what is right, with as many digits as show the difference."""
    of_x = example.output in {"y", "dx"}
    shape = example.shape if of_x else example.case.normalized_shape
    is_all = len(example.computed) == prod(shape)
    name = example.output if is_all else f"{example.output} at its worst element"
    for digits in (4, 6, 9, 17):
        computed, exact = (
            _tensor(name, values, shape if is_all else (), digits)
            for values in (example.computed, example.exact)
        )
        if computed != exact:
            break
    return computed, exact


def _tensor(
    name: str, values: Sequence[float], shape: tuple[int, ...] = (), digits: int = 7
) -> str:
    """Return a tensor, such as "x = [1, 2, 4]"; of a large one, the shape."""
    if not values or len(values) > _MOST_ELEMENTS:
        first = f" that begins with {_list(values[:_MOST_ELEMENTS], digits)}" if values else ""
        return f"{name} of shape {shape_text(shape or (len(values),))}{first}"
    size = shape[-1] if len(shape) > 1 else len(values)
    rows = [_list(values[at : at + size], digits) for at in range(0, len(values), size)]
    return f"{name} = {rows[0] if len(rows) == 1 else '[' + ', '.join(rows) + ']'}"


def _list(values: Iterable[float], digits: int) -> str:
    return f"[{', '.join(f'{value:.{digits}g}' for value in values)}]"


def _verified(verdict: Verdict) -> str:
    """Return dtypes, directions, parameters and eps of what was verified."""
    scope = verdict.scope or Scope()
    dtypes = [own.dtype for own in verdict.counts if own.is_verified]
    affines = scope.taken("affine")
    words = ", or ".join(AFFINE_WORDS[affine] for affine in affines)
    return "; ".join((
        listed(dtypes),
        "forward and backward" if scope.has_gradient else "forward alone",
        "with and without weight and bias" if len(affines) == len(AFFINE_WORDS) else words,
        "any eps" if scope.eps is None else f"eps always {scope.eps:g}",
    ))


def _accuracy(verdict: Verdict) -> Iterator[str]:
    """Yield the strictest error bounds that it keeps; equal ones are stated once."""
    native = {
        own.dtype: f" (native: {_limit_text(own).removeprefix(_UP_TO)})"
        for own in verdict.native_grades
    }
    groups = grouped(
        (f"{_grade_text(own)}{native.get(own.dtype, '')}", own.dtype)
        for own in verdict.grades
        if own.dtype in {*verdict.right_dtypes, *verdict.inaccurate_dtypes}
    )
    for text, dtypes in groups.items():
        yield text if len(groups) == 1 else f"{listed(dtypes)}: {text}"


def _grade_text(grade: Grade) -> str:
    """Return the strictest error bound that a target keeps, and where two digits are left."""
    bound = "within no error bound of statistics in float32 or wider"
    if grade.meets is not None:
        algorithm, _, reduction = grade.meets.partition(" ")
        sums = " with running sums" if "sequential" in reduction else ""
        bound = f"within the error bound of {algorithm}{sums}"
    return f"{bound}; keeps two digits {_limit_text(grade)}"


def _limit_text(grade: Grade) -> str:
    limit = grade.condition_limit
    return "at every condition tried" if limit is None else f"{_UP_TO}{limit:.2g}"


def _raises(verdict: Verdict) -> Iterator[str]:
    """Yield in which calls it raises, and what; an equal error is stated once."""
    groups: dict[str, list[str]] = {}
    for finding in verdict.raises:
        raised, cases = finding.evidence
        in_cases = f" ({count(cases, 'case')})" if cases else ""
        groups.setdefault(f"{cause(raised)}{in_cases}", []).append(finding.text)
    for raised, where in [*groups.items()][:_MOST_REMARKS]:
        yield f"where {listed(where, 'or')}: {raised}"


def _declines(verdict: Verdict) -> Iterator[str]:
    """Yield what a target does not take, in words; equal reasons are stated once."""
    for reason in verdict.scope.reasons if verdict.scope else ():
        if not _OF_AXES.match(reason):  # the first sentence names the axes
            yield reason
    tried = Counter[tuple[str, str]]()
    is_known = all(own.is_verified for own in verdict.counts)  # what raises is a remark
    for finding in verdict.declined:
        if not (is_known and finding.kind == "raised") and finding.evidence[1]:
            verb = "not tried: " if finding.kind == "left_out" else ""
            tried[verb, finding.text] += finding.evidence[1]
    for (verb, why), cases in [*tried.items()][:_MOST_REMARKS]:
        yield f"{verb}{count(cases, 'case')}: {why}"


def _next_step(verdict: Verdict) -> str:
    if "could not be judged" in verdict.ended:
        return "this is a mistake in layernorm-bench: please report it"
    if "not done after" in verdict.ended:
        return "--quick, a longer --timeout, or --time-budget for as many cases as fit"
    if verdict.scope is None and not verdict.ended:
        return (
            "say how it is called: --init, --eps, --normalized-dims, --channels-first, --direction"
        )
    if verdict.failures and all("a y without gradient" in own.text for own in verdict.failures):
        return "--direction forward verifies its forward alone"
    return ""


def _remarks(verdict: Verdict, most: int) -> Iterator[Row]:
    """Yield what a user should know, warnings first; equal ones are stated once."""
    dtypes = tuple(own.dtype for own in verdict.counts)
    groups = grouped(
        (finding.kind in SILENT, finding.text + _within(finding.dtypes or dtypes, dtypes))
        for finding in verdict.remarks
    )
    warnings, remarks = ([*dict.fromkeys(groups.get(silent, ()))] for silent in (True, False))
    yield from _named("WARNING", warnings)
    shown = remarks[: max(most - len(warnings), 0)]
    if left := len(remarks) - len(shown):
        more = count(left, "more remark" if shown else "remark")
        shown.append(f"{'and ' if shown else ''}{more}: --verbose")
    yield from _named("remark", shown)


def _within(dtypes: Sequence[str], usual: Sequence[str]) -> str:
    """Return in which dtypes something holds, unless those are the usual ones."""
    return "" if {*usual} <= {*dtypes} else f" in {listed(dtypes)}"


# --- everything ----------------------------------------------------------------------------------


def _details(verdict: Verdict) -> Iterator[Facts | Table | Text]:
    """Yield every count, failure, cause and reason."""
    heads = ("dtype", "right#", "without an error bound#", "inaccurate#", "failed#", "declined#")
    values = attrgetter("ok", "out_of_guarantee", "inaccurate", "failed", "declined")
    yield Text("")
    yield Table(
        title=f"{count(verdict.cases, 'case')} in {seconds_text(verdict.wall_s)}",
        columns=columns(*heads),
        rows=tuple(
            (Cell(own.dtype), *(number(f"{value:,}") for value in values(own)))
            for own in verdict.counts
        ),
    )
    if verdict.ended:
        yield Text(f"it {verdict.ended}")
    if verdict.bound:
        yield Text(f"held to the error bound of {verdict.bound}")
    if verdict.coverage:
        axes = [f"{size} of {axis.replace('_', ' ')}" for axis, size in verdict.coverage.items()]
        yield Text(f"every {_COMBINATION[verdict.strength]} of these conditions: {', '.join(axes)}")
    for title, findings in (
        ("causes", verdict.of(Severity.CAUSE)),
        ("contract violations", verdict.violations),
        ("failures", verdict.failures),
        ("inaccurate results", verdict.of(Severity.INACCURATE)),
        ("remarks", verdict.remarks),
        ("cases without a result", verdict.declined),
    ):
        if findings:
            yield Facts(f"{title} ({len(findings)})", tuple(map(_detail, findings)))
    if verdict.grades:
        yield Facts("accuracy", tuple((own.dtype, _grade_text(own)) for own in verdict.grades))
    if verdict.reproduce:
        yield Text("in Python:")
        yield Text(verdict.reproduce, "code")


def _detail(finding: Finding) -> Row:
    """Return a finding with its case, or the case that it is an example of."""
    case = getattr(finding.evidence, "case", None)
    where = ", ".join(finding.dtypes)
    if case is not None:
        where = case.id
    elif finding.severity is Severity.LIMIT:
        where = f"{finding.evidence[0]} ({count(finding.evidence[1], 'case')})"
    return finding.kind, " ".join(filter(None, [where and f"{where}:", finding.text]))


# --- explanations and self-tests -----------------------------------------------------------------


def document_of_explanation(explanation: Explanation) -> Document:
    """Return the outcome of one case, and the steps of one of its rows."""
    reason = f": {explanation.reason}" if explanation.reason else ""
    first = explanation.first_wrong
    wrong = f"; the first step that is wrong is {first}" if first else ""
    return (
        Text(f"{explanation.case.id}: {explanation.status}{reason}", "title"),
        Text(
            f"row {explanation.row} of {explanation.case.rows}; its worst element is "
            f"{explanation.worst_element}, whose error is {ulp_text(explanation.worst_ulp)}{wrong}"
        ),
        *(
            Facts(
                f"{step.name}, shape {shape_text(step.shape)}",
                (
                    ("exact", _columns(step.exact)),
                    ("computed", _columns(step.computed) if step.computed else "not implied by y"),
                ),
            )
            for step in explanation.steps
        ),
    )


def _columns(values: Iterable[float]) -> str:
    return "  ".join(f"{value:< 16.9g}" for value in values).rstrip()


def document_of_self_test(result: SelfTest) -> Document:
    """Return how many mistakes the self-test found per dtype, and which it missed."""
    found = grouped((mutant.dtype, mutant.is_found) for mutant in result.mutants)
    missed = [f"{row.name} in {row.dtype}" for row in result.mutants if not row.is_found]
    counts = ((dtype, f"{sum(own)} of {len(own)}") for dtype, own in found.items())
    return (
        Facts("mistakes found", tuple(counts)),
        Text(f"mistakes missed: {', '.join(missed) or 'none'}"),
        Text(f"right implementations rejected: {', '.join(result.rejected) or 'none'}"),
    )
