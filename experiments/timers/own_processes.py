"""Start a new process for each measurement, for every timer.

pytest-benchmark starts sessions and writes reports of its own. It is run from its command line with
its defaults, and its JSON is read.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from peer_timers import order_of_arms
from timers import Timer

from harness.records import ArmRole

__all__ = ["Finding", "measure"]

_HERE = Path(__file__).parent
_TIMEOUT_S = 600  # ends a hung process


class Finding(NamedTuple):
    """One ratio, found by one process."""

    timer: str
    """Name of the timer, and of the statistic where a tool offers several."""
    pair: str
    ratio: float
    seconds: float


def measure(timer: Timer, pairs: Sequence[str], seed: str) -> list[Finding]:
    """Measure ``pairs`` in a process of their own, in that order.

    Raises:
        RuntimeError: the process failed; what it wrote to standard error is in the message.
    """
    if timer.tool == "pytest-benchmark":
        return [measured for pair in pairs for measured in _by_pytest_benchmark(pair, Random(seed))]
    output = _run([str(_HERE / "measure_once.py"), timer.name, seed, *pairs])
    return [Finding(timer.name, *found) for found in json.loads(output)]


def _by_pytest_benchmark(pair: str, random: Random) -> list[Finding]:
    """Run its real fixture in a real session, away from this project's pytest settings."""
    with tempfile.TemporaryDirectory() as folder:
        ini, report = Path(folder, "pytest.ini"), Path(folder, "report.json")
        ini.write_text("[pytest]\n")
        command = ["-m", "pytest", str(_HERE / "bench_pair.py"), "--noconftest"]
        command += ["-p", "no:cacheprovider", "-c", str(ini), "--rootdir", folder]
        _run([*command, "--benchmark-json", str(report)], folder, _environment(pair, random))
        benchmarks = json.loads(report.read_text())["benchmarks"]
    by_role = {ArmRole(benchmark["params"]["role"]): benchmark for benchmark in benchmarks}
    seconds = sum(benchmark["extra_info"]["seconds"] for benchmark in benchmarks)
    subject, reference = (by_role[role]["stats"] for role in (ArmRole.SUBJECT, ArmRole.REFERENCE))
    return [
        Finding(f"pytest-benchmark-{name}", pair, subject[name] / reference[name], seconds)
        for name in ("median", "min")
    ]


def _environment(pair: str, random: Random) -> dict[str, str]:
    return {"TIMERS_PAIR": pair, "TIMERS_ORDER": ",".join(order_of_arms(random))}


def _run(
    arguments: Sequence[str], folder: str | None = None, environment: dict[str, str] | None = None
) -> str:
    """Run Python with ``arguments``, in ``folder``; return its standard output."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | (environment or {}),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        words = f"{done.stdout}\n{done.stderr}".strip()[-2000:]  # the end says why
        raise RuntimeError(f"{' '.join(arguments)} ended with {done.returncode}:\n{words}")
    return done.stdout
