"""Runs the reproduction of each finding, and writes the page that says which are still there.

    python experiments/findings/findings.py            run them all
    python experiments/findings/findings.py --report   the page again, from the stored results

``tox run -e findings`` installs the packages and runs this. A file in ``cases/`` is a finding, and
decides by itself: it exits with 0 if the mistake is there, with 1 if it is not. Its docstring holds
a title, what happens, and ``FIELDS``.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click

CASES = Path(__file__).parent / "cases"
ROOT = CASES.parents[2]
RESULTS = ROOT / "results" / "published" / "findings.json"
PAGE = ROOT / "reports" / "published" / "findings.md"
FIELDS = ("affected", "library", "versions", "source", "reported")
MAX_LINES = 10  # of code: what a maintainer reads at a glance
LIMIT_S = 300
Finding = dict[str, str]
"""title, what, FIELDS and code of a case; of a run also date, installed, status and output."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--report", is_flag=True, help="Write the page of the stored results again.")
def main(report: bool) -> None:
    """Run every finding, and write the page."""
    if not report:
        findings = []
        for path in sorted(CASES.glob("*.py")):
            findings.append(run(path))
            click.echo(f"{path.stem}: {findings[-1]['status']}", err=True)
        RESULTS.write_text(json.dumps(findings, indent=1) + "\n")
    lines = page_lines(json.loads(RESULTS.read_text()))
    PAGE.write_text("\n".join(lines) + "\n")
    click.echo(lines[2])


def read(path: Path) -> Finding:
    """Return what the file of a case says.

    Raises:
        ValueError: its docstring or its length is not what the page needs.
    """
    source = path.read_text()
    title, what, rest = (ast.get_docstring(ast.parse(source)) or "").split("\n\n")
    fields = dict(re.findall(r"^(\w+): (.*(?:\n  .*)*)", rest, re.MULTILINE))
    code = [line for line in source.split('"""', 2)[2].splitlines() if line]
    if tuple(fields) != FIELDS or len(code) > MAX_LINES:
        raise ValueError(f"{path}: expected {FIELDS} and at most {MAX_LINES} lines of code")
    texts = {"title": title, "what": what, **fields}
    one_line = {name: " ".join(text.split()) for name, text in texts.items()}
    return {**one_line, "code": "\n".join(code)}


def run(path: Path) -> Finding:
    """Run a case in a process of its own."""
    finding = read(path)
    finding["date"] = datetime.now(UTC).date().isoformat()
    try:
        finding["installed"] = version(finding["library"])
    except PackageNotFoundError:
        return finding | {"installed": "", "status": "not installed", "output": ""}
    done = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    if done.returncode not in {0, 1} or "Traceback (most recent call last)" in done.stderr:
        return finding | {"status": "does not run", "output": done.stderr.strip()}
    status = "gone" if done.returncode else "still there"
    return finding | {"status": status, "output": done.stdout.strip()}


def page_lines(findings: Sequence[Finding]) -> list[str]:
    """Return the page, in Markdown."""
    counts = Counter(finding["status"] for finding in findings)
    lines = [
        "# Findings",
        "",
        f"{len(findings)} mistakes in other projects, as bug reports: "
        f"{', '.join(f'{number} {status}' for status, number in counts.items())} on "
        f"{max(finding['date'] for finding in findings)}. Each reproduction exits with 0 if the "
        "mistake is there and with 1 if it is not; `tox run -e findings` runs them again. "
        "[Layers of published packages](real-modules.md#findings) has further mistakes, also in "
        "kernels for a GPU.",
    ]
    for finding in findings:
        lines += [
            "",
            f"## {finding['library']}: {finding['title']}",
            "",
            f"**{finding['status'].capitalize()}**"
            f"{finding['installed'] and ' in ' + finding['installed']}. {finding['what']}",
            "",
            f"- Affected: {finding['affected']}.",
            f"- Seen in: {finding['library']} {finding['versions']}.",
            f"- Source: {finding['source']}.",
            f"- Reported: {finding['reported']}.",
            "",
            f"```python\n{finding['code']}\n```",
        ]
        if finding["output"]:
            lines += ["", f"```text\n{finding['output']}\n```"]
    return lines


if __name__ == "__main__":
    main()
