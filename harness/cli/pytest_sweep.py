"""The cases of a sweep as tests: verified as in any run, then timed by pytest-benchmark.

The times are pytest-benchmark's: its clock, its rounds, one implementation after the other, in
pytest's own process and with the memory the system gives it. Nothing of ours is in them but the
call, so they are never compared with ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

import implementations
from harness.exports.benchmark_json import extra_info_of, machine_info_of
from harness.inputs import DISTRIBUTIONS, GRAD_OUTPUTS, LAYOUTS, PARAMETERS, Inputs
from harness.measure.device import Device
from harness.measure.devices import DEVICES
from harness.measure.environment import read_environment
from harness.measure.latency import Sampled
from harness.measure.placement import relocate
from harness.numerics.computed import bind
from harness.records import Allocation, Case, Environment, Measurement, Status
from harness.run.case import CaseRunner
from harness.run.timed_calls import model_bytes
from harness.sweep import (
    EVERY,
    PEERS,
    Planned,
    Sweep,
    SweepError,
    expand,
    load_preset,
    load_sweep,
    mistake_lines,
)
from implementations.contract import LayerNormFunction

__all__ = ["SweepTests", "run_case", "time_with"]

# a warning is none of the statuses, and a benchmark that is not used is one that was not right
_WARNINGS = ("default", "ignore:Benchmark fixture was not used")


class SweepTests:
    """What pytest asks of a sweep."""

    def __init__(self, name: str, planned: tuple[Planned, ...], *, alone: bool) -> None:
        self._name, self._planned, self._alone = name, planned, alone

    @classmethod
    def plan(
        cls,
        config: pytest.Config,
        sweep: str,
        axes: Mapping[str, tuple[str, ...]],
        *,
        options: Mapping[str, str],
        alone: bool,
    ) -> SweepTests:
        """Plan the cases of a preset or file, and take what is ours from pytest's arguments.

        Args:
            config: pytest's; its arguments may hold node ids of cases.
            sweep: name of a preset, or file.
            axes: names in the place of the sweep's own, if there are any.
            options: what pytest's options for those axes are called, for messages.
            alone: whether the cases are the only tests when no paths are given.

        Raises:
            SweepError: it cannot be read or run here, or has no case that was asked for.
        """
        if sweep.endswith(".toml"):
            path = config.invocation_params.dir / sweep
            name, found = path.name, load_sweep(path)
        else:
            name, found = sweep, load_preset(sweep)
        given = {axis: names for axis, names in axes.items() if names}
        planned = _planned(found.with_axes(given, options))
        ids = {each for each in config.args if each.startswith(f"{name}::")}
        if ids:
            planned = _chosen(planned, name, ids)
        others = [each for each in config.args if each not in ids]
        if alone and config.args_source is not pytest.Config.ArgsSource.ARGS:
            others = []
        if others != config.args:
            config.args, config.args_source = others, pytest.Config.ArgsSource.ARGS
        return cls(name, planned, alone=not others)

    @cached_property
    def _environment(self) -> Environment:
        return read_environment()

    def pytest_report_header(self) -> str:
        alone = "; no other tests: give their paths to run them too" if self._alone else ""
        return f"layernorm-bench: {len(self._planned)} cases of {self._name}{alone}"

    @pytest.hookimpl(tryfirst=True)  # before -k and the like look for what they know
    def pytest_collection_modifyitems(
        self, session: pytest.Session, items: list[pytest.Item]
    ) -> None:
        """Add the cases, under a node that is named as the sweep is."""
        runner = CaseRunner(self._environment.fingerprint, Allocation.DEFAULT)
        path = session.config.rootpath / self._name
        node = _SweepNode.from_parent(session, path=path, planned=self._planned, runner=runner)
        items.extend(session.genitems(node))

    def pytest_benchmark_update_machine_info(self, machine_info: dict[str, Any]) -> None:
        """Add what is the same in every run here: a difference is warned of."""
        lasting = replace(self._environment, load_average=None, git_commit=None, git_dirty=None)
        machine_info.update(machine_info_of(lasting))


def _planned(sweep: Sweep) -> tuple[Planned, ...]:
    """The cases of a sweep, given what exists in this process."""
    mistakes = []
    for place, name in sweep.written("implementations"):
        if name in {EVERY, PEERS}:
            continue
        try:
            implementations.find(name)
        except implementations.TargetError as error:
            mistakes.append((place, str(error)))
    if mistakes:
        raise SweepError("\n".join(mistake_lines(mistakes)))
    return expand(
        sweep,
        implementations={each.name: each.devices for each in implementations.ALL},
        distributions=DISTRIBUTIONS,
        layouts=LAYOUTS,
        grad_outputs=GRAD_OUTPUTS,
        parameters=PARAMETERS,
        devices={kind: make().unavailable() for kind, make in DEVICES.items()},
        peers={each.name: each.devices for each in implementations.PEERS},
    )


def _chosen(planned: tuple[Planned, ...], name: str, ids: set[str]) -> tuple[Planned, ...]:
    """Those cases whose node ids were given."""
    unknown = ids - {f"{name}::{each.case.id}" for each in planned}
    if unknown:
        raise SweepError(
            f"no case {', '.join(sorted(unknown))}; --collect-only -q lists those that there are"
        )
    return tuple(each for each in planned if f"{name}::{each.case.id}" in ids)


class _SweepNode(pytest.Module):
    """The parent of the cases; a module, for the fixtures that want one."""

    def __init__(self, *, planned: tuple[Planned, ...], runner: CaseRunner, **more: Any) -> None:
        super().__init__(**more)
        self.obj = implementations
        self._planned, self._runner = planned, runner

    def collect(self) -> Iterable[pytest.Item]:
        for each in self._planned:
            test = _test_of(self._runner, each)
            item = _CaseItem.from_parent(self, name=each.case.id, callobj=test)
            item.add_marker(pytest.mark.filterwarnings(*_WARNINGS))
            yield item


class _CaseItem(pytest.Function):
    """A case. Its name is no path through modules, in which pytest would write :: for each dot."""

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, f"{self.name} ({self.path.name})"


def _test_of(runner: CaseRunner, planned: Planned) -> Callable[..., None]:
    """What pytest calls for a case, with the fixture that it needs."""

    def time(benchmark: BenchmarkFixture) -> None:
        run_case(runner, planned.case, benchmark)

    def verify() -> None:
        run_case(runner, planned.case, None)

    return time if Measurement.LATENCY in planned.measurements else verify


def run_case(runner: CaseRunner, case: Case, benchmark: BenchmarkFixture | None) -> None:
    """Verify ``case`` and have ``benchmark`` time it if it is right; end as pytest has it.

    What was not run for a reason is skipped, what is wrong or raised fails, and what nothing is
    promised for is expected to fail.
    """
    threads, is_timed = torch.get_num_threads(), False
    try:
        with runner.begin(case) as run:
            run.verify(implementations.find(case.implementation))
            if benchmark is not None and run.record.status is Status.OK:
                is_timed = True
                run.add_timing(time_with(benchmark, run.function, case, run.inputs, run.device))
    finally:
        torch.set_num_threads(threads)  # other tests have theirs
    record = run.record
    if benchmark is not None and is_timed:
        info = extra_info_of(record, model_bytes=model_bytes(case, run.inputs))
        benchmark.extra_info.update(info)
    words = f"{record.status}: {record.reason}"
    if record.status in {Status.UNSUPPORTED, Status.OUT_OF_MEMORY}:
        pytest.skip(words)
    if record.status is Status.OUT_OF_GUARANTEE:
        pytest.xfail(words)
    if record.status is not Status.OK:
        pytest.fail(words, pytrace=False)


def time_with(
    benchmark: BenchmarkFixture,
    function: LayerNormFunction,
    case: Case,
    inputs: Inputs,
    device: Device,
) -> Sampled:
    """Have ``benchmark`` time the call on copies of ``inputs``, since the call may write to them.

    A call on another device than the CPU is over when the device has done its work.
    """
    tensors = [relocate(each, Random(case.id)) for each in inputs.tensors]
    call = bind(function, case, tensors)

    def call_and_wait() -> None:
        call()
        device.synchronize()

    benchmark.group = replace(case, implementation="").id.lstrip("/")
    began = perf_counter()
    benchmark(call if case.device == "cpu" else call_and_wait)
    return Sampled(None, (), perf_counter() - began, 0.0, tensors)
