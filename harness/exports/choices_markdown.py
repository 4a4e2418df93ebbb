"""Choices as markdown, for a README or a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.exports.markdown import escaped, table_lines
from harness.records.text import seconds_text
from harness.selection.choose import Choice, Choices
from harness.selection.headline import headline_of
from harness.selection.pace import pace_text, speed_in
from harness.selection.text import (
    answer_text,
    beyond_text,
    caveats,
    missing_lines,
    price_in_workload_text,
    price_text,
    saving_text,
    workload_answer_text,
)
from harness.selection.workload_choice import WorkloadChoice

__all__ = ["choices_markdown"]


def choices_markdown(
    choices: Choices, workload_choices: Sequence[WorkloadChoice], notes: Sequence[str]
) -> str:
    """Return a table of the choices, or of those for a workload, and ``notes`` below it."""
    if workload_choices:
        lines = [line for choice in workload_choices for line in _workload(choice)]
    else:
        lines = [*map(escaped, headline_of(choices)), ""]
        lines += table_lines(
            ("for", "native takes", "run", "speed (native is 1.00x)", "why", "the others"),
            map(_row, choices.choices),
        )
    return "\n".join([*lines, "", *(f"- {escaped(note)}" for note in notes)])


def _row(choice: Choice) -> tuple[str, ...]:
    best = choice.best
    others = [
        f"{candidate.label}: {price_text(candidate, choice)}"
        for candidate in choice.candidates
        if candidate is not best
    ]
    return (
        choice.scenario.text,
        "" if choice.native_s is None else seconds_text(choice.native_s.value),
        "none" if best is None else best.label,
        speed_in(choice, best),
        "\n".join([answer_text(choice), *caveats(choice)]),
        "\n".join([*others, *beyond_text(choice)]),
    )


def _workload(choice: WorkloadChoice) -> Iterator[str]:
    best = choice.best
    label = "none" if best is None else best.label
    yield escaped(f"For all calls on {choice.device}: {label}: {workload_answer_text(choice)}.")
    yield ""
    yield from table_lines(
        ("implementation", "speed (native is 1.00x) and price"),
        [
            (
                candidate.label,
                pace_text(candidate, choice.native_s, None)
                if candidate is best
                else price_in_workload_text(candidate, choice),
            )
            for candidate in choice.candidates
        ],
    )
    yield ""
    yield f"- {escaped(f'a choice per shape {saving_text(choice)}')}"
    yield from (f"- {escaped(line)}" for line in missing_lines(choice))
