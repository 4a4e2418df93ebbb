"""The fused kernels are LayerNorms for all data, arguments and lengths of a row, also in autograd.

They run on a GPU, or interpreted by Triton on the CPU if TRITON_INTERPRET=1 was in the environment
before Python started. test_fused_layout.py starts such a process in every test run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from factories.operands import operands
from torch import Tensor

from harness.numerics import measure_errors
from harness.records import Affine, Case, Direction, Status
from harness.report import headline
from harness.run import Judged
from harness.run.attempt import attempt
from harness.verify import verify
from implementations import Implementation, find
from implementations.triton import launch
from implementations.triton import layout as layouts

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"

# The interpreter takes seconds for a row that no GPU program can hold. The fixture `shrunk` divides
# the columns of all tiles by this number, so that shorter rows go through the same kernels.
SHRINK = 32 if INTERPRETED else 1
UNIT = 1024 // SHRINK
LONG, LONG_ALIGNED = 16 * UNIT + 51, 16 * UNIT + 48  # read element by element, and by 16 bytes

pytestmark = [
    pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed"),
    pytest.mark.skipif(
        not INTERPRETED and not torch.cuda.is_available(),
        reason="needs a GPU, or TRITON_INTERPRET=1, which test_fused_layout.py sets",
    ),
    # of numpy, in which Triton interprets infinity and NaN
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*TRITON_DEFAULT_FP_FUSION:UserWarning"),
]
# too large to interpret, or about scheduling
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

every_name = pytest.mark.parametrize(
    "name", ["triton_one_pass", "triton_two_pass", "triton_welford", "triton_recentred"]
)


@pytest.fixture(autouse=True, scope="module")
def _bfloat16_is_rounded() -> Iterator[None]:
    """Make the interpreter round float32 to bfloat16 as a GPU does, instead of truncating."""
    if not INTERPRETED:
        yield
        return
    import triton.language as tl
    from triton.runtime import interpreter

    convert = interpreter._convert_float

    def rounded(data: Any, dtype: Any, to: Any, rounding_mode: Any) -> Any:
        if (dtype, to) != (tl.float32, tl.bfloat16):
            return convert(data, dtype, to, rounding_mode)
        bits = torch.from_numpy(data.copy()).bfloat16().view(torch.int16)
        return bits.numpy().view("uint16")

    interpreter._convert_float = rounded
    yield
    interpreter._convert_float = convert


@pytest.fixture
def shrunk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Divide the columns of every tile by SHRINK."""

    def smaller(layout: layouts.Layout) -> layouts.Layout:
        return replace(layout, columns=layout.columns // SHRINK)

    for name in ("FORWARD", "BACKWARD"):
        table = {
            itemsize: {columns // SHRINK: smaller(layout) for columns, layout in by_columns.items()}
            for itemsize, by_columns in getattr(layouts, name).items()
        }
        monkeypatch.setattr(layouts, name, table)
    for name in ("SUMMING", "JOINING", "WRITING", "GRADIENTS"):
        monkeypatch.setattr(layouts, name, smaller(getattr(layouts, name)))
    for name in ("LONG_BLOCK", "SHORT"):
        monkeypatch.setattr(layouts, name, getattr(layouts, name) // SHRINK)
    launch.forget_plans()
    yield
    launch.forget_plans()


def trial(name: str, shape: tuple[int, ...], dtype: str, **axes: Any) -> Judged:
    given = {"param_dtype": dtype, "direction": Direction.BACKWARD, **axes}
    case = Case(implementation=name, shape=shape, dtype=dtype, device=DEVICE, **given)
    return attempt(find(name), case, measure=measure_errors)


def assert_right(*trials: Judged) -> None:
    """Assert that no trial failed, and that at least one is within the algorithm's guarantee."""
    wrong = {Status.WRONG, Status.ERROR, Status.UNSUPPORTED}
    assert [(trial.case.id, trial.reason) for trial in trials if trial.status in wrong] == []
    assert any(trial.status is Status.OK for trial in trials)


def tensors(*shape: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Draw x, weight, bias and dy."""
    return [tensor.to(DEVICE) for tensor in operands(shape, dtype=dtype)]


def gradients(
    norm: Implementation, given: tuple[Tensor, ...], dy: Tensor, wanted: tuple[int, ...] = (0, 1, 2)
) -> tuple[Tensor, ...]:
    leaves = [tensor.clone().requires_grad_(index in wanted) for index, tensor in enumerate(given)]
    y = norm(leaves[0], (leaves[0].shape[-1],), leaves[1], leaves[2])
    return torch.autograd.grad(y, [leaves[index] for index in wanted], dy)


# --- data and arguments --------------------------------------------------------------------------


@needs_gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@every_name
def test_each_passes_the_whole_short_verification(name: str, dtype: str) -> None:
    verdict = verify(name, quick=True, dtypes=[dtype], device=DEVICE)
    assert verdict.passed, headline(verdict)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@every_name
def test_each_is_within_its_bound_for_all_data(name: str, dtype: str) -> None:
    distributions = ["normal", "last_digit", "nan_row"]
    if dtype == "float32":
        distributions += ["offset_1e4", "constant", "outlier_first"]
    assert_right(
        *(trial(name, (5, 64), dtype, distribution=kind) for kind in distributions),
        trial(name, (2, 1008), dtype),  # read by 16 bytes, the last of which are beyond the row
        trial(name, (3, 7), dtype, direction=Direction.FORWARD, param_dtype="float32"),
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_recentred_kernel_is_within_its_bound_for_all_arguments(dtype: str) -> None:
    name = "triton_recentred"
    assert_right(
        *(trial(name, shape, dtype) for shape in [(1, 1), (67, 2)]),
        *(trial(name, (3, 31), dtype, affine=affine) for affine in Affine),
        *(trial(name, (3, 31), dtype, eps=eps) for eps in (0.0, 0.5)),
        *(trial(name, (3, 31), dtype, param_dtype=other) for other in ("float32", "float64")),
        *(trial(name, (2, 3, 5, 7), dtype, normalized_dims=dims) for dims in (2, 3)),
        trial(name, (5, 33), dtype, direction=Direction.FORWARD),
    )


LAYOUTS = ["storage_offset", "padded_rows", "every_second", "expanded", "negated"]


@every_name
def test_each_reads_rows_wherever_they_are(name: str) -> None:
    assert_right(
        *(trial(name, (7, 33), "float32", layout=layout) for layout in LAYOUTS),
        trial(name, (2, 3, 5, 7), "bfloat16", layout="channels_last", normalized_dims=2),
    )


# --- lengths -------------------------------------------------------------------------------------


# the first length with another kernel or layout, read element by element and by 16 bytes
@pytest.mark.usefixtures("shrunk")
@pytest.mark.parametrize(
    ("hidden", "dtype"),
    [
        (UNIT + 6, "float32"),  # one row per program
        (9 * UNIT, "bfloat16"),  # dweight by a kernel of its own
        (LONG, "float32"),  # y and all gradients in blocks
        (LONG_ALIGNED, "bfloat16"),
        (5 * UNIT + 3, "float64"),  # the gradients in blocks, y not
    ],
)
def test_rows_of_every_length_are_within_the_bound(hidden: int, dtype: str) -> None:
    assert_right(trial("triton_recentred", (2, hidden), dtype))


@needs_gpu
@pytest.mark.parametrize("hidden", [17000, *sorted(layouts.FORWARD[2])])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_every_layout_of_the_tables_can_be_started(hidden: int, dtype: str) -> None:
    assert_right(trial("triton_recentred", (300, hidden), dtype))


@pytest.mark.usefixtures("shrunk")
@every_name
def test_each_is_within_its_bound_for_rows_of_many_blocks(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layouts, "JOINING", replace(layouts.JOINING, columns=2))
    monkeypatch.setattr(layouts, "GRADIENTS", replace(layouts.GRADIENTS, programs=64))
    assert layouts.gradient_parts(3, LONG, 4) == 3
    with_gaps = {"layout": "padded_rows", "affine": Affine.WEIGHT}
    assert_right(trial(name, (3, LONG), "float32", distribution="outlier_first", **with_gaps))


@pytest.mark.usefixtures("shrunk")
def test_an_infinite_dy_of_a_long_row_affects_only_its_column_of_dbias() -> None:
    x, weight, bias, dy = tensors(2, LONG)
    expected = dy.double().sum(0).float()
    dy[1, LONG - 30] = expected[LONG - 30] = float("inf")
    (dbias,) = gradients(find("triton_recentred"), (x, weight, bias), dy, (2,))
    torch.testing.assert_close(dbias, expected)


@pytest.mark.usefixtures("shrunk")
@pytest.mark.parametrize("shape", [(8, 96), (2, LONG)])
def test_the_recentred_kernel_is_accurate_at_a_high_condition_number(
    shape: tuple[int, int],
) -> None:
    found = trial("triton_recentred", shape, "float32", distribution="last_digit")
    assert (found.status, found.reason) == (Status.OK, "")
    assert found.errors.condition_max_ratio > 5e6


def test_centring_once_is_outside_the_bound_of_recentring() -> None:
    claim = replace(find("triton_two_pass"), algorithm=find("triton_recentred").algorithm)
    case = Case(implementation=claim.name, shape=(4, 300), device=DEVICE, distribution="offset_1e4")
    assert attempt(claim, case).status is Status.WRONG


# --- autograd and torch.compile ------------------------------------------------------------------


@pytest.mark.usefixtures("shrunk")
@pytest.mark.parametrize(("rows", "hidden"), [(9, 33), (2, LONG)])
def test_a_gradient_computed_alone_and_a_row_in_another_batch_have_the_same_bits(
    rows: int, hidden: int
) -> None:
    x, weight, bias, dy = tensors(rows, hidden)
    norm = find("triton_recentred")
    together = gradients(norm, (x, weight, bias), dy)
    for wanted in ((0,), (1, 2)):
        alone = gradients(norm, (x, weight, bias), dy, wanted)
        assert all(map(torch.equal, alone, [together[index] for index in wanted]))
    (part,) = gradients(norm, (x[:1], weight, bias), dy[:1], (0,))
    assert torch.equal(together[0][:1], part)
    assert torch.equal(norm(x, (hidden,))[:1], norm(x[:1], (hidden,)))


@every_name
def test_dweight_and_dbias_have_the_dtypes_of_their_parameters(name: str) -> None:
    x, weight, bias, dy = tensors(6, 33, dtype=torch.bfloat16)
    given = (x, weight.float(), bias.double())
    found = gradients(find(name), given, dy[:1].expand(6, 33))
    assert [gradient.dtype for gradient in found] == [tensor.dtype for tensor in given]


def test_a_second_derivative_is_refused() -> None:
    x, weight, bias, dy = (tensor.requires_grad_() for tensor in tensors(6, 33))
    y = find("triton_recentred")(x, (33,), weight, bias)
    (dx,) = torch.autograd.grad(y, x, dy, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx.sum().backward()


def test_a_derivative_in_forward_mode_is_refused() -> None:
    x, weight, bias, direction = tensors(6, 33)
    norm = find("triton_recentred")
    with pytest.raises(NotImplementedError, match="forward mode"):
        torch.func.jvp(lambda at: norm(at, (33,), weight, bias), (x,), (direction,))


@pytest.mark.parametrize("shape", [(0, 5), (2, 0, 3)])
def test_an_empty_x_gives_an_empty_y_and_gradients_of_zero(shape: tuple[int, ...]) -> None:
    x, weight, bias, dy = tensors(*shape)
    norm = find("triton_recentred")
    assert norm(x, shape[-1:], weight, bias).shape == shape
    found = gradients(norm, (x, weight, bias), dy)
    assert all(map(torch.equal, found, map(torch.zeros_like, (x, weight, bias))))


def test_it_is_traced_whole_by_torch_compile() -> None:
    x, weight, bias, dy = tensors(6, 33)
    eager = find("triton_recentred")
    torch.compiler.reset()
    traced = torch.compile(eager.function, fullgraph=True, backend="aot_eager")
    norm = replace(eager, function=traced)
    found = gradients(norm, (x, weight, bias), dy)
    assert all(map(torch.equal, found, gradients(eager, (x, weight, bias), dy)))
    with torch.no_grad():
        assert torch.equal(norm(x, (33,), weight, bias), eager(x, (33,), weight, bias))
