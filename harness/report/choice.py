"""A choice in words: what to run, why, what the others cost or gain; and as JSON.

The first sentence of the page and of ``choose`` is the first of :func:`headline_of`. Texts about
a candidate follow its name. Speeds are relative to native, higher is faster; where native was not
timed, times are written instead.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import floor, inf, isfinite, isinf, log10
from typing import TYPE_CHECKING

from harness.records import Environment, Estimate, Record, Status
from harness.records.metrics import METRICS
from harness.records.text import (
    bytes_text,
    count,
    first_of,
    grouped,
    in_words,
    interval_text,
    listed,
    percent_text,
    seconds_text,
    shape_text,
    speed_text,
    ulp_text,
)
from harness.report.document import (
    DASH,
    Cell,
    Document,
    Facts,
    Table,
    Text,
    columns,
    number,
    rounded,
)
from harness.selection import (
    FILTERS,
    LONG_FLOOR,
    NATIVE,
    REFERENCE_NAME,
    SHORT_FLOOR,
    Accuracy,
    Answer,
    Candidate,
    CandidateName,
    Choice,
    Choices,
    Decider,
    Disqualification,
    DisqualificationKind,
    OverallChoice,
    Slice,
    cost_of,
    geometric_mean,
    label_of,
    speed_of,
    worst_in_common,
)

if TYPE_CHECKING:  # it imports pydantic, for which a page has no use
    from harness.selection import WorkloadChoice

WIDENED_TEXT = (
    f"An interval over one process is widened by {percent_text(SHORT_FLOOR - 1)} either way, and "
    f"that of a call over 1 ms by {percent_text(LONG_FLOOR - 1)}, because processes differ by as "
    "much."
)
"""How the comparison treats intervals over one process."""

_MOST_EXCEPTIONS = 3  # trade-off: more lines are not read; the table has all choices
# trade-off: of more scenarios, and of more dtypes and directions, the number is easier to read
_MOST_NAMED = 3
_MOST_PRICED = 30  # scenarios. Trade-off: about two screens; JSON has every scenario
_BENIGN = 10.0  # trade-off: below it the name of the distribution says more than its condition
_SAME_MEMORY = 0.05  # trade-off: of a smaller difference one need not read
_METRICS = {metric.name: metric for metric in METRICS}
_NUMBERS = [_METRICS[name] for name in ("latency_s", "error_ulp", "peak_bytes")]

# --- the headline --------------------------------------------------------------------------------

Default = CandidateName | None  # what to run for all scenarios of a slice


def headline_of(found: Answer) -> list[str]:
    """Return what to run, how much that gains over native and where not, in a few sentences.

    An implementation is named for all scenarios of a slice, then the scenarios in which another
    one is the choice. The last sentence says what was required.
    """
    choices = grouped((one.scenario.environment, one) for one in found.choices)
    overall, requirements = found.overall, found.requirements
    lines = [
        f"environment {environment}: {line}" if len(choices) > 1 else line
        for environment, own in choices.items()
        for line in _sentences(own, overall)
    ]
    if lines:
        limit = requirements.max_error_ulp
        error = "" if limit is None else f", with errors up to {limit:g} ulp"
        right = "right" if requirements.accuracy is Accuracy.RIGHT else "right or inaccurate"
        up_to, inputs = requirements.max_condition, "all measured inputs"
        if isfinite(up_to):
            inputs = f"inputs with a condition number up to {rounded(up_to)}"
        has_choice = any(one.best for one in found.choices)
        start = "Chosen: the fastest of those" if has_choice else "Required:"
        lines.append(f"{start} {right} on {inputs}{error}.")
    return lines


def first_choice(answer: Answer) -> Default:
    """Return what the first sentence says to run; None if nothing serves a whole slice."""
    return next(iter(_by_default(answer.choices, answer.overall)), None)


def _by_default(
    choices: Sequence[Choice], overall: Mapping[Slice, OverallChoice]
) -> dict[Default, list[Choice]]:
    """Group choices by what to run for all scenarios of their dtype and direction.

    The most frequent default is first. Choices without one are last, under None: nothing serves
    all of their scenarios and is as good as the choice in half of them.
    """
    groups: dict[Default, list[Choice]] = {}
    for key, own in grouped((Slice.of(choice.scenario), choice) for choice in choices).items():
        best = overall[key].best if key in overall and len(own) > 1 else own[0].best
        default = best.name if best else None
        is_usual = 2 * sum(default in _as_good(choice) for choice in own) >= len(own)
        groups.setdefault(default if is_usual else None, []).extend(own)
    return dict(sorted(groups.items(), key=lambda group: (group[0] is None, -len(group[1]))))


def _as_good(choice: Choice) -> set[Default]:
    """Return the choice, and what is as fast within the intervals."""
    best = choice.best.name if choice.best else None
    return {best, *(one.name for one, _ in choice.ranking.tied)}


def _sentences(choices: Sequence[Choice], overall: Mapping[Slice, OverallChoice]) -> Iterator[str]:
    others: dict[str, list[Choice]] = {}
    for default, own in _by_default(choices, overall).items():
        served = [
            (choice, one)
            for choice in own
            for one in choice.ranking.eligible
            if one.name == default
        ]
        if default is not None and served:
            scope = _scope([choice for choice, _ in served], choices, is_named=False)
            run = f"Keep {REFERENCE_NAME}" if default == NATIVE else _gain_text(default, served)
            yield f"{run} for {scope}."
            details = [] if default == NATIVE else [_spread(served), _errors_and_memory(served)]
            if shown := " ".join(filter(None, [*details, _why_not_native(served)])):
                yield shown
        for choice in own:  # those in which another one is faster, or none is eligible
            if default is None or default not in _as_good(choice):
                others.setdefault(run_text(choice.best), []).append(choice)
    exceptions = sorted(others.items(), key=lambda group: (not group[1][0].best, -len(group[1])))
    for run, own in exceptions[:_MOST_EXCEPTIONS]:
        yield f"For {_scope(own, choices)}, {run}."
    if left := sum(len(own) for _, own in exceptions[_MOST_EXCEPTIONS:]):
        yield f"The table names the choices for {count(left, 'more scenario')}."


def _gain_text(name: CandidateName, served: Sequence[tuple[Choice, Candidate]]) -> str:
    """Return "Run NAME" with its speed relative to native, if that is known."""
    every = [*filter(None, (choice.speed(one) for choice, one in served))]
    if len(every) < len(served):
        return f"Run {label_of(name)}"
    shown = f"{interval_text(geometric_mean(every))} the speed of {REFERENCE_NAME}"
    return f"Run {label_of(name)}: {shown}{' on average' if len(every) > 1 else ''}"


def _spread(served: Sequence[tuple[Choice, Candidate]]) -> str:
    """Return the lowest and the highest speed, and the mean of each direction."""
    every = [(choice, speed) for choice, one in served if (speed := choice.speed(one))]
    if len(every) < len(served):
        return ""
    ends = dict.fromkeys(speed_text(end(one.value for _, one in every)) for end in (min, max))
    parts = grouped((choice.scenario.case.direction, speed) for choice, speed in every).items()
    means = [f"{key} {speed_text(geometric_mean(own).value)}" for key, own in parts]
    notes = [f"from {' to '.join(ends)}"] if len(ends) > 1 else []
    notes += [f"{', '.join(means)} on average"] if len(means) > 1 else []
    return f"Its speed is {'; '.join(notes)}." if notes else ""


def _errors_and_memory(served: Sequence[tuple[Choice, Candidate]]) -> str:
    """Return the largest errors of a candidate beside native's as timed, and its memory."""
    pairs = [(one, native) for choice, one in served if (native := choice.candidate(NATIVE))]
    timed = [[record for pair in pairs for record in pair[at].timed] for at in (0, 1)]
    errors = []
    for what, is_y in (("y", True), ("gradients", False)):
        own, of_native = (
            [
                row.worst_ulp
                for record in records
                for row in (record.errors.outputs if record.errors else ())
                if (row.output == "y") is is_y
            ]
            for records in timed
        )
        if own and of_native:
            beside = f"{REFERENCE_NAME}: {ulp_text(max(of_native))}"
            errors.append(f"{ulp_text(max(own))} in {what} ({beside})")
    parts = [f"has errors up to {listed(errors)} on the timed inputs"] if errors else []
    ratios = [
        one.peak_bytes / native.peak_bytes
        for one, native in pairs
        if one.peak_bytes and native.peak_bytes
    ]
    if ratios:
        mean = statistics.geometric_mean(ratios)
        times = "about the same" if abs(mean - 1) < _SAME_MEMORY else f"{mean:.2g} times the"
        parts.append(f"takes {times} memory")
    return f"It {' and '.join(parts)}." if parts else ""


def _why_not_native(served: Sequence[tuple[Choice, Candidate]]) -> str:
    """Return why native is disqualified where it is faster; empty if it is faster nowhere."""
    reasons = [
        in_words(native.disqualification.kind)
        for choice, _ in served
        if (native := choice.candidate(NATIVE)) is not None
        and native.disqualification is not None
        and cost_of(native) < cost_of(choice.best)
    ]
    kinds = " or ".join(dict.fromkeys(reasons))
    where = f"In {len(reasons):,} of {len(served):,} scenarios" if len(served) > 1 else "There"
    return f"{where} {REFERENCE_NAME} is faster, but disqualified: {kinds}." if reasons else ""


def _scope(own: Sequence[Choice], every: Sequence[Choice], *, is_named: bool = True) -> str:
    """Return the scenarios of a choice as a phrase: by name, or their number and kinds.

    Args:
        own: the choices.
        every: those that they are some of.
        is_named: whether of many the first are named, too.
    """
    if len(own) <= (_MOST_NAMED if is_named else 1):
        return ", ".join(choice.scenario.text for choice in own)
    cases = [choice.scenario.case for choice in own]
    kinds = dict.fromkeys(f"{case.dtype} {case.device} {case.direction}" for case in cases)
    whole = "" if len(own) == len(every) else f" of {len(every):,}"
    parts = [", ".join(kinds)] if len(kinds) <= _MOST_NAMED else []
    if is_named:
        parts.append(first_of((shape_text(case.shape) for case in cases), _MOST_NAMED))
    return f"{len(own):,}{whole} scenarios" + (f" ({'; '.join(parts)})" if parts else "")


def run_text(best: Candidate | None) -> str:
    """Return what to do: "run NAME", "keep native" or "no implementation is eligible"."""
    if best is None:
        return "no implementation is eligible"
    return f"keep {best.label}" if best.label == REFERENCE_NAME else f"run {best.label}"


# --- one candidate -------------------------------------------------------------------------------

_BECAUSE = {
    None: "none of {candidates} is eligible",
    Decider.ONLY: "the only eligible candidate",
    Decider.TIME: "the fastest eligible candidate",
    Decider.ESTIMATE: "the fastest by its estimate; the interval of {wide} overlaps",
    Decider.ACCURACY: "as fast as {tied} within the intervals, and more accurate",
    Decider.MEMORY: "as fast as {tied} within the intervals, and takes less memory",
    Decider.NOTHING: "as fast as {tied} within the intervals; its estimate is the smallest",
}
_DIGITS = ("loses all digits", "keeps one digit", "keeps two digits", "is out of guarantee")
_IN_BRIEF = {
    DisqualificationKind.UNVERIFIED: "its errors were not measured on every input",
    DisqualificationKind.INVALID_TIME: "its time is not valid",
    DisqualificationKind.TOO_FEW_SAMPLES: "too few samples for an interval",
    DisqualificationKind.UNTIMED: "not timed as the others in every case",
}


def answer_text(choice: Choice | WorkloadChoice) -> str:
    """Return why the best candidate was chosen, and what it costs in accuracy.

    Where there is none, return how many there are.
    """
    ranking = choice.ranking
    wide = [one.label for one, by in ranking.tied if by is Decider.ESTIMATE]
    tied = [one.label for one, by in ranking.tied if by is not Decider.ESTIMATE]
    because = _BECAUSE[ranking.decider].format(
        candidates=len(choice.candidates), wide=", ".join(wide), tied=", ".join(tied)
    )
    inaccurate = inaccuracy_text(ranking.best, choice) if ranking.best else ""
    return "; ".join(filter(None, [because, inaccurate]))


def inaccuracy_text(candidate: Candidate, choice: Choice | WorkloadChoice) -> str:
    """Return the largest error of an inaccurate candidate, beside that of the most accurate one.

    Empty if the candidate is right.
    """
    evidence = tuple(one for one in candidate.evidence if one.status is Status.INACCURATE)
    if not evidence:
        return ""
    inaccurate = replace(candidate, evidence=evidence)
    others = [
        (errors[1], errors[0], other.label)
        for other in choice.candidates
        if other.name != candidate.name and (errors := worst_in_common([inaccurate, other]))
    ]
    error, own, label = min(others, default=(inf, 0.0, ""))
    beside = f", where {label} is up to {ulp_text(error)} off" if error < own else ""
    worst = _worst(evidence)
    output = worst.errors.worst.output if worst.errors and worst.errors.outputs else "a result"
    return f"inaccurate: {output} is up to {ulp_text(worst.worst_ulp or 0.0)} off{beside}"


def _worst(records: Sequence[Record]) -> Record:
    return max(records, key=lambda record: record.worst_ulp or 0.0)


def pace_text(candidate: Candidate | None, native_s: Estimate | None) -> str:
    """Return the speed of a candidate with its interval, or its time if native was not timed."""
    if candidate is None or candidate.cost is None:
        return DASH
    speed = speed_of(candidate, native_s)
    if speed is None:
        return interval_text(candidate.cost, seconds_text)
    return speed_text(1.0) if candidate.name == NATIVE else interval_text(speed)


def price_text(candidate: Candidate, choice: Choice | WorkloadChoice) -> str:
    """Return what one would gain and lose with ``candidate`` instead of the best.

    Such as "1.00x, but loses all digits (first not right at ...)".
    """
    best, reason = choice.best, candidate.disqualification
    parts = [] if candidate.cost is None else [pace_text(candidate, choice.native_s)]
    if reason is not None:
        but = "but " if best is not None and cost_of(candidate) < cost_of(best) else ""
        return ", ".join([*parts, f"{but}{fault_text(reason)}{_evidence_of(reason, choice)}"])
    decider = next((by for one, by in choice.ranking.tied if one is candidate), None)
    inaccurate = inaccuracy_text(candidate, choice)
    if decider is Decider.ESTIMATE:
        parts.append("may be as fast")
    elif decider is not None and best is not None:
        parts.append("as fast within the intervals")
        if decider is Decider.ACCURACY and not inaccurate:
            errors = map(ulp_text, worst_in_common([candidate, best]))
            parts.append(f"less accurate: {' against '.join(errors)}")
        if decider is Decider.MEMORY:
            sizes = [bytes_text(one.peak_bytes or 0) for one in (candidate, best)]
            parts.append(f"takes more memory: {' against '.join(sizes)}")
    if inaccurate:
        parts.append(inaccurate)
    if beyond := _first_failure(candidate, choice):
        parts.append(fault_text(beyond))
    return ", ".join(parts) or "the choice"


def _prices(choice: Choice | WorkloadChoice) -> list[tuple[str, str]]:
    """Return what each candidate but the best would cost or gain."""
    return [
        (candidate.label, price_text(candidate, choice))
        for candidate in choice.candidates
        if candidate is not choice.best
    ]


def _evidence_of(reason: Disqualification, choice: Choice | WorkloadChoice) -> str:
    """Return what shows a disqualification, and the case unless it is of the scenario."""
    if not reason.records:
        return f": {', '.join(reason.missing)}" if reason.missing else ""
    record = _least_conditioned(reason.records)
    advice = "; ".join(warning.advice for warning in record.warnings)
    why = advice if reason.kind is DisqualificationKind.INVALID_TIME else record.reason
    is_here = isinstance(choice, Choice) and all(
        getattr(record.case, axis) == getattr(choice.scenario.case, axis) for axis in FILTERS
    )
    where = "" if is_here else f"; {record.case.id}"
    why = why.partition("; ")[0]
    return f"{where}{why and ': '}{why}"


def fault_text(reason: Disqualification) -> str:
    """Return in a few words why a candidate is not eligible."""
    kind, records = reason.kind, reason.records
    if kind in _IN_BRIEF:
        return _IN_BRIEF[kind]
    first = _least_conditioned(records)
    if kind in {DisqualificationKind.WRONG, DisqualificationKind.INACCURATE}:
        what = str(kind)
    elif kind is DisqualificationKind.OUT_OF_GUARANTEE:
        what = _digits_text(first)
    elif kind is DisqualificationKind.ABOVE_MAX_ERROR:
        what = f"up to {ulp_text(_worst(records).worst_ulp or 0.0)} off"
    else:
        return f"{in_words(kind)} in {count(len(records), 'case')}"
    condition = _condition(first)
    if condition is None or condition < _BENIGN:
        return f"{what} on {first.case.distribution}"
    if isinf(condition):
        return f"{what} on constant rows"
    return f"{what} (first not right at condition {rounded(condition)})"


def _digits_text(record: Record) -> str:
    """Return how many decimal digits of the worst output are right."""
    if record.errors is None or record.worst_ulp is None:
        return _DIGITS[-1]
    share = max(output.normwise_ratio for output in record.errors.outputs)
    if not (isfinite(record.worst_ulp) and isfinite(share)):
        return "gives NaN or infinity"
    right = max(floor(-log10(share)), 0) if share > 0 else len(_DIGITS)
    return _DIGITS[min(right, len(_DIGITS) - 1)]


def _least_conditioned(records: Sequence[Record]) -> Record:
    return min(records, key=lambda record: inf if (known := _condition(record)) is None else known)


def _condition(record: Record) -> float | None:
    return None if record.errors is None else record.errors.condition_max_ratio


def caveats(choice: Choice) -> Iterator[str]:
    """Yield what limits the evidence for the best candidate, and what to run beyond the limits."""
    best, unlimited = choice.best, choice.any_condition
    if best is None:
        return
    if unbounded := unbounded_text(best):
        yield unbounded
    if best.verified_on < len(choice.distributions):
        yield f"errors measured on {best.verified_on} of {len(choice.distributions)} distributions"
    warnings = dict.fromkeys(warning.kind for record in best.timed for warning in record.warnings)
    if warnings:
        yield f"measurement warning: {', '.join(map(in_words, warnings))}"
    if reason := _first_failure(best, choice):
        yield fault_text(reason)
        if other := unlimited.best if unlimited else None:
            pace = pace_text(other, choice.native_s)
            yield f"for all inputs, {run_text(other)}: {pace}"


def unbounded_text(candidate: Candidate) -> str:
    """Return in how many cases an eligible candidate is out of guarantee; empty for none."""
    cases = sum(record.status is Status.OUT_OF_GUARANTEE for record in candidate.evidence)
    return f"out of guarantee, as all are, in {count(cases, 'case')}" if cases else ""


def _first_failure(
    candidate: Candidate, choice: Choice | WorkloadChoice
) -> Disqualification | None:
    """Return what disqualifies a candidate for inputs of any condition, beyond what is required."""
    unlimited = choice.any_condition if isinstance(choice, Choice) else None
    found = unlimited.candidate(candidate.name) if unlimited else None
    return found.disqualification if found else None


# --- documents -----------------------------------------------------------------------------------


def choices_document(
    choices: Choices, workload_choices: Sequence[WorkloadChoice], evidence: Sequence[str]
) -> Document:
    """Return what to run for a workload on each device or, without one, in each scenario.

    Also what each other candidate would cost or gain.
    """
    blocks = _workload_blocks(workload_choices) if workload_choices else _choice_blocks(choices)
    notes = (Text(note, "note") for note in choices.notes)
    return (*blocks, *notes, *map(Text, evidence))


def _choice_blocks(choices: Choices) -> Document:
    is_priced = len(choices.choices) <= _MOST_PRICED
    remarks = [] if is_priced else ["for the other candidates, use the filters or --format json"]
    if choices.untimed:
        remarks.append(f"{count(len(choices.untimed), 'scenario')} measured for errors only")
    return (
        *map(Text, headline_of(choices)),
        Text(""),
        Table(
            columns=columns("for", "run", "speed#", "time#", "error#", "memory#", "because"),
            rows=tuple(
                scenario_row(choice, several=len(choices.environments) > 1, is_priced=is_priced)
                for choice in choices.choices
            ),
        ),
        *map(Text, remarks),
    )


def scenario_row(choice: Choice, *, several: bool, is_priced: bool) -> tuple[Cell, ...]:
    """Return the choice for a scenario; its numbers are those on the inputs that were timed.

    Args:
        choice: for the scenario.
        several: whether the rows are of several environments.
        is_priced: whether the row says what the other candidates cost or gain.
    """
    best, native_s = choice.best, choice.native_s
    where = f", environment {choice.scenario.environment}" if several else ""
    record = best.timed[0] if best and best.timed else None
    # the usual reason is not said in every row
    because = answer_text(choice).removeprefix(_BECAUSE[Decider.TIME]).removeprefix("; ")
    others = [] if best is None else [f"{best.label}: {caveat}" for caveat in caveats(choice)]
    others += map(": ".join, _prices(choice))
    return (
        Cell(f"{choice.scenario.text}{where}"),
        Cell("", status="none") if best is None else Cell(best.label, is_strong=True),
        number(pace_text(best, native_s)),
        *(number(metric.text(record, DASH) if record else DASH) for metric in _NUMBERS),
        Cell(because, note="\n".join(others) if is_priced else "", is_long=True),
    )


def _workload_blocks(workload_choices: Sequence[WorkloadChoice]) -> Iterator[Facts | Text]:
    """Yield the choice for a workload on each device, and what a choice per shape would take."""
    for choice in workload_choices:
        best, (held, all_calls) = choice.best, choice.covered
        run = run_text(best)
        title = (
            f"{run[0].upper()}{run[1:]} for all calls on {choice.device} "
            f"(environment {choice.environment}): {answer_text(choice)}"
        )
        prices = _prices(choice)
        if best is not None and best.cost is not None:
            takes = interval_text(best.cost, seconds_text)
            total = f"{pace_text(best, choice.native_s)}, takes {takes} in all"
            prices.insert(0, (best.label, total))
        runs = [(call, one.best.label if one.best else "none") for call, one in choice.calls]
        runs += [(call, "not in the run") for call in choice.missing]
        pairs = tuple((f"{call.count} x {call.text}", label) for call, label in runs)
        per_shape = "does not serve every call"
        if choice.per_shape_s is not None:
            per_shape = f"takes {interval_text(choice.per_shape_s, seconds_text)} in all"
        yield Facts(title, tuple(prices))
        yield Facts(f"a choice per shape {per_shape}", pairs)
        yield Text(f"covered: {held} of {all_calls} calls")


def machine_words(environment: Environment) -> Iterator[str]:
    """Yield the processor, the GPUs and the version of torch."""
    yield f"{environment.cpu}, {count(environment.cpu_count, 'CPU')}"
    yield from (gpu.name for gpu in environment.gpus)
    yield from (f"torch {version}" for name, version in environment.packages if name == "torch")


def evidence_lines(choices: Choices, names: Sequence[str]) -> Iterator[str]:
    """Yield the runs that the choices are based on, with their dates and machines."""
    runs = [
        f"{run.name} of {run.started_utc} by layernorm-bench {run.version}" for run in choices.runs
    ]
    yield f"evidence: {', '.join(names)}: {', '.join(runs) or 'the run is not known'}"
    for environment in choices.environments.values():
        parts = ", ".join(machine_words(environment))
        yield f"measured on {parts} (environment {environment.fingerprint})"
    processes = {
        record.latency.processes
        for choice in choices.choices
        for candidate in choice.candidates
        for record in candidate.timed
        if record.latency is not None
    }
    if 1 in processes:
        yield f"some intervals are over one process only (see `run --processes`). {WIDENED_TEXT}"
    elif processes:
        yield f"intervals are over {min(processes)} processes or more"
