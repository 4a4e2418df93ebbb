"""Of each published file: the commit at which it was made, and whether that code has changed since.

``docs/made_at.json`` keeps both for each file of results/published, with a hash of the file. Where
the hash is another one, the file was made anew: ``python docs/figures.py --write`` then stores the
present commit and code. No test needs git for that.
"""

from __future__ import annotations

import json
import subprocess
from functools import cache
from hashlib import sha1, sha256
from pathlib import Path

from harness.records.text import listed

__all__ = ["origin", "published_table", "renew"]

ROOT = Path(__file__).resolve().parents[1]
PUBLISHED = ROOT / "results" / "published"
KEPT = ROOT / "docs" / "made_at.json"
SUFFIXES = {".py", ".cpp"}
VERIFY = ("harness/cases", "harness/numerics", "harness/verify")
# what each file shows: where one of these changes, it may be another figure today
CODE: dict[str, tuple[str, ...]] = {
    "bug-reports.json": VERIFY,
    "compare_fail.parquet": ("harness/cli/pytest_sweep.py", "harness/measure"),
    "conditioning.parquet": ("harness/numerics", "implementations"),
    "counts.parquet": ("harness/measure", "implementations"),
    "coverage.parquet": ("harness/measure/sample_statistics.py",),
    "cpu.parquet": ("harness/measure", "harness/numerics", "implementations"),
    "cpu_recentred.parquet": ("harness/measure", "implementations"),
    "detection_limits.parquet": ("harness/cases", "harness/numerics"),
    "faults.parquet": ("harness/cli", "harness/run", "harness/store"),
    "findings.json": ("experiments/findings",),
    "gates.parquet": ("harness/measure", "harness/regression"),
    "history_detection.parquet": ("harness/regression",),
    "many_files.parquet": ("harness/store",),
    "peer-tests.json": ("experiments/peer_tests", "harness/mutants"),
    "peers.json": (*VERIFY, "implementations/peers"),
    "peers.parquet": ("harness/measure", "implementations/peers"),
    "real-modules.json": VERIFY,
    "red_team.parquet": VERIFY,
    "sizes.parquet": ("harness/report", "harness/run", "harness/store"),
    "timers.parquet": ("harness/measure", "experiments/timers"),
    "uneven_calls.parquet": ("harness/measure",),
}


def origin(file: str) -> str:
    """Return two sentences: the commit at which a published file was made, and what changed."""
    made, code = _kept()[file], listed([f"`{path}`" for path in CODE[file]])
    changed = "did not change" if made["code"] == _hash_here(CODE[file]) else "changed"
    return f"Made at commit {made['commit']}. {code} {changed} since."


def published_table() -> str:
    """Return the published files, each with its commit."""
    lines = ["| file | commit | the code that it shows | changed since |", "|---|---|---|---|"]
    for file, paths in CODE.items():
        made = _kept()[file]
        changed = "" if made["code"] == _hash_here(paths) else "yes"
        lines.append(f"| {file} | {made['commit']} | {', '.join(paths)} | {changed} |")
    return "\n".join(lines)


def renew() -> None:
    """Store the commit and code of published files that were made anew."""
    kept = _kept()
    commit = _git("rev-parse", "--short=12", "HEAD").strip()
    for file, paths in CODE.items():
        data = sha256((PUBLISHED / file).read_bytes()).hexdigest()
        if kept.get(file, {}).get("file") != data:
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
    files = [file for path in paths for file in (ROOT / path, *(ROOT / path).rglob("*"))]
    blobs = {
        str(file.relative_to(ROOT)): _blob(file.read_bytes())
        for file in files
        if file.suffix in SUFFIXES and file.is_file()
    }
    return _hash_of(blobs)


def _blob(content: bytes) -> str:
    """Return the hash that git gives to a file."""
    return sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _hash_of(blobs: dict[str, str]) -> str:
    lines = "\n".join(f"{path} {blob}" for path, blob in sorted(blobs.items()))
    return sha256(lines.encode()).hexdigest()


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
