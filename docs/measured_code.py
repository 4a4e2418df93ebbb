"""Of each published file: the commit at which it was made, and whether that code has changed since.

``docs/made_at.json`` keeps both for each file of results/published, with a hash of the file. Where
the hash is another one, the file was made anew: ``python docs/figures.py --write`` then stores the
present commit and code. No test needs git for that.
"""

from __future__ import annotations

import ast
import json
import subprocess
from functools import cache
from hashlib import sha256
from pathlib import Path

from harness.records.text import listed

__all__ = ["changed_files", "origin", "published_table", "renew"]

ROOT = Path(__file__).resolve().parents[1]
PUBLISHED = ROOT / "results" / "published"
KEPT = ROOT / "docs" / "made_at.json"
SUFFIXES = {".py", ".cpp"}
VERIFY = ("harness/cases", "harness/numerics", "harness/verify")
OWN_KERNEL = ("implementations/contract.py", "implementations/cpu")
MODELS = (  # what the preset times
    *OWN_KERNEL,
    *(f"implementations/{name}.py" for name in ("native", "two_pass", "recentred")),
)
CONDITIONING = (*MODELS, "implementations/one_pass.py", "implementations/shifted.py")
CI = (
    "implementations/contract.py",
    *(f"implementations/{name}.py" for name in ("native", "one_pass", "two_pass", "welford")),
)
# what each file shows: where one of these changes, it may be another figure today
CODE: dict[str, tuple[str, ...]] = {
    "bug-reports.json": VERIFY,
    "compare_fail.parquet": ("harness/cli/pytest_sweep.py", "harness/measure"),
    "conditioning.parquet": ("harness/numerics", *CONDITIONING),
    "counts.parquet": ("harness/run/instructions.py", *CI),
    "coverage.parquet": ("harness/measure/sample_statistics.py",),
    "cpu.parquet": ("harness/measure", "harness/numerics", *MODELS),
    "cpu_recentred.parquet": ("harness/measure", *OWN_KERNEL),
    "detection_limits.parquet": ("harness/cases", "harness/numerics"),
    "faults.parquet": ("harness/cli", "harness/run", "harness/store"),
    "findings.json": ("experiments/findings",),
    "gates.parquet": ("harness/measure", "harness/regression"),
    "history_detection.parquet": ("harness/regression",),
    "many_files.parquet": ("harness/store",),
    "peer-tests.json": ("experiments/peer_tests", "harness/mutants", *VERIFY),
    "peers.json": (*VERIFY, "implementations/peers"),
    "peers.parquet": ("harness/measure", "implementations/peers"),
    "real-modules.json": VERIFY,
    "red_team.parquet": VERIFY,
    "sizes.parquet": ("harness/report", "harness/run", "harness/store"),
    "timers.parquet": ("harness/measure", "experiments/timers"),
    "uneven_calls.parquet": ("harness/measure",),
}


def origin(file: str) -> str:
    """Return two sentences: a commit with the code that was measured, and what changed since."""
    code = listed([f"`{path}`" for path in CODE[file]])
    some = "Part of " if len(CODE[file]) > 1 else ""
    changed = f"{some}{code} changed" if file in changed_files() else f"{code} did not change"
    return f"Made with the code of commit {_kept()[file]['commit']}. {changed} since."


def published_table() -> str:
    """Return the published files, each with its commit."""
    lines = ["| file | commit | the code that it shows | changed since |", "|---|---|---|---|"]
    for file, paths in CODE.items():
        changed = "yes" if file in changed_files() else ""
        lines.append(f"| {file} | {_kept()[file]['commit']} | {', '.join(paths)} | {changed} |")
    return "\n".join(lines)


def changed_files() -> list[str]:
    """Return the published files whose code has changed since they were made."""
    return [file for file, paths in CODE.items() if _kept()[file]["code"] != _hash_here(paths)]


def renew(*made: str) -> None:
    """Store the commit and code of published files that were made anew, and may be as before."""
    kept = _kept()
    commit = _git("rev-parse", "--short=12", "HEAD").strip()
    for file, paths in CODE.items():
        data = sha256((PUBLISHED / file).read_bytes()).hexdigest()
        if file in made or kept.get(file, {}).get("file") != data:
            kept[file] = {"file": data, "commit": commit, "code": _hash_here(paths)}
    text = json.dumps({file: kept[file] for file in CODE}, indent=1)
    KEPT.write_text(f"{text}\n", encoding="utf-8")


@cache
def _kept() -> dict[str, dict[str, str]]:
    kept: dict[str, dict[str, str]] = json.loads(KEPT.read_text(encoding="utf-8"))
    return kept


@cache
def _hash_here(paths: tuple[str, ...]) -> str:
    """Return a hash of the source files below some paths."""
    files = sorted({
        file
        for path in paths
        for file in (ROOT / path, *(ROOT / path).rglob("*"))
        if file.suffix in SUFFIXES and file.is_file()
    })
    sources = [f"{file.relative_to(ROOT)} {_code_of(file)}" for file in files]
    return sha256("\n".join(sources).encode()).hexdigest()


@cache
def _code_of(file: Path) -> str:
    """Return a source file without what no figure depends on: in Python comments and docstrings."""
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".py":
        return text
    tree = ast.parse(text)
    for node in ast.walk(tree):
        match node:
            case ast.Module(body=body) | ast.ClassDef(body=body) | ast.FunctionDef(body=body):
                node.body = [line for line in body if not _is_text(line)]
    return ast.unparse(tree)


def _is_text(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
