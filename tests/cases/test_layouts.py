"""Layouts: where values are in memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from harness.cases.inputs import LAYOUTS, make_inputs
from harness.records import Case, Direction

CASE = Case(implementation="native", shape=(6, 33), direction=Direction.BACKWARD)
SHAPES = [(6, 33), (4, 3, 5), (2, 3, 4, 5), (7,), (1, 1), (0, 5), (5, 0)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_keeps_shape_and_values(layout: str, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    placed = LAYOUTS[layout](x)
    assert placed.shape == x.shape
    assert placed.dtype == x.dtype
    if layout == "expanded":  # one row's memory holds one row's values
        x = x[:1].expand(x.shape)
    assert torch.equal(placed, x)


@pytest.mark.parametrize(
    ("layout", "shape", "offset", "stride"),
    [
        ("contiguous", (4, 5), 0, (5, 1)),
        ("storage_offset", (4, 5), 1, (5, 1)),
        ("padded_rows", (4, 5), 0, (8, 1)),
        ("transposed", (4, 5), 0, (1, 4)),
        ("transposed", (2, 3, 5), 0, (1, 2, 6)),
        ("every_second", (4, 5), 0, (10, 2)),
        ("channels_last", (2, 3, 5, 7), 0, (105, 1, 21, 3)),
        ("channels_last", (4, 5), 0, (5, 1)),
        ("sequence_first", (4, 6, 64), 0, (64, 256, 1)),
        ("sequence_first", (4, 5), 0, (5, 1)),
        ("sliced_middle", (4, 6, 5), 0, (45, 5, 1)),
        ("sliced_middle", (4, 5), 0, (5, 1)),
        ("expanded", (4, 5), 0, (0, 1)),
        ("negated", (4, 5), 0, (5, 1)),
    ],
)
def test_a_layout_has_its_offset_and_strides(
    layout: str, shape: tuple[int, ...], offset: int, stride: tuple[int, ...]
) -> None:
    placed = LAYOUTS[layout](torch.zeros(shape))
    assert (placed.storage_offset(), placed.stride()) == (offset, stride)
    assert placed.is_neg() == (layout == "negated")


@pytest.mark.parametrize(
    ("layout", "shape", "around", "unused"),
    [
        ("padded_rows", (4, 5), (4, 8), (..., slice(5, None))),
        ("every_second", (4, 5), (4, 10), (..., slice(1, None, 2))),
        ("sliced_middle", (4, 6, 5), (4, 9, 5), (slice(None), slice(6, None))),
    ],
)
def test_unused_memory_is_nan(
    layout: str, shape: tuple[int, ...], around: tuple[int, ...], unused: tuple[object, ...]
) -> None:
    placed = LAYOUTS[layout](torch.zeros(shape))
    memory = placed.as_strided(around, torch.empty(around).stride())
    assert bool(memory[unused].isnan().all())
    assert int(memory.isnan().sum()) == memory.numel() - placed.numel()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_case_gets_the_layout_it_names_on_its_device(layout: str) -> None:
    found = make_inputs(replace(CASE, layout=layout))
    assert found.x.stride() == LAYOUTS[layout](torch.zeros(CASE.shape)).stride()
    # on the device without memory: a copy to a device would close the gaps between elements
    elsewhere = make_inputs(replace(CASE, device="meta", layout=layout))
    assert {tensor.device.type for tensor in elsewhere.tensors} == {"meta"}
    assert elsewhere.x.stride() == found.x.stride()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_gradient_of_batches_lies_as_x_does_and_any_other_is_contiguous(layout: str) -> None:
    inputs = make_inputs(replace(CASE, shape=(4, 6, 5), layout=layout))
    plain = make_inputs(replace(CASE, shape=(4, 6, 5)))
    assert inputs.dy is not None
    assert plain.dy is not None
    lies_as_x_does = layout in {"sequence_first", "sliced_middle"}
    assert inputs.dy.stride() == (inputs.x.stride() if lies_as_x_does else (30, 5, 1))
    assert torch.equal(inputs.dy, plain.dy)
