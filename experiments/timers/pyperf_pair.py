"""The pair as a user of pyperf would write it, one benchmark for each arm.

Run by own_processes.py, which names the pair and the order of its arms in the environment; pyperf
then starts this file again for each of its worker processes.
"""

from __future__ import annotations

import os

import pyperf  # type: ignore[import-untyped]  # it carries no annotations
from pairs import PAIRS, prepare_torch

from harness.records import ArmRole


def main() -> None:
    runner = pyperf.Runner()
    prepare_torch()
    calls = PAIRS[os.environ["TIMERS_PAIR"]].calls()
    for role in os.environ["TIMERS_ORDER"].split(","):
        runner.bench_func(role, calls[ArmRole(role)])


if __name__ == "__main__":
    main()
