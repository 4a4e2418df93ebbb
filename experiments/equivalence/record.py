"""What does this version of the harness find, and what do its commands print?

    python experiments/equivalence/record.py FOLDER [PART...]   all parts by default
    python experiments/equivalence/compare.py OLD NEW           what differs between two records

Each part is written to FOLDER/PART.jsonl. A row has a key, what was found and what it was found by.
After a change of the harness, "found" must be the same; "by" may differ, with a reason. Durations
and whatever else differs from run to run are not recorded.

    mutants    every wrong mutant in each of its dtypes and every right LayerNorm, as in the
               self-test; each mutant in one dtype again, without stopping at the first failure
    verdicts   `verify --quick` of the project's implementations and of classes of other packages
    commands   exit code and output of choose, compare, history, report and export

The classes of other packages are listed in targets.txt, and left out without --packages FOLDER:

    pip install --no-deps --target FOLDER -r experiments/equivalence/packages.txt

results/published/equivalence/ holds what was recorded at 691c3aa, before harness/ was simplified:
the mutants in whole, and what was found alone of verdicts and commands. The red team has an
experiment of its own, and the cheats have tests.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
from compare import read, short

from harness.mutants import RIGHT, WRONG
from harness.run import process_state_restored
from harness.verify import verify
from harness.verify.result import verdict_as_json
from implementations import ALL, adopt

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
Row = dict[str, Any]


DTYPES = ("float32", "float64", "float16", "bfloat16")


def verdict(target: Any, dtypes: Sequence[str], **options: Any) -> Row:
    """Verify a target in this process; return what is kept of its verdict."""
    with process_state_restored():
        found = verify(target, dtypes=tuple(dtypes), **{"quick": True, **options})
    return kept(verdict_as_json(target.name, found))


def kept(plain: Row) -> Row:
    """Return what is recorded of a verdict, given as `verify --json` prints it."""
    first = re.search(r"shape=.*\w", plain["reproduce"] or "")
    found: dict[tuple[str, str], list[Row]] = {}
    for finding in plain["findings"]:
        of_case = "case" if isinstance(finding["evidence"], dict) else ""
        found.setdefault((finding["severity"], of_case or finding["kind"]), []).append(finding)
    causes = {kind: found.get(("cause", kind), []) for kind in ("mistake", "trigger")}
    declined = found.get(("limit", "declined"), []) + found.get(("limit", "raised"), [])
    return {
        "outcome": plain["outcome"],
        "instead": plain["instead"],
        "first": first and first[0],
        "statuses": sorted({failure["kind"] for failure in found.get(("wrong", "case"), [])}),
        "violations": sorted(kind for level, kind in found if level == "wrong" and kind != "case"),
        "remarks": sorted(kind for level, kind in found if level == "remark"),
        "mistakes": [cause["text"] for cause in causes["mistake"]],
        "triggers": [cause["text"] for cause in causes["trigger"]],
        "cases": {name: plain[name] for name in ("ok", "out_of_guarantee", "failed", "left")},
        "scope": plain["scope"],
        "declined": Counter(finding["text"] for finding in declined),
        "grades": {row["dtype"]: row["meets"] for row in plain["grades"]},
        "headline": plain["headline"],
    }


# --- mutants ------------------------------------------------------------------------

# the rest of a verdict that stops at the first failure depends on the order of the cases
FIRST = ("instead", "first", "statuses", "violations", "remarks")
FULL = ("instead", "statuses", "violations", "remarks", "mistakes", "triggers", "cases")


def result(key: str, found: object, by: Row, names: Iterable[str] = ()) -> Row:
    """Return one row, with the named fields of ``by``, or all, that are not empty."""
    return {"key": key, "found": found, "by": {n: by[n] for n in names or by if by[n]}}


def record_mutants(**_: object) -> Iterator[Row]:
    """Verify every mutant as the self-test does, and again in full for the explanation."""
    for mutant in WRONG:
        dtypes = [dtype for dtype in DTYPES if dtype in mutant.dtypes]
        for dtype, mode in (*((dtype, "") for dtype in dtypes), (dtypes[0], " in full")):
            target = adopt(mutant.fresh(), mutant.name)
            by = verdict(target, [dtype], fail_fast=not mode)
            is_wrong = by["outcome"] == "wrong"
            is_found = is_wrong if mutant.remark is None else mutant.remark in by["remarks"]
            yield result(f"{mutant.name} {dtype}{mode}", is_found, by, FULL if mode else FIRST)
    for right in RIGHT:
        by = verdict(right, DTYPES, fail_fast=True)
        yield result(f"right: {right.name}", by["outcome"] == "right", by, FULL)


# --- verdicts -------------------------------------------------------------------------


def record_verdicts(packages: Path | None, **_: object) -> Iterator[Row]:
    """Verify implementations one by one, and classes of other packages in one command per dtype."""
    by_arguments: dict[str, list[str]] = {}
    for line in (HERE / "targets.txt").read_text().splitlines() if packages else ():
        target, _, arguments = line.partition(" ")
        by_arguments.setdefault(arguments, []).append(target)
    environment = {
        "PYTHONPATH": f"{HERE.parent / 'real_modules' / 'startup'}{os.pathsep}{packages}",
        "HF_HUB_OFFLINE": "1",  # no package may fetch anything
        "TORCHDYNAMO_DISABLE": "1",  # some modules compile themselves, for every shape anew
    }
    for dtype in ("float32", "bfloat16"):
        for implementation in ALL:
            done = run(f"verify {implementation.name} --quick --json --dtype {dtype}", {})
            by = kept(json.loads(done.stdout)[0])
            yield result(f"{implementation.name} {dtype}", [by["outcome"], done.returncode], by)
        for arguments, targets in by_arguments.items():
            command = f"verify {' '.join(targets)} {arguments} --quick --json --dtype {dtype}"
            for plain in json.loads(run(command, environment).stdout):
                by = kept(plain)
                yield result(f"{plain['target']} {arguments} {dtype}", by["outcome"], by)


# --- commands ------------------------------------------------------------------------------------

PUBLISHED = "results/published"
CPU = f"{PUBLISHED}/cpu.parquet"
RUNS = (
    *(f"{PUBLISHED}/{name}.parquet" for name in ("cpu", "cpu_recentred", "conditioning", "peers")),
    "results/baselines/ci-epyc.parquet",
)
COMMITS = f"{PUBLISHED}/commits"


def commands() -> Iterator[str]:
    """Yield command lines that read the committed results."""
    forms = ("table", "markdown", "json", "python")
    yield from (f"choose {run} --format {form}" for run in RUNS for form in forms)
    for more in (
        *("--max-condition inf", "--max-error 2", "--dtype bfloat16 --direction backward"),
        *("--shape 7x7", "--workload bert_base", "--workload gpt2_training --format json"),
    ):
        yield f"choose {CPU} {more}"
    of_commits = sorted(path.relative_to(ROOT) for path in (ROOT / COMMITS).glob("*.parquet"))
    for before, after in (*pairwise(RUNS), *pairwise(of_commits[:4])):
        yield from (f"compare {before} {after} --format {form}" for form in ("text", *forms[1:3]))
    for metric in ("speed", "time", "error", "peak-memory", "saved-memory", "operators"):
        yield from (f"history {COMMITS} --metric {metric}{more}" for more in ("", " --json"))
    yield from (f"history {COMMITS} {more}" for more in ("--worst 5", "--last 4", "--case *back*"))
    yield from (f"report {run}" for run in (*RUNS, COMMITS, f"{CPU} {RUNS[2]}"))
    yield from (f"report {CPU} {more}" for more in ("--max-condition inf", f"--baseline {RUNS[3]}"))
    for form in ("csv", "junit", "summary"):
        yield from (f"export {run} --format {form}" for run in RUNS)
    yield from (f"export {run} --format markdown" for run in RUNS)
    for figure in ("list", "memory-against-the-least-cpu", "speed-cpu-forward-float32"):
        yield from (f"export {CPU} --format {form} --figure {figure}" for form in ("svg", "png"))


def record_commands(**_: object) -> Iterator[Row]:
    """Run each command; record its exit code, its output, and the text of a page."""
    with tempfile.TemporaryDirectory() as folder:
        for command in commands():
            out = Path(folder) / "out.html"
            out.unlink(missing_ok=True)
            has_file = command.startswith("report") or "-cpu" in command  # a page or a figure
            done = run(f"{command} --out {out}" if has_file else command, {})
            texts = {"output": done.stdout, "errors": done.stderr if done.returncode else ""}
            by = {
                name: text.replace(folder, "FOLDER").replace(str(ROOT), "ROOT")
                for name, text in texts.items()
            }
            if out.exists():
                by["sha256"] = hashlib.sha256(out.read_bytes()).hexdigest()
            if out.exists() and command.startswith("report"):
                hidden = r"(?s)<(script|style).*?</\1>|<[^>]*>"
                by["page"] = re.sub(r"\s*\n\s*", "\n", re.sub(hidden, "\n", out.read_text()))
            yield result(command, done.returncode, by)


def run(arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command of layernorm-bench from the root of the repository."""
    words = [str(Path(sys.executable).with_name("layernorm-bench")), *shlex.split(arguments)]
    variables = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", **environment}
    return subprocess.run(
        words, cwd=ROOT, env=variables, capture_output=True, text=True, check=False
    )


PARTS: dict[str, Callable[..., Iterator[Row]]] = {
    "mutants": record_mutants,
    "verdicts": record_verdicts,
    "commands": record_commands,
}


@click.command()
@click.argument("folder", type=Path)
@click.argument("parts", nargs=-1, type=click.Choice([*PARTS]), metavar="[PART]...")
@click.option("--packages", type=Path, help="folder with the packages of packages.txt")
@click.option("--compact", type=Path, help="only join the parts, with digests of long texts")
def main(folder: Path, parts: tuple[str, ...], compact: Path | None, **options: Any) -> None:
    """Record each PART, or all, in FOLDER."""
    if compact is not None:
        rows = [row for part in read(folder).values() for row in part.values()]
        digests = ({name: short(value) for name, value in row["by"].items()} for row in rows)
        lines = [_line({**row, "by": by}) for row, by in zip(rows, digests, strict=True)]
        compact.write_text("".join(lines), encoding="utf-8")
        return
    folder.mkdir(parents=True, exist_ok=True)
    for part in parts or PARTS:
        with (folder / f"{part}.jsonl").open("w", encoding="utf-8") as file:
            for row in PARTS[part](**options):
                file.write(_line({"part": part, **row}))
                file.flush()
                click.echo(f"{part}: {row['key']}: {row['found']}", err=True)


def _line(row: Row) -> str:
    return json.dumps(row, sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n"


if __name__ == "__main__":
    main()
