"""The pair as a user of pytest-benchmark would write it, one benchmark for each arm.

Run by own_processes.py, which names the pair and the order of its arms in the environment.
"""

from __future__ import annotations

import os
from time import perf_counter

import pytest
from pairs import PAIRS, prepare_torch
from pytest_benchmark.fixture import BenchmarkFixture

from harness.records import ArmRole

PAIR = PAIRS[os.environ["TIMERS_PAIR"]]
ORDER = os.environ["TIMERS_ORDER"].split(",")


@pytest.mark.parametrize("role", ORDER)
def test_arm(benchmark: BenchmarkFixture, role: str) -> None:
    prepare_torch()
    call = PAIR.calls()[ArmRole(role)]
    began = perf_counter()
    benchmark(call)
    benchmark.extra_info["seconds"] = perf_counter() - began
