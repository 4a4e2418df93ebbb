"""The calls timed in turn for a case, the cases that are declined, and the bytes that must move."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import implementations
from harness.cases import LAYOUTS, make_inputs
from harness.records import Affine, ArmRole, Case, Direction, Mode
from harness.run import timing as module
from harness.run.timing import model_bytes, refusal, result_bytes, timed_calls_of

CASE = Case(implementation="native", shape=(16, 32))
LARGE = replace(CASE, shape=(256, 1024))  # x of 1 MiB
X, WIDTH = 16 * 32 * 4, 32 * 4
NATIVE = implementations.find("native")
TWO_PASS = implementations.find("two_pass")


def names(case: Case) -> list[tuple[ArmRole, str]]:
    return [(timed.role, timed.name) for timed in timed_calls_of(TWO_PASS.function, case)]


# --- what is timed in turn -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "copies"),
    [("cpu", ["torch copy_", "numpy copyto"]), ("cuda", ["torch copy_", "torch add"])],
)
def test_the_reference_and_two_copies_are_timed_with_a_case(device: str, copies: list[str]) -> None:
    assert names(replace(CASE, implementation="two_pass", device=device)) == [
        (ArmRole.SUBJECT, "two_pass"),
        (ArmRole.REFERENCE, "native"),
        *((ArmRole.CEILING, name) for name in copies),
    ]


def test_from_one_megabyte_on_a_streamed_copy_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    streamed = (ArmRole.CEILING, "streamed copy")
    monkeypatch.setattr(module, "can_stream", lambda: True)
    assert streamed in names(LARGE)
    assert streamed not in names(replace(LARGE, shape=(255, 1024)))
    assert streamed not in names(replace(LARGE, dtype="bfloat16"))
    assert streamed not in names(replace(LARGE, layout="transposed"))
    monkeypatch.setattr(module, "can_stream", lambda: False)
    assert streamed not in names(LARGE)


def test_a_reference_that_declines_the_case_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    choosy = replace(NATIVE, dtypes=frozenset({"float64"}))
    monkeypatch.setattr(module, "REFERENCE", choosy)
    assert ArmRole.REFERENCE not in {role for role, _ in names(CASE)}
    assert ArmRole.REFERENCE in {role for role, _ in names(replace(CASE, dtype="float64"))}


@pytest.mark.parametrize("copy", ["torch copy_", "numpy copyto"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(3, 4, 5), (1, 8), (0, 5), (5, 0)], ids=str)
def test_a_copy_copies_x_of_any_dtype_and_layout(
    monkeypatch: pytest.MonkeyPatch, copy: str, dtype: str, layout: str, shape: tuple[int, ...]
) -> None:
    made: list[torch.Tensor] = []
    empty_like = torch.empty_like

    def watched(tensor: torch.Tensor) -> torch.Tensor:
        made.append(empty_like(tensor))
        return made[-1]

    monkeypatch.setattr(torch, "empty_like", watched)
    case = Case(implementation="native", shape=shape, dtype=dtype, layout=layout)
    (x, *_) = tensors = make_inputs(case).tensors
    (found,) = (timed for timed in timed_calls_of(NATIVE.function, case) if timed.name == copy)
    found.prepare(tensors)()
    (out,) = made
    if copy == "numpy copyto" and x.is_neg():  # numpy copies what lies in memory
        x = torch._neg_view(x)
    assert torch.equal(out.view(x.dtype), x)


# --- what is declined ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declared", "case", "why"),
    [
        ({"devices": frozenset({"cuda"})}, {}, "cpu"),
        ({"dtypes": frozenset({"float64"})}, {}, "float32"),
        ({"forward_only": True}, {"direction": Direction.BACKWARD}, "gradient"),
        ({"forward_only": True}, {"direction": Direction.FORWARD}, None),
        ({}, {}, None),
    ],
    ids=str,
)
def test_a_case_is_declined_by_what_the_implementation_declares(
    declared: dict[str, Any], case: dict[str, Any], why: str | None
) -> None:
    found = refusal(replace(NATIVE, **declared), replace(CASE, **case))
    assert found is None if why is None else why in (found or "")


@pytest.mark.parametrize(
    ("device", "mode", "declined"),
    [("cpu", Mode.COMPILED, True), ("cpu", Mode.EAGER, False), ("cuda", Mode.COMPILED, False)],
)
def test_compiling_for_the_cpu_needs_a_compiler(
    monkeypatch: pytest.MonkeyPatch, device: str, mode: Mode, declined: bool
) -> None:
    monkeypatch.setattr(module, "compiler", lambda: None)
    why = refusal(NATIVE, replace(CASE, device=device, mode=mode))
    assert (why is not None) is declined
    assert why is None or "g++" in why


# --- bytes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "moved"),
    [
        ({"affine": Affine.WEIGHT}, 2 * X + WIDTH),
        ({"affine": Affine.BIAS}, 2 * X + WIDTH),
        ({"affine": Affine.NONE}, 2 * X),
        ({"dtype": "bfloat16"}, X + 2 * WIDTH),  # the parameters stay float32
        ({"shape": (0, 5)}, 2 * 4 * 5),
        ({"shape": (5, 0)}, 0),
    ],
    ids=str,
)
def test_bytes_that_must_move_are_those_of_the_tensors_that_are_given(
    change: dict[str, Any], moved: int
) -> None:
    case = replace(CASE, **change)
    assert model_bytes(case, make_inputs(case)) == moved


@pytest.mark.parametrize(
    ("direction", "moved", "results"),
    [
        (Direction.FORWARD, 2 * X + 2 * WIDTH, X),
        # x, dy, weight read; dx, dweight, dbias written
        (Direction.BACKWARD, 3 * X + 3 * WIDTH, X + 2 * WIDTH),
        # both, with y written between them
        (Direction.FORWARD_BACKWARD, 5 * X + 5 * WIDTH, 2 * X + 2 * WIDTH),
    ],
)
def test_bytes_that_must_move_are_those_of_each_tensor_once_in_each_pass(
    direction: Direction, moved: int, results: int
) -> None:
    case = replace(CASE, direction=direction)
    inputs = make_inputs(case)
    assert model_bytes(case, inputs) == moved
    assert result_bytes(case, inputs) == results
