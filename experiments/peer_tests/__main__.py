"""How many deliberately wrong LayerNorms the acceptance tests of other projects accept.

    python -m peer_tests              every mutant of ``verify --self-test``
    python -m peer_tests --report     the table again, from results/published/peer-tests.json

``tox run -e peer-tests`` runs it. Each mutant is tried in each dtype in which it is wrong or
inaccurate, with ``verify --quick`` and with the inputs, references and tolerances of
:mod:`peer_tests.peer_checks`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import torch

from harness.mutants import WRONG, Mutant
from harness.records.text import count
from harness.verify.result import DTYPES
from harness.verify.self_test import is_found
from peer_tests.peer_checks import PEER_CHECKS

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "published" / "peer-tests.json"
TABLE = ROOT / "reports" / "published" / "peer-tests.md"
OWN = "verify --quick"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One mutant in one dtype: which tests find that it is wrong."""

    mutant: str
    dtype: str
    found_by: dict[str, bool]
    """By name of the test; without the tests that are not published for the dtype."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--report", is_flag=True, help="Write the table of the stored results again.")
def main(report: bool) -> None:
    """Try every mutant on every test, and write the table."""
    torch.set_num_threads(1)
    if not report:
        rows = [row for mutant in WRONG for row in rows_of(mutant)]
        RESULTS.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    right = {(mutant.name, dtype) for mutant in WRONG for dtype in mutant.rounded}
    rows = [Row(**row) for row in json.loads(RESULTS.read_text())]
    stored = [row for row in rows if (row.mutant, row.dtype) not in right]
    TABLE.write_text("\n".join(table_lines(stored)) + "\n")
    click.echo("\n".join(summary_lines(stored)))


def rows_of(mutant: Mutant) -> Iterator[Row]:
    """Try one mutant in each dtype in which it is wrong or inaccurate."""
    for dtype in DTYPES:
        if dtype not in mutant.dtypes - mutant.rounded:
            continue
        found_by = {OWN: is_found(mutant, dtype)}
        for peer in PEER_CHECKS:
            if dtype in peer.dtypes:
                found_by[peer.name] = not peer.accepts(mutant.fresh(), getattr(torch, dtype))
        click.echo(f"{mutant.name}, {dtype}: found by {count(sum(found_by.values()), 'test')}")
        yield Row(mutant=mutant.name, dtype=dtype, found_by=found_by)


def summary_lines(rows: Sequence[Row]) -> list[str]:
    """Return the table of how many wrong ones each test accepts, per dtype."""
    tests = [OWN, *(peer.name for peer in PEER_CHECKS)]
    lines = [_table_row("wrong ones accepted", tests), "|---" * (len(tests) + 1) + "|"]
    for dtype in DTYPES:
        of_dtype = [row for row in rows if row.dtype == dtype]
        cells = []
        for test in tests:
            verdicts = [row.found_by[test] for row in of_dtype if test in row.found_by]
            cells.append(str(verdicts.count(False)) if verdicts else "")
        lines.append(_table_row(f"{dtype}, of {len(of_dtype)}", cells))
    return lines


def table_lines(rows: Sequence[Row]) -> list[str]:
    """Return the page: the summary, what was made smaller, and each mutant in float32."""
    tests = [OWN, *(peer.name for peer in PEER_CHECKS)]
    lines = [
        "# Wrong LayerNorms that acceptance tests accept",
        "",
        f"torch {torch.__version__.partition('+')[0]}, CPU. Made by `tox run -e peer-tests`.",
        "",
        *summary_lines(rows),
        "",
        "An empty cell: the project publishes no test for the dtype. The tests are other projects'",
        "inputs, references and tolerances, applied here to the same functions; their code is not",
        "run. References in bfloat16 and float16 are computed in float32 and rounded, because the",
        "gradients of PyTorch's CPU kernel are inaccurate in these dtypes. Inaccurate ones are",
        "counted as wrong; those that only round more than once are right, and are left out.",
        *_newer(rows),
        "Tests made smaller:",
        "",
        *(f"- {peer.name} ({peer.source}): {peer.reduced}" for peer in PEER_CHECKS if peer.reduced),
        "",
        "In float32, mutant by mutant (✓ found, ✗ accepted):",
        "",
        _table_row("it", tests),
        "|---" * (len(tests) + 1) + "|",
    ]
    mistakes = {mutant.name: mutant.sentence for mutant in WRONG}  # a stored name may be gone
    marks = {True: "✓", False: "✗", None: ""}
    for row in rows:
        if row.dtype == "float32":
            lines.append(
                _table_row(
                    mistakes.get(row.mutant, row.mutant.replace("_", " ")),
                    [marks[row.found_by.get(test)] for test in tests],
                )
            )
    return lines


def _newer(rows: Sequence[Row]) -> list[str]:
    """Return a line with the number of mutants that were added since the rows were stored."""
    newer = {mutant.name for mutant in WRONG} - {row.mutant for row in rows}
    return (
        [f"{count(len(newer), 'newer mutant')} {'was' if len(newer) == 1 else 'were'} not tried."]
        if newer
        else []
    )


def _table_row(head: str, cells: Sequence[str]) -> str:
    escaped = head.replace("|", "\\|")  # a condition such as |x| > 1
    return f"| {escaped} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
