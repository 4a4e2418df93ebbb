"""Runs ``layernorm-bench verify`` on many targets, and keeps what the table needs of its JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["run_python", "verify"]

STARTUP = Path(__file__).parent / "startup"
ROOT = Path(__file__).parents[2]
COMMAND = Path(sys.executable).with_name("layernorm-bench")
OPTIONS = ("--quick", "--dtype", "float32", "--json")
BATCH = 40  # targets per command: importing the packages takes longer than most verifications


def verify(
    targets: Sequence[str],
    options: Sequence[str] = (),
    *,
    time_budget: str,
    environment: Mapping[str, str] | None = None,
) -> dict[str, dict[str, Any]]:
    """Return the verdict of each target by its name; a target that gave none is left out."""
    found: dict[str, dict[str, Any]] = {}
    for start in range(0, len(targets), BATCH):
        batch = targets[start : start + BATCH]
        arguments = [*batch, *OPTIONS, "--time-budget", time_budget, *options]
        done = _run([str(COMMAND), "verify", *arguments], environment)
        lines = [line for line in done.stdout.splitlines() if line.startswith("[{")]
        if not lines:
            _log(done.stderr.strip()[-300:])
            refused = {target for target in batch if f"{target}: cannot import" in done.stderr}
            rest = [target for target in batch if target not in refused]
            if refused and rest:  # one that cannot be imported stops the command
                found |= verify(rest, options, time_budget=time_budget, environment=environment)
            continue
        for verdict in json.loads(lines[-1]):
            found[verdict["target"]] = _kept(verdict)
            _log(verdict["headline"])
    return found


def run_python(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
    """Run Python; return its exit code and what it printed."""
    done = _run([sys.executable, "-W", "ignore", *arguments], environment)
    if done.returncode:
        _log(done.stderr.strip()[-300:])
    return done.returncode, done.stdout.strip()


def _run(
    command: Sequence[str], environment: Mapping[str, str] | None
) -> subprocess.CompletedProcess[str]:
    paths = [str(STARTUP), str(STARTUP.parents[1])]
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "HF_HUB_OFFLINE": "1",  # no package may fetch anything
        "TORCHDYNAMO_DISABLE": "1",  # some modules compile themselves, for every shape anew
        "UNSLOTH_SKIP_TORCHVISION_CHECK": "1",
        **(environment or {}),
    }
    return subprocess.run(
        command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False
    )


def _kept(verdict: Mapping[str, Any]) -> dict[str, Any]:
    scope = verdict["scope"] or {}
    wrong = [finding for finding in verdict["findings"] if finding["severity"] == "wrong"]
    failures = [finding["text"] for finding in wrong if finding["evidence"]]
    return {
        "outcome": verdict["outcome"],
        "headline": verdict["headline"],
        "instead": verdict["instead"],
        "instead_axes": scope.get("axes"),
        "axes": scope.get("axes"),
        "default_eps": scope.get("default_eps", scope.get("eps")),
        "affines": scope.get("affines", []),
        "remarks": [
            {"kind": finding["kind"], "text": finding["text"]}
            for finding in verdict["findings"]
            if finding["severity"] == "remark"
        ],
        "suspects": [
            finding["text"] for finding in verdict["findings"] if finding["kind"] == "mistake"
        ],
        "violations": [finding["text"] for finding in wrong if not finding["evidence"]],
        "failure": failures[0] if failures else None,
        "reproduce": verdict["reproduce"],
        "ok": verdict["ok"],
        "failed": verdict["failed"],
    }


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - progress of a long experiment
