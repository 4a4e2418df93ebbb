"""What is read of a target's source: constants, conditions, and the cases that follow from them."""

from __future__ import annotations

from pathlib import Path

import pytest
from factories.small_catalogue import use_small_catalogue
from factories.verify_targets import quick

import implementations
from harness.cases import PARAMETERS, make_inputs
from harness.records import Case, Direction
from harness.verify import Outcome
from harness.verify.code import TargetCode, code_of

_HEAD = """
import functools
import torch
from torch.nn.functional import layer_norm

LIMIT = 1 << 20
BITS = 18
LANES, SLOTS = 8, [None] * 501

class Slotted:
    __slots__ = ("limit",)

SLOTTED = Slotted()
SLOTTED.limit = 7 * 1000
KERNEL = "__global__ void f(int n) { if (n > 3 * 1000) return; } // 777"

def right(x, normalized_shape, weight=None, bias=None, eps=1e-5):
    return layer_norm(x, normalized_shape, weight, bias, eps)

def large(x): return x.numel() > LIMIT

@torch.no_grad()
def decorated(y):
    return y * (1 if y.numel() < 78_000 else 1.001)
"""
_SIGNATURE = "def target(x, normalized_shape, weight=None, bias=None, eps=1e-5):"


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try few cases before those that follow from the source."""
    use_small_catalogue(monkeypatch, largest=300, one_in=20, contract=False)


@pytest.fixture
def target(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A file with a function of these lines: right, unless they say otherwise."""
    lines = "\n    ".join(request.param)
    call = "y = right(x, normalized_shape, weight, bias, eps)"
    path = tmp_path / "mine.py"
    path.write_text(f"{_HEAD}\n{_SIGNATURE}\n    n = x.shape[-1]\n    {call}\n    {lines}\n")
    return f"{path}:target"


@pytest.mark.parametrize(
    ("target", "integers"),
    [
        (["if n > 64 * 1024: pass", "return y"], {65536}),
        (["if large(x): pass", "return y"], {1 << 20}),
        (["KERNEL", "return y"], {3000}),
        (["SLOTTED.limit < n", "return y"], {7000}),
        (["n >> BITS", "n << 11 | 5", "return y"], {1 << 18, 1 << 11}),
        (["LANES * 1000 // n", "len(SLOTS)", "return y"], {8000, 501}),
        (["return functools.partial(right, eps=7)(x, normalized_shape)"], {7}),
        # behind a decorator of another package
        (["return decorated(y)"], {78_000}),
    ],
    indirect=["target"],
)
def test_constants_are_read(target: str, integers: set[int]) -> None:
    found = code_of(implementations.find(target)).integers
    assert integers <= found
    assert 777 not in found


@pytest.mark.parametrize(
    ("source", "integers", "floats"),
    [
        ("x < 1e-4f && n <= 1 << 14 && n > 0x1000 /* 99 */", {16384, 4096}, {1e-4}),
        ("if (n >> 12) return;", {12, 4096}, set()),
        ("float4 v; half2 w; a1b = 5u;", {5}, set()),
    ],
)
def test_tokens_of_other_languages_are_numbers(
    source: str, integers: set[int], floats: set[float]
) -> None:
    code = TargetCode()
    code.add_source(source)
    assert (code.integers, code.floats) == (integers, floats)


WRONG = [
    ["return decorated(y)"],
    ["if 9000 < n <= 16384 and weight is not None: y = y * 1.001", "return y"],
    ["if large(x): y = y * 1.001", "return y"],
    ["return torch.cat([y[..., :7000], x[..., 7000:]], -1)"],
    # arithmetic alone, so that no condition tells where
    ["return y + (x.dim() == 3 and x.shape[0] > 1) * (x.shape[-2] // 700)"],
    ["return y + (x.dim() == 4 and x.shape[1] > 1) * (x.shape[-2] // 700)"],
    ["return y + (x.dim() > 2) * (x.shape[0] // 700)"],
    ["return y + (x.dim() == 4 and n == x.shape[-1]) * (x.shape[1] % 8 == 1)"],
    ["return y + (len(normalized_shape) == 3) * (x.shape[-2] // 75)"],
    ["return y if eps > 3e-9 else right(x, normalized_shape, weight, bias, 3e-9)"],
    [
        "if weight is not None and bool((weight - 1).abs().max() < 2e-4): y = y - bias",
        "return y",
    ],
]


@pytest.mark.parametrize("target", WRONG, indirect=True, ids=lambda lines: lines[0])
def test_a_mistake_behind_a_constant_is_found(target: str) -> None:
    assert quick(target, fail_fast=True).outcome is Outcome.WRONG


@pytest.mark.parametrize(
    ("target", "named"),
    [
        (["return y if n < 10**9 else x"], ("n < 10**9 never false",)),
        (["if type(x) is not torch.Tensor: y = x", "return y"], ("type(x) is not",)),
        (["if n < 0:", "    raise ValueError(n)", "return y"], ()),
        (["if x.is_cuda: pass", "k = min(n, 50)", "return y"], ()),
    ],
    indirect=["target"],
)
def test_conditions_with_one_outcome_are_named(target: str, named: tuple[str, ...]) -> None:
    verdict = quick(target)
    assert verdict.outcome is Outcome.RIGHT
    found = [own.text for own in verdict.remarks if own.kind == "never_tried"]
    assert len(found) == len(named)
    assert all(text in own for text, own in zip(named, found, strict=True))
    assert verdict.is_accepted(strict=True) is not named


def test_a_family_of_values_has_a_largest_one() -> None:
    values = dict.fromkeys(("distribution", "parameters", "grad_output"), "largest_4096")
    case = Case(implementation="", shape=(5, 7), direction=Direction.BACKWARD, **values)
    inputs = make_inputs(case)
    for tensor in (inputs.x, inputs.weight, inputs.dy):
        assert float(tensor.abs().max()) == 4096
    with pytest.raises(KeyError):
        PARAMETERS["smallest_4096"]
