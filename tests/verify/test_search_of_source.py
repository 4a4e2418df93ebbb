"""What each kind of decision hides is found, or the decision is named, and no other is."""

from __future__ import annotations

from pathlib import Path

import pytest
from factories.small_catalogue import use_small_catalogue
from factories.verify_targets import quick

from harness.verify import Outcome, Verdict

_HEAD = """
import bisect
from typing import NamedTuple

import torch
from torch.nn.functional import layer_norm

PLANS = {(0, 0): 0, (3, 40): 1}
FACTORS = {"0.0004": 1.5}
BLOCK, BLOCKS = 16, 40
TUNED = "1024:4 6000:8"
TRIPS = "0000000000010"
KEPT = {}

class Tile(NamedTuple):
    warps: int
    lanes: int

    @property
    def width(self):
        return self.warps * self.lanes

TILES = [Tile(4, 128), Tile(7, 512)]

def right(x, normalized_shape, weight=None, bias=None, eps=1e-5):
    return layer_norm(x, normalized_shape, weight, bias, eps)

def target(x, normalized_shape, weight=None, bias=None, eps=1e-5):
    n = right(x, normalized_shape).reshape(-1, x[(0,) * (x.dim() - len(normalized_shape))].numel()
              ).shape[-1] if x.numel() else 1
    rows = x.numel() // n
    y = right(x, normalized_shape, weight, bias, eps)
    wrong = y * 1.01
    for line in (0,):
        BODY
    return y
"""


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try few cases before those that follow from the source."""
    use_small_catalogue(monkeypatch, largest=300, one_in=12, contract=False)


def _target(folder: Path, body: str) -> str:
    path = folder / "mine.py"
    path.write_text(_HEAD.replace("BODY", body.replace("\n", "\n        ")))
    return f"{path}:target"


FOUND = {
    "a key of a table": "y = wrong if PLANS.get((rows >> 4, n >> 6)) else y",
    "an index of a table": "y = (y, y, wrong, y)[x.data_ptr() // x.element_size() % 4]",
    "a number in a text": "y = y * FACTORS.get(str(eps), 1.0)",
    "a table that is a text": "y = wrong if n > int(TUNED.split()[1].split(':')[0]) else y",
    "a search in a list": "y = (y, y, wrong)[bisect.bisect([1000, 5000], n)]",
    "the end of a slice": (
        "p = y.reshape(rows, n)[: BLOCK * BLOCKS]\ny = wrong if p.shape[0] < rows else y"
    ),
    "a pattern": "match n:\n    case 2999:\n        y = wrong",
    "what is caught": (
        "try:\n    x.view(-1)\nexcept RuntimeError:\n    y = wrong if rows > 150 else y"
    ),
    "several conditions": "y = wrong if n % 320 == 160 and n > 1000 and rows > 4 else y",
    "both sizes, and a weight alone": (
        "y = (y, wrong)[(rows >= 100) * (n >= 500) * (weight is not None) * (bias is None)]"
    ),
    "a weight near one, without gradients": (
        "if weight is not None and not torch.is_grad_enabled() and n > 4:\n"
        "    y = wrong if (weight - 1).abs().max() < 1 / 16 else y"
    ),
    "a power of two": "y = wrong if n & (n - 1) == 0 and n > 4096 else y",
    "bits of a size": "y = wrong if n.bit_length() > 13 and n & 63 else y",
    "a number of bits, without weight": "y = (y, wrong)[weight is None and n >> 13 > 0]",
    "both sizes, beside other constants": (
        "y = (y, wrong)[(rows >= 40) * (n > 2048) * (32, 64, 96, 128, 256, 1024)[0] // 32]"
    ),
    "a width that an entry of a table computes": (
        "y = y + {tile.width: tile.warps for tile in TILES}.get(n, 0) // 5"
    ),
    "five blocks of a size that nothing multiplies": (
        "blocks = zip(range(5), torch.arange(n).split(TILES[0].width))\n"
        "y = y + 0.01 * (n - sum(len(block) for _, block in blocks))"
    ),
    "an entry of a text": "y = y + int(TRIPS[n // 256 % 13])",
    "many elements, beside another large constant": (
        "y = y + (rows * n // (1 << 20)) * sum(n // size for size in (2, 100, 65_536))"
    ),
    "two sizes": "y = wrong if rows == n and n > 200 else y",
    "an offset in memory": "y = wrong if x.storage_offset() > 99 else y",
    "an offset of the weight": (
        "y = wrong if weight is not None and weight.storage_offset() == 2 else y"
    ),
    "six axes": "y = wrong if x.dim() >= 6 else y",
    "a smaller of two": "y = y if min(eps, 1) == eps else wrong",
    "a size by arithmetic alone": "y = y + (rows * n % 97 == 5) * 0.01",
    "a sum of rows": "y = torch.where((x.sum(-1, keepdim=True) == 0) & (x != 0), wrong, y)",
    "the mean of the weight": (
        "y = wrong if weight is not None and weight.mean() == 1 and weight.std() > 0 else y"
    ),
    "equal ends": "y = wrong if rows > 2 and x.view(rows, n)[0].equal(x.view(rows, n)[-1]) else y",
}


@pytest.mark.parametrize("body", FOUND.values(), ids=FOUND)
def test_what_a_decision_hides_is_found(tmp_path: Path, body: str) -> None:
    assert quick(_target(tmp_path, body), fail_fast=True).outcome is Outcome.WRONG


_MODULE = """
import torch
from torch import nn
from torch.nn.functional import layer_norm

class Norm(nn.LayerNorm):
    def __init__(self, dim, eps=1e-5, bias=True):
        super().__init__(dim, eps, bias=bias)
        self.factor = 1.01 if not bias and dim > LIMIT else 1

    def forward(self, x):
        return super().forward(x) * self.factor
"""


ON_A_PATH = {
    "values kept by address, where rows are strided": (
        "if x.dim() > 1 and x.stride(-1) != 1 and not torch.is_grad_enabled():\n"
        "    y = KEPT.setdefault((x.data_ptr(), x.shape, x.stride(), eps), (x, y))[1].clone()"
    ),
    "one y for all calls of one row": (
        "if rows == 1 and n > 1 and not torch.is_grad_enabled():\n"
        "    y = KEPT.setdefault(x.shape, torch.empty_like(y)).copy_(y)"
    ),
    "one y for all calls, with three normalized axes": (
        "if len(normalized_shape) > 2 and not torch.is_grad_enabled():\n"
        "    y = KEPT.setdefault(x.shape, torch.empty_like(y)).copy_(y)"
    ),
}


@pytest.mark.parametrize("body", ON_A_PATH.values(), ids=ON_A_PATH)
def test_contract_checks_are_run_on_each_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    monkeypatch.undo()
    use_small_catalogue(monkeypatch, largest=900, one_in=6)  # with contract checks
    assert quick(_target(tmp_path, body), fail_fast=True).outcome is Outcome.WRONG


def test_what_a_constructor_decides_is_found_or_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    use_small_catalogue(monkeypatch, largest=300, one_in=12)  # with contract checks

    def verdict(name: str, limit: str) -> Verdict:
        path = tmp_path / f"{name}.py"
        path.write_text(_MODULE.replace("LIMIT", limit))
        return quick(f"{path}:Norm")

    assert "for an x of 2x6001" in str(verdict("wrong_norm", "6000").findings)
    remarks = verdict("right_norm", "1 << 40").remarks
    (named,) = [own for own in remarks if own.kind == "never_tried"]
    assert named.evidence == ("dim > 1 << 40 never true (line 9 of right_norm.py)",)


NAMED = {
    "PLANS[(3, 40)] never taken": "PLANS.get((rows >> 50, n))",
    "y[: 1 << 40] never shortens": "y = y[: 1 << 40]",
    "n < 1 << 40 never false": "min(n, 1 << 40)",
    "case 0 never taken": "match n:\n    case 0: y = wrong",
    "except KeyError never taken": "try:\n    n + 1\nexcept KeyError:\n    y = wrong",
}


@pytest.mark.parametrize(("text", "body"), NAMED.items(), ids=NAMED)
def test_what_no_case_turns_is_named(tmp_path: Path, text: str, body: str) -> None:
    verdict = quick(_target(tmp_path, body))
    assert verdict.outcome is Outcome.RIGHT
    (named,) = [own for own in verdict.remarks if own.kind == "never_tried"]
    assert any(own.startswith(text) for own in named.evidence)


OF_EMPTY = ["k = max(n, 1)", "y = y if rows else wrong", "y = y if normalized_shape else wrong"]


@pytest.mark.parametrize("body", OF_EMPTY)
def test_what_an_empty_x_alone_turns_is_not_named(tmp_path: Path, body: str) -> None:
    verdict = quick(_target(tmp_path, body))
    named = [own.evidence for own in verdict.remarks if own.kind == "never_tried"]
    assert not any("max" in text or "never false" in text for own in named for text in own)


def test_what_another_target_of_the_file_decided_is_not_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        _HEAD.replace("BODY", "y = wrong if n > 1 << 40 else y")
        + "def other(*given):\n    return right(*given)\n"
    )
    first, second = (quick(f"{path}:{name}") for name in ("target", "other"))
    assert [own.kind for own in first.remarks].count("never_tried") == 1
    assert "never_tried" not in [own.kind for own in second.remarks]
