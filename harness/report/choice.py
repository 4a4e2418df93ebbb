"""A choice as a document and as JSON: what to run, why, what other candidates cost or gain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from harness.records.metrics import METRICS
from harness.records.text import (
    count,
    in_words,
    percent_text,
    seconds_text,
    shape_text,
    speed_interval_text,
)
from harness.report.choice_text import (
    answer_text,
    beyond_text,
    caveats,
    interval_text,
    pace_text,
    price_in_workload_text,
    price_text,
    requirement_text,
    run_text,
    saving_text,
    speed_in,
    workload_answer_text,
)
from harness.report.document import DASH, Cell, Column, Document, Facts, Table, Text, number
from harness.selection import (
    LONG_FLOOR,
    NATIVE,
    REFERENCE_NAME,
    SHORT_FLOOR,
    Candidate,
    CandidateName,
    Choice,
    Choices,
    OverallChoice,
    Requirements,
    Scenario,
    Slice,
    choose_overall,
    cost_of,
    geometric_mean,
    label_of,
    scaled,
)
from harness.store import to_plain

if TYPE_CHECKING:  # it imports pydantic, for which a page has no use
    from harness.selection.workload import WorkloadChoice

WIDENED_TEXT = (
    f"An interval over one process is widened by {percent_text(SHORT_FLOOR - 1)} either way, and "
    f"that of a call over 1 ms by {percent_text(LONG_FLOOR - 1)}, because processes differ by as "
    "much."
)
"""How the comparison treats intervals over one process."""

_MOST_LINES = 3  # trade-off: more lines are not read; the table has all choices
# trade-off: more scenarios are easier to read as a number; the table names them
_MOST_NAMED = 3
_MOST_KINDS = 3  # the same for dtypes and directions
_NUMBERS = [metric for metric in METRICS if metric.name in {"latency_s", "error_ulp", "peak_bytes"}]
_MOST_PRICED = 30  # trade-off: about two screens; JSON has every scenario


# --- documents -----------------------------------------------------------------------------------


def choices_document(choices: Choices, evidence: Sequence[str]) -> Document:
    """Return what to run in each scenario, and what each other candidate would cost or gain."""
    rows = [
        _scenario_row(choice, is_priced=index < _MOST_PRICED)
        for index, choice in enumerate(choices.choices)
    ]
    columns = [
        Column("for"),
        Column("run"),
        Column("speed", is_number=True),
        Column("time", is_number=True, rank=3),
        Column(f"{REFERENCE_NAME} takes", is_number=True, rank=2),
        Column("error", is_number=True, rank=1),
        Column("memory", is_number=True, rank=0),
        Column("because", is_long=True),
    ]
    several = len({choice.scenario.environment for choice in choices.choices}) > 1
    if several:
        columns.insert(1, Column("environment"))
        rows = [
            (*row[:1], Cell(choice.scenario.environment), *row[1:])
            for row, choice in zip(rows, choices.choices, strict=True)
        ]
    lines = []
    if (left := len(rows) - _MOST_PRICED) > 0:
        lines.append(f"prices of {left} more: use the filters or --format json")
    if choices.untimed:
        names = ", ".join(scenario.text for scenario in choices.untimed[:_MOST_NAMED])
        more = len(choices.untimed) - _MOST_NAMED
        lines.append(f"measured for errors only: {names}{f' and {more} more' if more > 0 else ''}")
    return (
        *map(Text, headline_of(choices)),
        Table(columns=tuple(columns), rows=tuple(rows)),
        *map(Text, lines),
        *_ending(choices, evidence),
    )


def _scenario_row(choice: Choice, *, is_priced: bool) -> tuple[Cell, ...]:
    """Return the choice for a scenario; its numbers are those on the inputs that were timed."""
    best = choice.best
    record = best.timed[0] if best and best.timed else None
    error, time, memory = (
        number(metric.text(record, DASH, interval=metric.is_estimate) if record else DASH)
        for metric in _NUMBERS
    )
    others = [] if best is None else [f"{best.label} {caveat}" for caveat in caveats(choice)]
    others += [
        f"{candidate.label}: {price_text(candidate, choice)}"
        for candidate in choice.candidates
        if candidate is not best
    ]
    others += beyond_text(choice)
    return (
        Cell(choice.scenario.text),
        Cell("", status="none") if best is None else Cell(best.label, is_strong=True),
        number(speed_in(choice, best)),
        time,
        number(DASH if choice.native_s is None else seconds_text(choice.native_s.value)),
        error,
        memory,
        Cell(answer_text(choice), note="\n".join(others) if is_priced else "", is_long=True),
    )


def workload_document(
    choices: Choices, workload_choices: Sequence[WorkloadChoice], evidence: Sequence[str]
) -> Document:
    """Return the choice for a workload on each device, and what a choice per shape would save."""
    blocks: list[Facts | Text] = []
    for choice in workload_choices:
        best, (held, all_calls) = choice.best, choice.covered
        title = (
            f"for all calls on {choice.device}, environment {choice.environment}: "
            f"{'none' if best is None else best.label}: {workload_answer_text(choice)}"
        )
        prices = [
            (candidate.label, price_in_workload_text(candidate, choice))
            for candidate in choice.candidates
            if candidate is not best
        ]
        if best is not None:
            pace = pace_text(best, choice.native_s, None)
            prices.insert(0, (best.label, f"{pace}, takes {interval_text(best.cost)} in all"))
        own = [
            (f"{call.count} x {call.text}", one.best.label if one.best else "none")
            for call, one in choice.calls
        ]
        blocks += [
            Facts(title, tuple(prices)),
            Facts(f"a choice per shape {saving_text(choice)}", tuple(own)),
        ]
        if choice.missing:
            names = ", ".join(f"{call.text} ({call.count} times)" for call in choice.missing)
            blocks.append(Text(f"not in the run: {names}"))
        blocks.append(Text(f"covered: {held} of {all_calls} calls"))
    return (*blocks, *_ending(choices, evidence))


def _ending(choices: Choices, evidence: Sequence[str]) -> Iterator[Text]:
    yield from (Text(note, "note") for note in choices.notes)
    yield from map(Text, evidence)


def evidence_lines(choices: Choices, names: Sequence[str]) -> Iterator[str]:
    """Yield the runs that the choices are based on, with their dates and machines."""
    runs = [
        f"{run.name} of {run.started_utc} by layernorm-bench {run.version}" for run in choices.runs
    ]
    yield f"evidence: {', '.join(names)}: {', '.join(runs) or 'the run is not known'}"
    for environment in choices.environments.values():
        packages = dict(environment.packages)
        parts = [f"{environment.cpu}, {environment.cpu_count} CPUs"]
        parts += [gpu.name for gpu in environment.gpus]
        if "torch" in packages:
            parts.append(f"torch {packages['torch']}")
        yield f"measured on {', '.join(parts)} (environment {environment.fingerprint})"
    processes = min(
        (
            record.latency.processes
            for choice in choices.choices
            for candidate in choice.candidates
            for record in candidate.timed
            if record.latency is not None
        ),
        default=0,
    )
    if processes == 1:
        yield f"some intervals are over one process only (see `run --processes`). {WIDENED_TEXT}"
    elif processes:
        yield f"intervals are over {processes} processes or more"


# --- JSON ----------------------------------------------------------------------------------------

_AXES = (
    "shape", "normalized_dims", "dtype", "param_dtype", "device", "direction", "layout", "affine",
    "eps", "threads",
)  # fmt: skip


def choices_as_json(
    choices: Choices, workload_choices: Sequence[WorkloadChoice] = (), evidence: Sequence[str] = ()
) -> dict[str, Any]:
    """Return choices as values that JSON can hold: None where a number is unknown or infinite.

    ``workload_choices`` are those for a workload.
    """
    plain: dict[str, Any] = {
        "complete": choices.is_complete,
        "evidence": evidence,
        "runs": choices.runs,
        "environments": choices.environments,
        "requirements": choices.requirements,
        "headline": headline_of(choices),
        "notes": choices.notes,
        "choices": [_choice_plain(choice) for choice in choices.choices],
        "untimed": [_scenario_plain(scenario) for scenario in choices.untimed],
    }
    if workload_choices:
        plain["workload"] = [_workload_plain(choice) for choice in workload_choices]
    found: dict[str, Any] = _finite(plain)
    return found


def _choice_plain(choice: Choice) -> dict[str, Any]:
    best = choice.best
    return {
        **_scenario_plain(choice.scenario),
        **_name_plain(best),
        "decided_by": choice.ranking.decider,
        "reason": answer_text(choice),
        "native_s": choice.native_s.value if choice.native_s else None,
        "speed": choice.speed(best) if best else None,
        "caveats": list(caveats(choice)),
        "for_any_condition": next(beyond_text(choice), None),
        "distributions": choice.distributions,
        "candidates": [_candidate_plain(candidate, choice) for candidate in choice.candidates],
    }


def _candidate_plain(candidate: Candidate, choice: Choice) -> dict[str, Any]:
    record = candidate.timed[0] if candidate.timed else None
    is_chosen, reason = candidate is choice.best, candidate.disqualification
    return {
        **_name_plain(candidate),
        "is_chosen": is_chosen,
        "time_s": record.latency.per_call_s if record and record.latency else None,
        "compared_s": candidate.widened_cost,
        "speed": choice.speed(candidate),
        "error_ulp": record.worst_ulp if record else None,
        "peak_extra_bytes": candidate.peak_bytes,
        "verified_on": candidate.verified_on,
        "disqualified_because": None if reason is None else reason.kind,
        "price": None if is_chosen else price_text(candidate, choice),
    }


def _scenario_plain(scenario: Scenario) -> dict[str, Any]:
    case = to_plain(scenario.case)
    return {**{axis: case[axis] for axis in _AXES}, "environment": scenario.environment}


def _name_plain(candidate: Candidate | None) -> dict[str, Any]:
    implementation, mode = candidate.name if candidate else (None, None)
    return {"implementation": implementation, "mode": mode}


def _workload_plain(choice: WorkloadChoice) -> dict[str, Any]:
    held, all_calls = choice.covered
    best, saved_s = choice.best, choice.saved_s
    return {
        "environment": choice.environment,
        "device": choice.device,
        **_name_plain(best),
        "reason": workload_answer_text(choice),
        "calls": all_calls,
        "calls_covered": held,
        "missing": [call.model_dump(mode="json") for call in choice.missing],
        "total_s": best.cost if best else None,
        "per_shape_s": choice.per_shape_s,
        "per_shape_saves": None
        if saved_s is None
        else {
            "saved_s": saved_s,
            "share": scaled(saved_s, 1 / cost_of(best)),
            "is_certain": saved_s.low > 0,
        },
        "candidates": [
            {
                **_name_plain(candidate),
                "total_s": candidate.cost,
                "price": None if candidate is best else price_in_workload_text(candidate, choice),
            }
            for candidate in choice.candidates
        ],
    }


def _finite(value: Any) -> Any:
    """Return plain values, with None for numbers that are not finite."""
    value = to_plain(value)
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value


# --- the headline --------------------------------------------------------------------------------

Default = CandidateName | None
"""What to run for all scenarios of a slice; None if nothing serves all of them."""


def headline_of(choices: Choices) -> list[str]:
    """Return the sentences for the choices of one or more runs."""
    return headline_lines(choices.choices, choose_overall(choices.choices), choices.requirements)


def headline_lines(
    choices: Sequence[Choice], overall: Mapping[Slice, OverallChoice], requirements: Requirements
) -> list[str]:
    """Return what to run, how much that gains over native and where not, in a few sentences.

    An implementation is named for all scenarios of a slice; then the scenarios in which another one
    is the choice. The last sentence says what was required. The list is empty without choices.

    Args:
        choices: for each scenario.
        overall: for each device, dtype and direction of them.
        requirements: of all choices.
    """
    environments = list(dict.fromkeys(choice.scenario.environment for choice in choices))
    lines: list[str] = []
    for environment in environments:
        own = [choice for choice in choices if choice.scenario.environment == environment]
        where = f"environment {environment}: " if len(environments) > 1 else ""
        lines += [f"{where}{line}" for line in _sentences(own, overall)]
    if lines:
        asked = requirement_text(requirements.max_condition)
        limit = requirements.max_error_ulp
        error = "" if limit is None else f", with errors up to {limit:g} ulp"
        lines.append(
            f"{'The choice is' if len(choices) == 1 else 'Each choice is'} the fastest, within the "
            f"intervals, of the implementations that were right on {asked}{error}."
        )
    return lines


def first_choice(choices: Sequence[Choice], overall: Mapping[Slice, OverallChoice]) -> Default:
    """Return what the first sentence says to run; None if nothing serves a whole slice."""
    return next(iter(_by_default(choices, overall)), None)


def _by_default(
    choices: Sequence[Choice], overall: Mapping[Slice, OverallChoice]
) -> dict[Default, list[Choice]]:
    """Group choices by what to run for all scenarios of their dtype and direction.

    The most frequent default is first. Choices without one are last, under None.
    """
    slices: dict[Slice, list[Choice]] = {}
    for choice in choices:
        slices.setdefault(Slice.of(choice.scenario), []).append(choice)
    groups: dict[Default, list[Choice]] = {}
    for key, own in slices.items():
        best = overall[key].ranking.best if key in overall else None
        if len(own) == 1:
            best = own[0].best
        groups.setdefault(best.name if best else None, []).extend(own)
    return dict(sorted(groups.items(), key=lambda group: (group[0] is None, -len(group[1]))))


def _sentences(choices: Sequence[Choice], overall: Mapping[Slice, OverallChoice]) -> Iterator[str]:
    groups = _by_default(choices, overall)
    for name, own in groups.items():
        served = [
            (choice, one) for choice in own for one in choice.ranking.eligible if one.name == name
        ]
        if name is None or not served:
            continue
        scope = _scope([choice for choice, _ in served], choices)
        if name == NATIVE:
            yield f"Keep {REFERENCE_NAME} {scope}."
        else:
            yield f"Run {label_of(name)}{_gain(served)} {scope}.{_why_not_native(served)}"
    others = list(_exceptions(groups).items())
    has_default = any(groups.keys() - {None})
    for label, own in others[:_MOST_LINES]:
        scope = _scope(own, choices, _MOST_NAMED)
        if label is None:
            yield f"No implementation is eligible {scope}."
        elif has_default:
            yield f"Except {scope}: {run_text(label)}."
        else:
            text = run_text(label)
            yield f"{text[0].upper()}{text[1:]} {scope}."
    if left := sum(len(own) for _, own in others[_MOST_LINES:]):
        yield f"The table names the choices for {count(left, 'more scenario')}."


def _exceptions(groups: Mapping[Default, Sequence[Choice]]) -> dict[str | None, list[Choice]]:
    """Group the choices that are faster than their default by their label; native is first."""
    others: dict[str | None, list[Choice]] = {}
    for default, own in groups.items():
        for choice in own:
            best = choice.best
            tied = {one.name for one, _ in choice.ranking.tied}
            if default is None or default not in tied | {best.name if best else None}:
                others.setdefault(best.label if best else None, []).append(choice)
    return dict(
        sorted(
            others.items(),
            key=lambda group: (group[0] is None, group[0] != REFERENCE_NAME, -len(group[1])),
        )
    )


def _gain(served: Sequence[tuple[Choice, Candidate]]) -> str:
    """Return the mean speed of a candidate relative to native; empty if it is not known."""
    speeds = [speed for choice, one in served if (speed := choice.speed(one)) is not None]
    if len(speeds) < len(served):
        return ""
    mean = "" if len(speeds) == 1 else " on average"
    return f": {speed_interval_text(geometric_mean(speeds))} the speed of {REFERENCE_NAME}{mean}"


def _why_not_native(served: Sequence[tuple[Choice, Candidate]]) -> str:
    """Return why native is disqualified where it is faster; empty if it is faster nowhere."""
    reasons = [
        in_words(native.disqualification.kind)
        for choice, _ in served
        if (native := choice.candidate(NATIVE)) is not None
        and native.disqualification is not None
        and (speed := choice.speed(choice.best) if choice.best else None) is not None
        and speed.value < 1
    ]
    if not reasons:
        return ""
    kinds = " or ".join(dict.fromkeys(reasons))
    where = "" if len(reasons) == len(served) else f" in {len(reasons)} of them"
    return f" {REFERENCE_NAME} is faster{where}, but {kinds} there."


def _scope(choices: Sequence[Choice], every: Sequence[Choice], most_named: int = 1) -> str:
    """Return the scenarios of a choice as a phrase.

    Up to ``most_named`` scenarios are named by their shapes; of more, the phrase has the number
    and, if they are few, the dtypes and directions.
    """
    has_devices = len({choice.scenario.case.device for choice in every}) > 1

    def kind(choice: Choice) -> str:
        case = choice.scenario.case
        return " ".join([case.dtype, *([case.device] if has_devices else []), case.direction])

    all_of, own = Counter(map(kind, every)), Counter(map(kind, choices))
    if len(choices) <= most_named:
        shapes = [
            " ".join([shape_text(choice.scenario.case.shape), *choice.scenario.settings])
            for choice in choices
        ]
        if len(own) == 1:
            return f"for {', '.join(shapes)} ({next(iter(own))})"
        pairs = zip(shapes, map(kind, choices), strict=True)
        return f"for {', '.join(map(' '.join, pairs))}"
    whole = "" if len(choices) == len(every) else f" of {len(every):,}"
    scenarios = f"for {len(choices):,}{whole} scenarios"
    if len(own) > _MOST_KINDS:
        return scenarios
    names = [
        name if held == all_of[name] or len(all_of) == 1 else f"{held} of {all_of[name]} {name}"
        for name, held in own.items()
    ]
    return f"{scenarios} ({', '.join(names)})"
