"""The head of the page: what was measured where, the answer in words, and the numbers of cases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite

from harness.records import Environment, Mode, Status
from harness.records.text import count, seconds_text
from harness.report.content import heading
from harness.report.frame import Findings
from harness.report.quantities import power_of_ten, rounded
from harness.report.sections.history import how_it_changed
from harness.selection.answers import Answer
from harness.selection.headline import first_choice, headline_lines
from harness.selection.times import NATIVE

__all__ = ["cards", "default_title", "headline", "place_lines", "usage"]

_MOST_BLAMED = 2  # trade-off: a card has room for two names


@dataclass(frozen=True, slots=True)
class Card:
    """A number at the top of the page."""

    heading: str
    text: str
    note: str
    status: str = ""
    """Status of the cases that the card links to."""


def default_title(findings: Findings) -> str:
    """Return the heading of a page without a title of its own: of the machine, if it is one."""
    machines = list(dict.fromkeys(map(_machine, findings.environments.values())))
    return f"LayerNorm on {machines[0]}" if len(machines) == 1 else "LayerNorm"


def _machine(environment: Environment) -> str:
    return environment.gpus[0].name if environment.gpus else environment.cpu


def place_lines(findings: Findings) -> Iterator[str]:
    """Yield for each environment its machine, software, commit and days."""
    for letter, each in findings.environments.items():
        packages = dict(each.packages)
        cpus = "1 CPU" if each.cpu_count == 1 else f"{each.cpu_count} CPUs"
        parts = [f"{each.cpu}, {cpus}", *(gpu.name for gpu in each.gpus)]
        if "torch" in packages:
            parts.append(f"torch {packages['torch']}")
        if each.git_commit:
            dirty = " with uncommitted changes" if each.git_dirty else ""
            parts.append(f"commit {each.git_commit[:10]}{dirty}")
        threads = sorted({
            record.case.threads
            for record in findings.records
            if record.latency and record.environment == each.fingerprint
        })
        if threads:
            numbers = " and ".join(map(str, threads))
            parts.append(f"timed on {numbers} thread{'s' if threads != [1] else ''}")
        days = sorted({
            run.started_utc[:10]
            for run in findings.runs
            if run.environment in {each.fingerprint, None}
        })
        parts += [" to ".join(dict.fromkeys([days[0], days[-1]]))] if days else []
        where = f"Environment {letter}: " if len(findings.environments) > 1 else ""
        yield where + " · ".join(parts)
    if findings.history is not None:
        number = count(len(findings.history.runs), "run")
        yield f"The latest of {number}; what changed is under “{heading(how_it_changed)}”."


def headline(place: int, answer: Answer) -> dict[str, object]:
    """Return what the head of the page says under one requirement, and its entry in the switch."""
    level = answer.requirements.max_condition
    return {
        "number": place,
        "name": f"up to {power_of_ten(level)}" if isfinite(level) else "any",
        "is_default": answer.is_default,
        "lines": headline_lines(answer.choices, answer.overall, answer.requirements),
    }


def usage(findings: Findings) -> str:
    """Return how a model gets what the first sentence says to run; empty if it is native."""
    answer = next((each for each in findings.answers if each.is_default), None)
    choice = first_choice(answer.choices, answer.overall) if answer else None
    if choice is None or choice == NATIVE or choice[1] is not Mode.EAGER:
        return ""
    return f"import layernorm_bench; layernorm_bench.replace_layer_norms(model, {choice[0]!r})"


def cards(findings: Findings) -> list[Card]:
    """Return the numbers of cases by status, and what the runs cost."""
    statuses = findings.cases["status"]
    measured = statuses.isin([each.value for each in Status if each.is_measured]).sum()
    number = {status: int((statuses == status).sum()) for status in Status}
    failed = sum(number[each] for each in Status if each.is_failure)
    absent = len(statuses) - measured
    found = [
        Card("Measured", f"{measured:,}", f"of {count(findings.planned, 'case')} planned"),
        Card(
            "Within bound",
            f"{number[Status.OK]:,}",
            f"{rounded(100 * number[Status.OK] / max(measured, 1))} % of those measured",
            Status.OK,
        ),
        Card(
            "Wrong",
            f"{number[Status.WRONG]:,}",
            _blamed(findings, Status.WRONG) or "none outside its bound",
            Status.WRONG,
        ),
        Card(
            "Out of guarantee",
            f"{number[Status.OUT_OF_GUARANTEE]:,}",
            _blamed(findings, Status.OUT_OF_GUARANTEE) or "none beyond its limit in theory",
            Status.OUT_OF_GUARANTEE,
        ),
        Card(
            "Not measured",
            f"{absent + findings.missing:,}",
            f"{failed} failed, {absent - failed} declined or too large, "
            f"{findings.missing} without record",
        ),
    ]
    walls = [run.wall_s for run in findings.runs if run.wall_s is not None]
    shares = [
        (run.wall_s, run.overhead_ratio)
        for run in findings.runs
        if run.wall_s and run.overhead_ratio is not None
    ]
    if walls:
        note = "in the runs that ended" if len(walls) < len(findings.runs) else "from start to end"
        if shares:
            spent = sum(wall * share for wall, share in shares)
            ratio = spent / sum(wall for wall, _ in shares)
            note = f"{rounded(100 * ratio)} % of it overhead of the harness"
        found.append(Card("Wall time", seconds_text(sum(walls)), note))
    return found


def _blamed(findings: Findings, status: Status) -> str:
    """Return the implementations with the most cases of a status, and how many each has."""
    cases = findings.cases
    numbers = cases[cases["status"] == status]["implementation"].value_counts(sort=False)
    ordered = sorted(numbers.items(), key=lambda each: -each[1])
    names = [f"{name} {number:,}" for name, number in ordered[:_MOST_BLAMED]]
    left = len(ordered) - _MOST_BLAMED
    return ", ".join([*names, *([f"{count(left, 'other')}"] if left > 0 else [])])
