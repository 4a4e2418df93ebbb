"""How many mistakes behind a random trigger does `verify` find, and does it reject right code?

Each compound mutant makes a known mistake only where one to three random conditions on the call
hold (compounds.py). The cases are those of `verify` at a strength: the covering
array and the case groups. Right code is tried on the same cases. Some compounds are also composed
and given to `verify` itself, which must agree with the simulation.

    tox run -e red-team -- --compounds 1000          draw, judge and store
    tox run -e red-team -- --report                  print the table of the stored results
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from compounds import ORDERS, Fate, draw_compounds, run_red_team

import implementations
from harness.mutants import RIGHT
from harness.records import Case, Direction, Status
from harness.records.text import count
from harness.run.attempt import attempt
from harness.verify import verify
from harness.verify.cases import planned_cases
from harness.verify.result import DTYPES
from implementations.contract import Implementation, Reduction

PUBLISHED = Path(__file__).resolve().parents[2] / "results" / "published" / "red_team.parquet"
MOST_ELEMENTS = 150_000  # of x in a case for right code, as in the covering array
SLOW_FROM = 1000  # sequential implementations run one step per element in Python: minutes
# native's float16 and bfloat16 gradients are inaccurate on the CPU
KNOWN_WRONG = {("native", "float16"), ("native", "bfloat16")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One compound mutant, or one right implementation, in one dtype at one strength."""

    strength: int
    dtype: str
    subject: str
    """Name of the mistake, or of the right implementation."""
    trigger: str = ""
    """The conditions in words, joined by "and"; empty for right code."""
    order: int = 0
    """Number of conditions; 0 for right code."""
    fate: str
    """found, missed or invisible; of right code: accepted or rejected."""
    shown_by: str = ""
    """The first case that fails."""
    cases: int = 0
    """Cases with which right code was tried."""
    composed: str = ""
    """What `verify` itself says of the composed mutant; empty if it was not asked."""


@click.command()
@click.option("--compounds", default=1000, show_default=True, help="of each number of conditions")
@click.option("--composed", default=20, show_default=True, help="of these, given to verify itself")
@click.option("--strength", "strengths", multiple=True, type=int, default=(2, 3), show_default=True)
@click.option("--dtype", "dtypes", multiple=True, default=("float32",), show_default=True)
@click.option("--right/--no-right", default=True, help="try right code on the same cases")
@click.option("--report", "only_report", is_flag=True, help="print the stored results")
@click.option("--out", type=Path, default=PUBLISHED, show_default=True)
def main(
    compounds: int,
    composed: int,
    strengths: tuple[int, ...],
    dtypes: tuple[str, ...],
    right: bool,
    only_report: bool,
    out: Path,
) -> None:
    """Draw compound mutants, judge them, and store what became of each."""
    if not only_report:
        torch.set_num_threads(1)
        rows = [Row(**row) for row in pq.read_table(out).to_pylist()] if out.exists() else []
        for strength in strengths:
            for dtype in dtypes:
                new = [*compound_rows(compounds, composed, strength, dtype)]
                new += right_rows(strength, dtype) if right else []
                replaced = {(row.strength, row.dtype, row.order > 0) for row in new}
                rows = [
                    row for row in rows if (row.strength, row.dtype, row.order > 0) not in replaced
                ]
                rows += new
                pq.write_table(pa.Table.from_pylist([asdict(row) for row in rows]), out)
    click.echo(report([Row(**row) for row in pq.read_table(out).to_pylist()]))


def compound_rows(compounds: int, composed: int, strength: int, dtype: str) -> Iterator[Row]:
    """Draw and judge compounds of each order."""

    def on_compound(number: int) -> None:
        if number % 100 == 1:
            total = compounds * len(ORDERS)
            click.echo(f"strength {strength}, {dtype}: {number} of {total}", err=True)

    result = run_red_team(compounds, strength, dtype, on_compound=on_compound)
    for alarm in result.false_alarms:
        click.echo(f"right code fails {alarm}", err=True)
    drawn = draw_compounds(compounds)
    for number, (compound, judged) in enumerate(zip(drawn, result.compounds, strict=True)):
        said = ""
        # the simulation knows the cases alone, and verify checks the contract too
        if number % compounds < composed and judged.fate is not Fate.INVISIBLE:
            verdict = verify(
                implementations.adopt(compound.fresh(), judged.text),
                strength=strength,
                dtypes=(dtype,),
                fail_fast=True,
            )
            said = "wrong in a case" if verdict.failed else str(verdict.outcome)
        yield Row(
            strength=strength,
            dtype=dtype,
            subject=judged.base,
            trigger=" and ".join(judged.trigger),
            order=len(judged.trigger),
            fate=judged.fate,
            shown_by=judged.shown_by,
            composed=said,
        )


def right_rows(strength: int, dtype: str) -> Iterator[Row]:
    """Try every LayerNorm that is known to be right on the cases of ``verify``."""
    on_cpu = [known for known in implementations.ALL if "cpu" in known.devices]
    for subject in (*on_cpu, *RIGHT):
        click.echo(f"strength {strength}, {dtype}: {subject.name}", err=True)
        tried, wrong = 0, ""
        for case in right_cases(subject, strength, dtype):
            trial = attempt(subject, case)
            if not trial.status.is_measured:
                continue  # it declines the case
            tried += 1
            if trial.status is Status.WRONG:
                wrong = wrong or case.id
                click.echo(f"  wrong: {case.id}: {trial.reason}", err=True)
        assert tried, f"{subject.name} was tried in no case"
        yield Row(
            strength=strength,
            dtype=dtype,
            subject=subject.name,
            fate="rejected" if wrong else "accepted",
            shown_by=wrong,
            cases=tried,
        )


def right_cases(subject: Implementation, strength: int, dtype: str) -> Iterator[Case]:
    for planned in planned_cases(subject, strength, (dtype,), "cpu"):
        case = planned.case
        is_slow = subject.reduction is Reduction.SEQUENTIAL and case.hidden >= SLOW_FROM
        has_gradients = case.direction is not Direction.FORWARD
        is_known = has_gradients and (subject.name, dtype) in KNOWN_WRONG
        if prod(case.shape) <= MOST_ELEMENTS and not is_slow and not is_known:
            yield case


def report(rows: Iterable[Row]) -> str:
    """Return the table of the shares found, and what became of right code, in Markdown."""
    rows = list(rows)
    names = [count(order, "condition") for order in ORDERS]
    lines = [
        f"| strength | dtype | {' | '.join(names)} | right code called wrong |",
        f"|{' --- |' * (3 + len(ORDERS))}",
    ]
    for strength, dtype in sorted(
        {(row.strength, row.dtype) for row in rows},
        key=lambda key: (key[0], DTYPES.index(key[1])),
    ):
        here = [row for row in rows if (row.strength, row.dtype) == (strength, dtype)]
        cells = [_share([row for row in here if row.order == order]) for order in ORDERS]
        lines.append(f"| {strength} | {dtype} | {' | '.join(cells)} | {_right(here)} |")
    asked = [row for row in rows if row.composed]
    if asked:
        lines += ["", _agreement(asked)]
    return "\n".join(lines)


def _agreement(asked: list[Row]) -> str:
    """Return what ``verify`` itself said of mutants that were composed."""

    rejected = [row for row in asked if row.composed.startswith("wrong")]
    missed = [row for row in asked if row.fate == "missed"]
    text = f"`verify` itself called {len(rejected)} of {len(asked)} composed mutants wrong."
    if missed:
        caught = sum(row in rejected for row in missed)
        text += f" The table counts {len(missed)} of them as missed; "
        text += f"`verify` found {caught} of these."
    return text


def _share(rows: list[Row]) -> str:
    found = sum(row.fate == "found" for row in rows)
    visible = found + sum(row.fate == "missed" for row in rows)
    return f"{found / visible:.1%} of {visible}" if visible else ""


def _right(rows: list[Row]) -> str:
    right = [row for row in rows if not row.order]
    if not right:
        return ""
    rejected = sum(row.fate == "rejected" for row in right)
    checks = sum(row.cases for row in right)
    return f"{rejected} of {len(right)}, in {checks:,} cases"


if __name__ == "__main__":
    main()
