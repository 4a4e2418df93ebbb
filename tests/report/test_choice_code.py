"""The printed code runs, and uses the implementations that were chosen."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from factories.choice_records import (
    OTHER_MACHINE,
    call,
    choices_among,
    ran,
    workload_choices,
)

from harness.records import Direction, Mode, NotComparableError, NotMeasuredError, Record, Status
from harness.report.choice_code import python_lines
from harness.selection import Accuracy, Choices, Requirements
from harness.selection.workload import WorkloadChoice

TRAINING = {"direction": Direction.FORWARD_BACKWARD}


def printed(choices: Choices, for_workload: tuple[WorkloadChoice, ...] = ()) -> str:
    return "\n".join(python_lines(choices, for_workload, ["evidence: made up\nby hand"]))


def code_for(*records: Record) -> str:
    return printed(choices_among(*records))


def run_code(code: str) -> dict[str, Any]:
    scope: dict[str, Any] = {}
    exec(compile(code, "printed", "exec"), scope)
    return scope


def name_for(scope: dict[str, Any], *shape: int, gradient: bool = False) -> str:
    """Return the implementation that the printed table has for a call."""
    x = torch.zeros(*shape)
    name: str = scope["dispatch"].choose(x, shape[-1:], gradient=gradient).name
    return name


def test_one_choice_for_all_is_run_for_every_shape() -> None:
    code = code_for(ran("two_pass", 0.5), ran("native", 1.0), ran("two_pass", 0.5, **TRAINING))
    scope = run_code(code)
    assert name_for(scope, 9, 99) == "two_pass"
    x = torch.randn(4, 16)
    expected = torch.nn.functional.layer_norm(x, (16,))
    torch.testing.assert_close(scope["LayerNorm"](16)(x), expected)


def test_several_choices_are_a_table_that_the_module_runs() -> None:
    code = code_for(
        ran("native", 1.0), ran("two_pass", 0.5, shape=(512, 768)), ran("one_pass", 0.5, **TRAINING)
    )
    scope = run_code(code)
    assert name_for(scope, 64, 768) == "native"
    assert name_for(scope, 512, 768) == "two_pass"
    assert name_for(scope, 64, 768, gradient=True) == "one_pass"
    assert name_for(scope, 9, 99) == "native"  # a shape that was not measured
    x = torch.randn(512, 768)
    expected = torch.nn.functional.layer_norm(x, (768,))
    torch.testing.assert_close(scope["LayerNorm"](768).eval()(x), expected)


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # torch's own, on import
def test_a_compiled_candidate_is_compiled_and_named_so() -> None:
    code = code_for(ran("one_pass", 0.5, mode=Mode.COMPILED))
    assert name_for(run_code(code), 9, 99) == "one_pass (compiled)"
    code = code_for(ran("one_pass", 0.5, mode=Mode.COMPILED), ran("native", 1.0, shape=(512, 768)))
    assert name_for(run_code(code), 64, 768) == "one_pass (compiled)"


def test_an_inaccurate_choice_is_a_comment() -> None:
    records = [
        ran("native", 1.0, status=Status.INACCURATE, error_ulp=21.9),
        ran("two_pass", 2.0, error_ulp=0.5),
    ]
    code = printed(choices_among(*records, requirements=Requirements(accuracy=Accuracy.INACCURATE)))
    assert (
        "# native for 64x768 float32 cpu forward is inaccurate: y is up to 21.9 ulp off, where "
        "two_pass is up to 0.5 ulp off\n" in code
    )


def test_a_name_cannot_end_its_own_quotes() -> None:
    hostile = "a.py:f'); raise SystemExit('"
    code = code_for(ran(hostile, 1.0), ran("native", 1.0, shape=(512, 768)))
    assert repr(hostile) in code
    compile(code, "printed", "exec")


def test_choices_of_two_machines_are_refused() -> None:
    with pytest.raises(NotComparableError, match="give the RUN of one"):
        code_for(ran("native", 1.0), ran("native", 1.0, environment=OTHER_MACHINE.fingerprint))


def test_no_choice_is_refused() -> None:
    with pytest.raises(NotMeasuredError, match="no candidate is eligible"):
        code_for(ran("native", 1.0, status=Status.WRONG))


def test_a_workload_is_the_one_candidate_for_all_or_else_a_table_of_its_calls() -> None:
    records = [ran("native", 1.0), ran("one_pass", 0.5, shape=(512, 768))]
    native = ran("native", 1.0, shape=(512, 768))
    calls = [call((64, 768), 15), call((512, 768))]
    for_workload = workload_choices(calls, *records, native)
    one = run_code(printed(choices_among(*records, native), for_workload))
    assert name_for(one, 512, 768) == "native"
    for_workload = workload_choices(calls, *records)
    several = run_code(printed(choices_among(*records), for_workload))
    assert name_for(several, 512, 768) == "one_pass"


def test_the_code_needs_only_the_implementations() -> None:
    code = code_for(ran("native", 1.0), ran("one_pass", 0.5, shape=(512, 768)))
    ending = "\nimport sys; sys.exit('harness' in sys.modules)"
    subprocess.run([sys.executable, "-c", code + ending], check=True)
