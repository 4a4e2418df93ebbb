"""Every implementation keeps the contract; two are accurate at every condition number."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from factories.operands import every_implementation, operands, y_and_gradients
from torch import Tensor
from torch.nn import functional

from harness.measure import compiler
from harness.records import Direction, Mode
from harness.verify import verify_case
from implementations import ALL, PEERS, Implementation, recentred, shifted
from implementations.contract import UnsupportedError

# (shape of x, normalized_shape): one to three axes, no batch axis, nothing at all, one element,
# and lengths on and off multiples of 64
SHAPES = [
    ((4, 64), (64,)),
    ((4, 65), (65,)),
    ((3, 200), (200,)),
    ((2, 3, 5, 7), (3, 5, 7)),
    ((2, 2, 13, 11), (13, 11)),
    ((9,), (9,)),
    ((6, 1), (1,)),
    ((0, 7), (7,)),
    ((3, 0), (0,)),
    ((2, 0, 3), (0, 3)),
]


# --- the list ------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [*ALL, *PEERS], ids=lambda norm: norm.name)
def test_an_implementation_has_a_summary_a_source_and_the_signature_of_the_contract(
    norm: Implementation,
) -> None:
    assert norm.summary.endswith(".")
    assert norm.source
    assert norm.name == norm.function.__name__
    parameters = inspect.signature(norm.function).parameters
    assert list(parameters) == ["x", "normalized_shape", "weight", "bias", "eps"]
    assert [parameter.default for parameter in parameters.values()][2:] == [None, None, 1e-5]


# --- values --------------------------------------------------------------------------------------

EXAMPLES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "data" / "worked_examples.json").read_text(encoding="utf-8")
)["examples"]
PRINTED = 0.5e-4 * (1 + 1e-6)  # half a unit in the last of four decimals, and its rounding


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example["name"])
@every_implementation
def test_worked_examples_agree_with_their_printed_digits(
    norm: Implementation, example: dict[str, Any], dtype: torch.dtype
) -> None:
    x = torch.tensor(example["x"], dtype=dtype)
    y = norm(x, example["normalized_shape"], eps=example["eps"])
    expected = torch.tensor(example["y"], dtype=torch.float64)
    assert bool(((y.double() - expected).abs() <= PRINTED).all())


@pytest.mark.parametrize(
    ("given", "eps"), [("weight bias", 1e-5), ("weight", 3.0), ("bias", 1e-5), ("", 3.0)]
)
@pytest.mark.parametrize(("shape", "normalized"), SHAPES, ids=str)
@every_implementation
def test_it_equals_torch_forward_and_backward(
    norm: Implementation,
    shape: tuple[int, ...],
    normalized: tuple[int, ...],
    given: str,
    eps: float,
) -> None:
    x, weight, bias, dy = operands(shape, len(normalized), torch.float64)
    parameters = (weight if "weight" in given else None, bias if "bias" in given else None)
    results = (
        y_and_gradients(function, dy, x, normalized, *parameters, eps)
        for function in (norm, functional.layer_norm)
    )
    # benign float64: a few rounding errors of a few hundred terms, times 1/sqrt(eps) where N = 1
    torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)


# --- contract ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@every_implementation
def test_parameters_may_be_float32_for_every_dtype_of_x(
    norm: Implementation, dtype: torch.dtype
) -> None:
    if norm.name == "native" and dtype == torch.float64:
        pytest.skip("torch does not support float32 parameters with float64")
    x, weight, bias, _ = operands((4, 30))
    x = x.to(dtype)
    y = norm(x, (30,), weight, bias)
    expected = functional.layer_norm(x.double(), (30,), weight.double(), bias.double())
    assert y.dtype == dtype
    # a few roundings of values up to 8 in the dtype itself
    allowed = 64 * max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
    assert float((y.double() - expected).abs().max()) <= allowed


@pytest.mark.parametrize(
    ("normalized", "parameters", "words"),
    [
        ((31,), {}, "normalized_shape"),
        ((), {}, "normalized_shape"),
        ((30,), {"weight": torch.ones(1)}, "weight"),
        ((30,), {"bias": torch.ones(4, 30)}, "bias"),
    ],
)
@every_implementation
def test_shapes_that_do_not_agree_are_refused_and_not_broadcast(
    norm: Implementation, normalized: tuple[int, ...], parameters: dict[str, Tensor], words: str
) -> None:
    with pytest.raises(RuntimeError if norm.name == "native" else ValueError, match=words):
        norm(torch.zeros(4, 30), normalized, **parameters)


# torch.func.jvp uses what torch itself has deprecated
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@every_implementation
def test_a_derivative_in_forward_mode_is_right_or_raises(norm: Implementation) -> None:
    x, weight, bias, direction = operands(dtype=torch.float64)

    def along(function: Any) -> Tensor:
        return torch.func.jvp(lambda at: function(at, (32,), weight, bias), (x,), (direction,))[1]

    try:
        found = along(norm)
    except (NotImplementedError, UnsupportedError):
        return
    torch.testing.assert_close(found, along(functional.layer_norm), rtol=1e-10, atol=1e-10)


# --- accuracy ------------------------------------------------------------------------------------

# normal rows with condition numbers from 10 to 1e7, and rows with one of 2e8
CONDITIONED = [*(f"offset_1e{exponent}" for exponent in (1, 3, 5, 7)), "last_digit"]
FEW_ULP = 64  # a benign row is 4 to 12 ulp off; two passes are 2000 ulp off at 1e3
FOLDED_ULP = 1e6  # the error at 1e8 with a single centring

accurate = pytest.mark.parametrize("norm", [recentred, shifted], ids=lambda norm: norm.name)


def errors_ulp(norm: Implementation, distribution: str, **axes: Any) -> list[float]:
    """Return the errors for 64 rows of 1000 elements with weight and bias."""
    given = {"shape": (64, 1000), "param_dtype": axes.get("dtype", "float32"), **axes}
    errors: Any = verify_case(norm, distribution=distribution, **given).errors
    return [output.scaled_max_ulp for output in errors.outputs]


@pytest.mark.parametrize("direction", [Direction.FORWARD, Direction.BACKWARD])
@pytest.mark.parametrize(
    ("distribution", "dtype"),
    [*((name, "float32") for name in CONDITIONED), ("last_digit", "float64")],
)
@accurate
def test_no_digits_are_lost_at_condition_numbers_of_10_to_1e8(
    norm: Implementation, distribution: str, dtype: str, direction: Direction
) -> None:
    assert max(errors_ulp(norm, distribution, dtype=dtype, direction=direction)) < FEW_ULP


@pytest.mark.parametrize("distribution", ["outlier_first", "outlier_last"])
def test_an_outlier_is_never_the_pivot(distribution: str) -> None:
    # the first element as pivot costs over a thousand
    assert max(errors_ulp(shifted, distribution)) < FEW_ULP


# torch's own inductor uses what torch itself has deprecated
@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")
@pytest.mark.skipif(compiler() is None, reason="torch.compile needs a C++ compiler")
@accurate
def test_the_compiler_does_not_fold_a_centring_away(norm: Implementation) -> None:
    # no FEW_ULP: its sums run in the lanes of a vector, and have more roundings
    axes = {"mode": Mode.COMPILED, "direction": Direction.BACKWARD}
    assert max(errors_ulp(norm, "last_digit", **axes)) < FOLDED_ULP / 100
