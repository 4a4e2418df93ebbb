"""Cases of a base revision, run in one process with those of this revision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from factories.git_repository import LAYER_NORM
from factories.two_revisions import CONTRACT, Open

from harness.measure.environment import compiler
from harness.records import Allocation, Budget, Case, Measurement, Mode, Record, Status
from harness.regression.ab import BASE, run_base_case, time_against_base
from harness.regression.revision import Checkout
from harness.run.call import function_of
from harness.run.case import CaseRunner
from harness.run.fleet import Job
from implementations import find


def run(
    function: Callable[[CaseRunner, Job], Record],
    case: Case,
    measurements: tuple[Measurement, ...],
    checkout: Checkout,
) -> Record:
    job = Job(case, measurements, QUICK, function=function, options=checkout)
    return function(CaseRunner("here", Allocation.DEFAULT), job)


def case_of(target: str, **changes: object) -> Case:
    return replace(Case(implementation=target, shape=(8, 32)), **changes)  # type: ignore[arg-type]


QUICK = Budget(min_epochs=1, max_epochs=1, limit_s=0.1)


@pytest.mark.parametrize(
    ("where", "status"),
    [("base_1.implementations.contract", Status.UNSUPPORTED), ("numba.errors", Status.ERROR)],
)
def test_an_unsupported_error_of_the_base_is_unsupported(
    opened: Open, where: str, status: Status
) -> None:
    text = CONTRACT.replace("(Exception):\n", f"(Exception):\n    __module__ = {where!r}\n")
    checkout = opened({"implementation.py": text}, {})
    record = run(run_base_case, case_of(BASE + "implementation.py:f"), (), checkout)
    assert record.status is status
    assert record.reason.endswith("not on a Sunday")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, as it loads the compiler
@pytest.mark.parametrize(
    "mode",
    [
        Mode.EAGER,
        pytest.param(
            Mode.COMPILED,
            marks=pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler"),
        ),
    ],
)
def test_a_case_is_timed_in_turn_with_its_base_only(opened: Open, mode: Mode) -> None:
    checkout = opened({"implementation.py": LAYER_NORM}, {"implementation.py": LAYER_NORM})
    case = case_of("implementation.py:layer_norm", mode=mode)
    record = run(time_against_base, case, (Measurement.LATENCY,), checkout)
    assert record.status is Status.OK
    assert record.latency is not None
    assert [arm.role for arm in record.latency.arms] == ["subject", "reference"]
    assert record.latency.reference_ratio is not None


def test_an_exception_of_the_base_is_an_error(opened: Open) -> None:
    checkout = opened(
        {"implementation.py": "def layer_norm(*_): raise OSError('no')"},
        {"implementation.py": LAYER_NORM},
    )
    case = case_of("implementation.py:layer_norm")
    record = run(time_against_base, case, (Measurement.LATENCY,), checkout)
    assert (record.status, record.reason) == (Status.ERROR, "OSError: no")
    assert record.latency is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, as it loads the compiler
def test_compiled_code_is_kept_while_the_reference_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    native = find("native")
    resets: list[None] = []
    monkeypatch.setattr(torch.compiler, "reset", lambda: resets.append(None))
    function_of(native, Mode.COMPILED, keep=True)
    assert not resets
    function_of(native, Mode.COMPILED)
    assert resets
