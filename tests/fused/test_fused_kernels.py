"""The fused kernels are LayerNorms: on a GPU, or interpreted by Triton on the CPU.

Interpreted they run where TRITON_INTERPRET=1 was in the environment before Python started;
test_fused_interpreted.py sees to it that they do in every test run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from harness.records import Affine, Case, Direction, Status
from harness.verify import verify
from harness.verify.trial import Trial, try_case
from harness.verify.words import verdict_lines
from implementations import Implementation, find
from implementations.fused import arguments, launch, operators
from implementations.fused import layout as layouts

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"

pytestmark = [
    pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed"),
    pytest.mark.skipif(
        not INTERPRETED and not torch.cuda.is_available(),
        reason="needs a GPU, or TRITON_INTERPRET=1; test_fused_interpreted.py sees to the latter",
    ),
    # what numpy says of infinity and NaN while it plays the GPU
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*TRITON_DEFAULT_FP_FUSION:UserWarning"),
]

NAMES = ["triton_one_pass", "triton_two_pass", "triton_welford", "triton_recentred"]
DTYPES = ["float32", "bfloat16", "float16", "float64"]

every_name = pytest.mark.parametrize("name", NAMES)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


@pytest.fixture(autouse=True, scope="module")
def _bfloat16_is_rounded() -> Iterator[None]:
    """Make the interpreter round float32 to bfloat16 as a GPU does: it cuts the bits off."""
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


def trial(name: str, shape: tuple[int, ...], dtype: str, **axes: Any) -> Trial:
    case = Case(
        implementation=name,
        shape=shape,
        dtype=dtype,
        param_dtype=axes.pop("param_dtype", dtype),
        device=DEVICE,
        direction=axes.pop("direction", Direction.BACKWARD),
        **axes,
    )
    return try_case(find(name), case)


def assert_right(*trials: Trial) -> None:
    """None is wrong, and not all are beyond what the algorithm promises."""
    wrong = {Status.WRONG, Status.ERROR, Status.UNSUPPORTED}
    assert [(each.case.id, each.reason) for each in trials if each.status in wrong] == []
    assert any(each.status is Status.OK for each in trials)


def tensors(
    shape: tuple[int, ...], hidden: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, weight, bias and dy."""
    generator = torch.Generator().manual_seed(5)
    sizes = (shape, (hidden,), (hidden,), shape)
    return tuple(torch.randn(each, generator=generator).to(DEVICE, dtype) for each in sizes)


# --- verified ------------------------------------------------------------------------------------

DISTRIBUTIONS = (
    "normal",
    "offset_1e1",
    "offset_1e4",
    "last_digit",
    "constant",
    "tiny_variance",
    "outlier_first",
    "row_scales",
    "nan_row",
)


def test_the_recentred_one_passes_the_short_verification() -> None:
    verdict = verify(
        "triton_recentred", quick=True, dtypes=["float32"], device=DEVICE, fail_fast=True
    )
    assert verdict.passed, verdict_lines(verdict)
    assert verdict.out_of_guarantee == 0
    assert [each for each in verdict.declined if "beyond the largest" not in each.reason] == []


@every_dtype
@every_name
def test_each_is_within_its_bound_whatever_the_data(name: str, dtype: str) -> None:
    assert_right(
        *(trial(name, (5, 64), dtype, distribution=each) for each in DISTRIBUTIONS),
        trial(name, (2, 1008), dtype),  # read by 16 bytes, the last of which are beyond the row
    )


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((each, "float32") for each in NAMES), *(("triton_recentred", each) for each in DTYPES[1:])],
)
def test_each_is_within_its_bound_whatever_the_arguments(name: str, dtype: str) -> None:
    assert_right(
        *(trial(name, shape, dtype) for shape in [(1, 1), (67, 2), (3, 7), (33, 129)]),
        *(trial(name, (3, 31), dtype, affine=each) for each in Affine),
        *(trial(name, (3, 31), dtype, eps=each) for each in (0.0, 1e-12, 0.5)),
        *(trial(name, (3, 31), dtype, param_dtype=each) for each in ("float32", "float64")),
        *(trial(name, (2, 3, 5, 7), dtype, normalized_dims=each) for each in (2, 3)),
        trial(name, (5, 33), dtype, direction=Direction.FORWARD),
    )


@pytest.mark.parametrize(
    "layout", ["storage_offset", "padded_rows", "every_second", "expanded", "negated"]
)
@every_name
def test_each_reads_rows_wherever_they_are(name: str, layout: str) -> None:
    assert_right(
        trial(name, (7, 33), "float32", layout=layout),
        trial(name, (2, 3, 5, 7), "bfloat16", layout="channels_last", normalized_dims=2),
    )


# the first length that has another kernel or another layout, on and off 16-byte reads
LENGTHS = [
    (1030, "float32"),  # one row a program
    (9000, "float32"),  # dweight by a kernel of its own
    (9008, "bfloat16"),
    (17000, "float32"),  # y and all gradients in blocks
    (33008, "bfloat16"),
    (5000, "float64"),  # the gradients in blocks, y not
]


@pytest.mark.parametrize(("hidden", "dtype"), LENGTHS)
def test_rows_of_every_length_are_within_the_bound(hidden: int, dtype: str) -> None:
    assert_right(trial("triton_recentred", (2, hidden), dtype))


@every_name
def test_so_are_long_rows_whatever_the_statistic(name: str) -> None:
    assert_right(
        *(
            trial(name, (3, 17000), "float32", distribution=each)
            for each in ("offset_1e1", "outlier_first", "nan_row")
        ),
        trial(name, (2, 17008), "float32", layout="padded_rows", affine=Affine.WEIGHT),
    )


@every_name
def test_so_are_those_of_more_blocks_than_are_added_up_at_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layouts, "JOINING", replace(layouts.JOINING, columns=2))
    monkeypatch.setattr(layouts, "GRADIENTS", replace(layouts.GRADIENTS, programs=64))
    assert layouts.gradient_parts(6, 33000, 4) > 1
    assert_right(trial(name, (6, 33000), "float32"))


def test_an_infinite_dy_of_a_long_row_leaves_the_other_columns_of_dbias_alone() -> None:
    x, weight, bias, dy = tensors((2, 17000), 17000)
    expected = dy.double().sum(0).float()
    dy[1, 16500] = expected[16500] = float("inf")
    (dbias,) = gradients(find("triton_recentred"), (x, weight, bias), dy, (2,))
    torch.testing.assert_close(dbias, expected)


# 24 rows of 768: among so many are some that centring twice is not enough for
@pytest.mark.parametrize("shape", [(24, 768), (2, 17000)])
def test_the_condition_does_not_matter_to_the_recentred_one(shape: tuple[int, int]) -> None:
    for distribution in ("offset_1e7", "last_digit"):
        found = trial("triton_recentred", shape, "float32", distribution=distribution)
        assert (found.status, found.reason) == (Status.OK, "")
        assert found.errors is not None
        assert found.errors.condition_max_ratio > 5e6


def test_without_centring_again_the_bound_is_not_met() -> None:
    claim = replace(find("triton_two_pass"), algorithm=find("triton_recentred").algorithm)
    case = Case(implementation=claim.name, shape=(4, 300), device=DEVICE, distribution="offset_1e4")
    assert try_case(claim, case).status is Status.WRONG


# --- gradients -----------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", [33, 9000, 17000])
def test_a_gradient_is_the_same_alone_and_with_the_others(hidden: int) -> None:
    x, weight, bias, dy = tensors((2, hidden), hidden)
    norm = find("triton_recentred")
    together = gradients(norm, (x, weight, bias), dy, (0, 1, 2))
    for wanted in ((0,), (1,), (2,), (0, 2)):
        alone = gradients(norm, (x, weight, bias), dy, wanted)
        for index, found in zip(wanted, alone, strict=True):
            assert torch.equal(found, together[index])


def gradients(
    norm: Implementation, given: tuple[Tensor, ...], dy: Tensor, wanted: tuple[int, ...]
) -> tuple[Tensor, ...]:
    leaves = [each.clone().requires_grad_(index in wanted) for index, each in enumerate(given)]
    y = norm(leaves[0], (leaves[0].shape[-1],), leaves[1], leaves[2])
    return torch.autograd.grad(y, [leaves[index] for index in wanted], dy)


@every_name
def test_dweight_and_dbias_have_the_dtypes_of_their_parameters(name: str) -> None:
    x, weight, bias, dy = tensors((6, 33), 33, torch.bfloat16)
    given = (x, weight.float(), bias.double())
    found = gradients(find(name), given, dy, (0, 1, 2))
    assert [each.dtype for each in found] == [each.dtype for each in given]


def test_a_gradient_that_is_one_number_everywhere_is_taken() -> None:
    x, weight, _, _ = tensors((6, 33), 33)
    leaf = x.clone().requires_grad_()
    find("triton_recentred")(leaf, (33,), weight).sum().backward()  # an expanded dy
    again = x.clone().requires_grad_()
    functional.layer_norm(again, (33,), weight).sum().backward()
    torch.testing.assert_close(leaf.grad, again.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0), (2, 0, 3)])
def test_what_is_empty_stays_empty_and_its_gradients_are_zero(shape: tuple[int, ...]) -> None:
    x, weight, bias, dy = tensors(shape, shape[-1])
    leaves = [each.requires_grad_() for each in (x, weight, bias)]
    y = find("triton_recentred")(leaves[0], shape[-1:], leaves[1], leaves[2])
    found = torch.autograd.grad(y, leaves, dy)
    assert y.shape == shape
    assert [each.shape for each in found] == [each.shape for each in leaves]
    assert all(float(each.abs().sum()) == 0 for each in found)


# --- torch ---------------------------------------------------------------------------------------


@every_name
def test_it_is_traced_whole_by_torch_compile(name: str) -> None:
    x, weight, bias, dy = tensors((6, 33), 33)
    torch.compiler.reset()
    compiled = torch.compile(find(name).function, fullgraph=True, backend="aot_eager")
    norm = replace(find(name), function=compiled)
    expected = gradients(find(name), (x, weight, bias), dy, (0, 1, 2))
    found = gradients(norm, (x, weight, bias), dy, (0, 1, 2))
    assert all(map(torch.equal, found, expected))
    with torch.no_grad():
        assert torch.equal(norm(x, (33,), weight, bias), find(name)(x, (33,), weight, bias))


def test_the_operators_say_of_themselves_what_they_do() -> None:
    x, weight, bias, dy = tensors((6, 33), 33)
    leaf = x.clone().requires_grad_()
    arguments = (leaf, weight, bias, 33, 1e-5, "recentred", True)
    torch.library.opcheck(operators._forward, arguments)
    _, moments = launch.forward(x, weight, bias, 33, 1e-5, "recentred", True)
    given = (dy, x, weight, moments, 33, True, torch.float32, None)
    torch.library.opcheck(operators._backward, given, test_utils=("test_schema", "test_faketensor"))


def test_the_bits_of_a_row_do_not_depend_on_its_batch() -> None:
    for hidden in (33, 1000, 17000):
        x, weight, bias, dy = tensors((21, hidden), hidden)
        norm = find("triton_recentred")
        whole = gradients(norm, (x, weight, bias), dy, (0,))[0]
        part = gradients(norm, (x[:2], weight, bias), dy[:2], (0,))[0]
        assert torch.equal(whole[:2], part)
        assert torch.equal(norm(x, (hidden,))[:1], norm(x[:1], (hidden,)))


def test_rows_that_are_apart_are_read_where_they_are() -> None:
    x = torch.zeros(4, 6, 40, device=DEVICE)
    for apart in (x[:, :, :33], x[::2, 0], x[:, 1:2], x[0].expand(4, 6, 40)[:, 0]):
        hidden = apart.shape[-1]
        matrix = arguments.as_matrix(apart, apart.numel() // hidden, hidden)
        assert matrix.data_ptr() == apart.data_ptr()


# --- on a GPU ------------------------------------------------------------------------------------

on_gpu = pytest.mark.skipif(INTERPRETED, reason="needs a GPU: too large, or the same by nature")


@on_gpu
@every_dtype
@every_name
def test_each_passes_the_whole_short_verification(name: str, dtype: str) -> None:
    verdict = verify(name, quick=True, dtypes=[dtype], device=DEVICE)
    assert verdict.passed, verdict_lines(verdict)


@on_gpu
@pytest.mark.parametrize("hidden", [64, 1000, 4096, 9000, 40000])
@every_name
def test_the_same_call_gives_the_same_bits(name: str, hidden: int) -> None:
    x, weight, bias, dy = tensors((3000, hidden), hidden, torch.bfloat16)
    first = gradients(find(name), (x, weight, bias), dy, (0, 1, 2))
    for _ in range(5):
        again = gradients(find(name), (x, weight, bias), dy, (0, 1, 2))
        assert all(map(torch.equal, again, first))


@on_gpu
def test_more_elements_than_32_bits_count() -> None:
    hidden, rows = 4096, (1 << 31) // 4096 + 3
    if torch.cuda.mem_get_info()[0] < 20 << 30:
        pytest.skip("needs 20 GiB of GPU memory")
    x = torch.zeros(rows, hidden, device=DEVICE, dtype=torch.bfloat16)
    last = torch.randn(3, hidden, device=DEVICE, dtype=torch.bfloat16)
    x[-3:] = last
    norm = find("triton_recentred")
    leaf = x.requires_grad_()
    y = norm(leaf, (hidden,))
    assert torch.equal(y[-3:], norm(last, (hidden,)))
    y.backward(x.detach())
    small = last.clone().requires_grad_()
    norm(small, (hidden,)).backward(last)
    assert leaf.grad is not None
    assert small.grad is not None
    assert torch.equal(leaf.grad[-3:], small.grad)


@on_gpu
@pytest.mark.parametrize("hidden", sorted(layouts.FORWARD[2]))
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_every_layout_of_the_tables_can_be_started(hidden: int, dtype: str) -> None:
    assert_right(trial("triton_recentred", (300, hidden), dtype))
