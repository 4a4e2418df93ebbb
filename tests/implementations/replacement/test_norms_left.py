"""Modules that compute something else than a LayerNorm, or are not tried, are left."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from factories.foreign_norms import (
    HIDDEN,
    LEFT,
    BrokenNorm,
    FormatNorm,
    GammaBetaNorm,
    HolderNorm,
    Outer,
    PlainNorm,
    TrainingNorm,
    WiderNorm,
    built,
)
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from implementations import LayerNorm, replace_layer_norms


def reason(module: nn.Module) -> str:
    report = replace_layer_norms(nn.Sequential(module), "two_pass")
    assert "0" not in report.changed
    return dict(report.left)["0"]


@pytest.mark.parametrize("kind", LEFT, ids=lambda kind: kind.__name__)
def test_a_module_that_computes_something_else_is_left_as_it_was(kind: type[nn.Module]) -> None:
    made = built(kind)
    tensors = copy.deepcopy(made.state_dict())
    assert reason(made)
    assert type(made) is kind
    torch.testing.assert_close(made.state_dict(), tensors, rtol=0, atol=0)


class Doubled(LayerNorm):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


class LazyNorm(PlainNorm):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.UninitializedParameter()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: WiderNorm().bfloat16(), "torch.float32"),
        (lambda: parametrizations.weight_norm(built(GammaBetaNorm), "gamma", dim=None), "parametr"),
        (LazyNorm, "no shape yet"),
        (lambda: Doubled(HIDDEN), "forward"),
    ],
    ids=["another dtype", "parametrized", "lazy", "subclass of the drop-in"],
)
def test_a_module_is_left_with_the_reason(make: Callable[[], nn.Module], words: str) -> None:
    assert words in reason(make())


@pytest.mark.parametrize("training", [True, False])
def test_a_module_that_differs_in_one_mode_is_left(training: bool) -> None:
    why = reason(built(TrainingNorm).train(training))
    assert why.startswith("in training mode") != training


def test_a_module_whose_eps_depends_on_the_dtype_is_left_only_where_the_eps_differs() -> None:
    class DtypeNorm(PlainNorm):
        def forward(self, x: Tensor) -> Tensor:
            eps = 1e-5 if x.dtype == torch.float32 else 1e-2
            return functional.layer_norm(x, (HIDDEN,), self.weight, self.bias, eps)

    made = DtypeNorm()
    assert "torch.bfloat16" in reason(copy.deepcopy(made).bfloat16())
    assert replace_layer_norms(made, "two_pass").changed == ("",)
    assert made.eps == 1e-5


def test_a_module_with_hooks_on_its_children_is_left() -> None:
    made = built(HolderNorm)
    made.norm.register_forward_hook(lambda *arguments: None)
    report = replace_layer_norms(made, "two_pass")
    assert (report.changed, [name for name, _ in report.left]) == (("norm",), [""])


def test_the_predicate_is_called_for_every_norm() -> None:
    calls: list[tuple[str, type]] = []
    made = nn.Sequential(built(GammaBetaNorm), nn.BatchNorm1d(HIDDEN), nn.Linear(HIDDEN, 1))
    report = replace_layer_norms(
        made, "two_pass", only=lambda name, module: bool(calls.append((name, type(module))))
    )
    assert sorted(calls, key=lambda call: call[0]) == [
        ("0", GammaBetaNorm),
        ("1", nn.BatchNorm1d),
    ]
    assert [name for name, _ in report.left] == ["0", "1"]


def test_instances_of_one_class_are_distinguished_by_their_flags() -> None:
    made = nn.Sequential(FormatNorm(), FormatNorm(channels_first=True), BrokenNorm(), FormatNorm())
    report = replace_layer_norms(made, "two_pass")
    assert report.changed == ("0", "3")
    assert [(name, "axis 1" in why) for name, why in report.left] == [("1", True), ("2", False)]


def test_only_modules_with_norm_in_their_name_that_compute_no_parameter_are_tried() -> None:
    weight_norm = parametrizations.weight_norm(nn.Linear(HIDDEN, HIDDEN))
    report = replace_layer_norms(nn.Sequential(Outer(), weight_norm), "two_pass")
    assert (report.changed, report.left) == (("0.norm",), ())


def test_equal_modules_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Tensor] = []
    forward = GammaBetaNorm.forward

    def counted(self: GammaBetaNorm, x: Tensor) -> Tensor:
        calls.append(x)
        return forward(self, x)

    monkeypatch.setattr(GammaBetaNorm, "forward", counted)
    replace_layer_norms(built(GammaBetaNorm), "two_pass")
    count = len(calls)
    calls.clear()
    made = nn.Sequential(*(built(GammaBetaNorm) for _ in range(100)))
    assert len(replace_layer_norms(made, "two_pass").changed) == 100
    assert len(calls) == count
