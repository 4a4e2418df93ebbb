"""What ``verify`` says of the LayerNorms that public bug reports describe.

    python -m bug_reports              verify all of them
    python -m bug_reports --report     the page again, from results/published/bug-reports.json

``tox run -e bug-reports`` runs it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import torch

from bug_reports.rebuilt import right
from bug_reports.reports import REPORTS, Report
from harness.records.text import count
from harness.report import headline
from harness.verify import Outcome, Verdict, verify

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "published" / "bug-reports.json"
PAGE = ROOT / "reports" / "published" / "bug-reports.md"
_FOUND = {Outcome.WRONG, Outcome.INACCURATE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A report, and what ``verify`` says of the LayerNorm that was rebuilt from it."""

    report: str
    mistake: str
    dtypes: tuple[str, ...]
    quick: str
    """The outcome with ``--quick``."""
    default: str
    """The outcome without; that of ``quick`` where it found the mistake."""
    says: str
    """The first sentence of the verdict."""
    not_tried: str
    """The conditions of its source that had one outcome, if it was not found."""

    @property
    def is_found(self) -> bool:
        """Whether the default verification rejects it."""
        return self.default in _FOUND


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--report", is_flag=True, help="Write the page of the stored results again.")
def main(report: bool) -> None:
    """Verify every rebuilt LayerNorm, and write the page."""
    torch.set_num_threads(1)
    if not report:
        dtypes = sorted({dtype for one in REPORTS for dtype in one.dtypes})
        if (control := verify(right, dtypes=dtypes)).outcome is not Outcome.RIGHT:
            raise click.ClickException(f"without a mistake: {headline(control)}")
        rows = []
        for number, one in enumerate(REPORTS, start=1):
            rows.append(row_of(one))
            click.echo(f"{number}/{len(REPORTS)} {one.number}: {rows[-1].default}", err=True)
        commit = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True
        )
        stored = {"commit": commit.stdout.strip(), "rows": [asdict(row) for row in rows]}
        RESULTS.write_text(json.dumps(stored, indent=1) + "\n")
    stored = json.loads(RESULTS.read_text())
    lines = page_lines([Row(**row) for row in stored["rows"]], stored["commit"])
    PAGE.write_text("\n".join(lines) + "\n")
    click.echo(lines[4])


def row_of(report: Report) -> Row:
    """Verify one: with ``--quick``, and if it is accepted without."""
    quick = _verdict(report, quick=True)
    default = quick if quick.outcome in _FOUND else _verdict(report, quick=False)
    remarks = (own for own in default.remarks if own.kind == "never_tried")
    return Row(
        report=report.number,
        mistake=report.sentence,
        dtypes=report.dtypes,
        quick=quick.outcome,
        default=default.outcome,
        says=headline(default).partition(" ")[2],
        not_tried="; ".join(line for own in remarks for line in own.evidence),
    )


def _verdict(report: Report, *, quick: bool) -> Verdict:
    return verify(report.rebuilt, quick=quick, dtypes=report.dtypes)


def page_lines(rows: list[Row], commit: str) -> list[str]:
    """Return the page, in Markdown."""
    found = sum(row.is_found for row in rows)
    by_quick = sum(row.quick in _FOUND for row in rows)
    named = sum(not row.is_found and bool(row.not_tried) for row in rows)
    missed = (
        f"; of those missed, {named} are behind a condition that the verdict names as not tried"
    )
    return [
        "# Public bug reports",
        "",
        "Wrong LayerNorms of public bug reports, each rebuilt in a few lines from what the",
        "report says (`experiments/bug_reports/reports.py`), and what `verify` says of them.",
        f"{found} of {count(len(rows), 'mistake')} are found, {by_quick} of them with `--quick`"
        f"{missed if found < len(rows) else ''}. The LayerNorm without a mistake is right in all",
        f"their dtypes. Measured at {commit}.",
        "",
        "| report | the rebuilt mistake | `--quick` | default | `verify` says: it |",
        "| --- | --- | --- | --- | --- |",
        *(_line(row) for row in rows),
    ]


def _line(row: Row) -> str:
    says = row.says if row.is_found else f"not tried: {row.not_tried}" if row.not_tried else ""
    default = row.default if row.quick not in _FOUND else ""
    cells = (row.report, row.mistake, row.quick, default, says)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    sys.exit(main())
