"""The cases of a sweep as tests of pytest: verified as in a run, then timed by pytest-benchmark.

The times are those of pytest-benchmark: its clock and its rounds, one implementation after the
other, in the process of pytest, with the memory allocator as it is. They are never compared with
times that the harness measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

import implementations
from harness.cases import Planned, load_preset, load_sweep
from harness.cases.inputs import Inputs
from harness.measure import Device, Sampled, Sampler, TimedCall, relocate
from harness.records import Allocation, ArmRole, Budget, Cache, Case, Measurement, Status
from harness.records.refusal import Refusal
from harness.records.text import count
from harness.report import extra_info_of, machine_info_of
from harness.run import (
    CaseRunner,
    Judged,
    bind,
    cases_on,
    model_bytes,
    refuse_unresolved,
    worker_info,
)
from implementations.contract import LayerNormFunction

# Warnings fail no case, whatever the user's settings. A case that is not ok leaves its benchmark
# fixture unused.
_WARNINGS = ("default", "ignore:Benchmark fixture was not used")


class SweepTests:
    """A plugin of pytest that adds the cases of a sweep as tests."""

    def __init__(
        self,
        config: pytest.Config,
        sweep: str,
        axes: Mapping[str, tuple[str, ...]],
        *,
        options: Mapping[str, str],
        alone: bool,
    ) -> None:
        """Plan the cases of a sweep, and remove their node ids from pytest's arguments.

        Args:
            config: of pytest; its arguments may hold node ids of cases.
            sweep: name of a preset, or a file.
            axes: values that replace those of the sweep; empty values do not.
            options: pytest's options for those axes, which messages name.
            alone: whether no other tests are run if no paths are given.

        Raises:
            Refusal: the sweep cannot be read or run here, or a node id is not one of its cases.
        """
        if sweep.endswith(".toml"):
            path = config.invocation_params.dir / sweep
            self._name, loaded = path.name, load_sweep(path)
        else:
            self._name, loaded = sweep, load_preset(sweep)
        given = {axis: names for axis, names in axes.items() if names}
        chosen = loaded.with_axes(given, options)
        refuse_unresolved(chosen, _why_unresolved)
        info = worker_info()
        self._environment, self._planned = info.environment, cases_on(chosen, info)
        ids = {argument for argument in config.args if argument.startswith(f"{self._name}::")}
        if ids:
            by_id = {f"{self._name}::{plan.case.id}": plan for plan in self._planned}
            if unknown := ids - by_id.keys():
                listed = ", ".join(sorted(unknown))
                raise Refusal(f"no case {listed}; --collect-only -q lists all cases")
            self._planned = tuple(plan for node, plan in by_id.items() if node in ids)
        others = [argument for argument in config.args if argument not in ids]
        if alone and config.args_source is not pytest.Config.ArgsSource.ARGS:
            others = []
        if others != config.args:
            config.args, config.args_source = others, pytest.Config.ArgsSource.ARGS
        self._alone = not others

    def pytest_report_header(self) -> str:
        alone = "; no other tests: give their paths to run them too" if self._alone else ""
        return f"layernorm-bench: {count(len(self._planned), 'case')} of {self._name}{alone}"

    @pytest.hookimpl(tryfirst=True)  # before -k and other options select from the items
    def pytest_collection_modifyitems(
        self, session: pytest.Session, items: list[pytest.Item]
    ) -> None:
        """Add the cases below a node with the name of the sweep."""
        runner = CaseRunner(self._environment.fingerprint, Allocation.DEFAULT)
        path = session.config.rootpath / self._name
        node = _SweepNode.from_parent(session, path=path, planned=self._planned, runner=runner)
        items.extend(session.genitems(node))

    def pytest_benchmark_update_machine_info(self, machine_info: dict[str, Any]) -> None:
        """Add the environment without its changing fields: pytest-benchmark warns of changes."""
        lasting = replace(self._environment, load_average=None, git_commit=None, git_dirty=None)
        machine_info.update(machine_info_of(lasting))


def _why_unresolved(name: str) -> Iterator[str]:
    try:
        implementations.find(name)
    except implementations.TargetError as error:
        yield str(error)


class _SweepNode(pytest.Module):
    """The parent of the cases. It is a module, since some fixtures need one."""

    def __init__(self, *, planned: tuple[Planned, ...], runner: CaseRunner, **more: Any) -> None:
        super().__init__(**more)
        self.obj = implementations
        self._planned, self._runner = planned, runner

    def collect(self) -> Iterable[pytest.Item]:
        for plan in self._planned:
            test = _test_of(self._runner, plan)
            item = _CaseItem.from_parent(self, name=plan.case.id, callobj=test)
            item.add_marker(pytest.mark.filterwarnings(*_WARNINGS))
            yield item


class _CaseItem(pytest.Function):
    """A case. Its name is not a dotted path, in which pytest would replace each dot by ``::``."""

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, f"{self.name} ({self.path.name})"


def _test_of(runner: CaseRunner, planned: Planned) -> Callable[..., None]:
    """Return the test function of a case, with the fixture that it needs."""

    def time(benchmark: BenchmarkFixture) -> None:
        run_case(runner, planned.case, benchmark)

    def verify() -> None:
        run_case(runner, planned.case, None)

    return time if Measurement.LATENCY in planned.measurements else verify


def run_case(runner: CaseRunner, case: Case, benchmark: BenchmarkFixture | None) -> None:
    """Verify ``case``, time it with ``benchmark`` if it is ok, and turn its status into an outcome.

    Unsupported and out of memory are skips, out of guarantee is an expected failure, and every
    other status than ok, inaccurate among them, is a failure.
    """
    threads = torch.get_num_threads()
    timed: list[Inputs] = []

    def time(judged: Judged, inputs: Inputs, device: Device, *_: object, **__: object) -> Sampled:
        if benchmark is None or judged.status is not Status.OK:
            return Sampled(None, (), 0.0, 0.0)
        timed.append(inputs)
        return time_with(benchmark, judged.called, case, inputs, device)

    try:
        record = runner.run(case, (Measurement.LATENCY,), Budget(), time=time)
    finally:
        torch.set_num_threads(threads)  # for the other tests of the process
    if benchmark is not None and timed:
        info = extra_info_of(record, model_bytes=model_bytes(case, timed[0]))
        benchmark.extra_info.update(info)
    outcome = f"{record.status}: {record.reason}"
    if record.status in {Status.UNSUPPORTED, Status.OUT_OF_MEMORY}:
        pytest.skip(outcome)
    if record.status is Status.OUT_OF_GUARANTEE:
        pytest.xfail(outcome)
    if record.status is not Status.OK:
        pytest.fail(outcome, pytrace=False)


def time_with(
    benchmark: BenchmarkFixture,
    function: LayerNormFunction,
    case: Case,
    inputs: Inputs,
    device: Device,
) -> Sampled:
    """Time the call with ``benchmark`` on copies of ``inputs``, since the call may write to them.

    On other devices than the CPU a call ends when the device has done its work.
    """
    tensors = [relocate(tensor, Random(case.id)) for tensor in inputs.tensors]
    call = bind(function, case, tensors)

    def call_and_wait() -> None:
        call()
        device.synchronize()

    benchmark.group = replace(case, implementation="").id.lstrip("/")
    began = perf_counter()
    benchmark(call if case.device == "cpu" else call_and_wait)
    timed = TimedCall(ArmRole.SUBJECT, case.implementation, partial(bind, function, case))
    subject = Sampler(timed, device, Cache.WARM)
    subject.bind([tensors])  # for the check after the timing
    return Sampled(None, (), perf_counter() - began, 0.0, tensors, subject)
