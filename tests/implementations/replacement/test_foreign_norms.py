"""LayerNorms of other classes are replaced if they compute the same, and left otherwise."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from foreign_norms import (
    HIDDEN,
    LEFT,
    RIGHT,
    BrokenNorm,
    Float32Norm,
    FormatNorm,
    GammaBetaNorm,
    HolderNorm,
    NoParametersNorm,
    Outer,
    PlainNorm,
    RenamingNorm,
    TrainingNorm,
    WiderNorm,
    WrapperNorm,
    built,
)
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from implementations import LayerNorm, UnsupportedError, find, native, replace_layer_norms

by_class = pytest.mark.parametrize("kind", RIGHT, ids=lambda kind: kind.__name__)


def normal(*shape: int, seed: int = 8) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def reason(module: nn.Module) -> str:
    report = replace_layer_norms(nn.Sequential(module), "two_pass")
    assert "0" not in report.changed
    return dict(report.left)["0"]


# --- what is changed -----------------------------------------------------------------------------


@by_class
def test_a_layer_norm_of_another_class_is_changed_and_remains_an_instance_of_it(
    kind: type[nn.Module],
) -> None:
    made = built(kind)
    report = replace_layer_norms(made, "two_pass")
    assert (report.changed, report.left) == (("",), ())
    assert isinstance(made, LayerNorm)
    assert isinstance(made, kind)
    assert made.implementation is find("two_pass")
    assert repr(made).startswith(f"{kind.__name__}(")
    assert "implementation=two_pass" in repr(made)


@by_class
def test_results_and_gradients_stay_the_same(kind: type[nn.Module]) -> None:
    made = built(kind)
    changed = copy.deepcopy(made)
    replace_layer_norms(changed, "two_pass")
    found = []
    for module in (made, changed):
        # the variance is about the largest eps among the classes, so that eps matters
        x = (0.03 * normal(4, 2, HIDDEN)).requires_grad_()
        y = module(x)
        (y * normal(4, 2, HIDDEN, seed=9)).sum().backward()
        found.append([y, x.grad, *(each.grad for each in module.parameters())])
    # a few roundings in float32, of gradients that 1 / sigma makes 30 times as large
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-4)


@by_class
def test_a_call_runs_the_implementation(kind: type[nn.Module]) -> None:
    shapes: list[tuple[int, ...]] = []

    def layer_norm(x: Tensor, shape: tuple[int, ...], *rest: object) -> Tensor:
        shapes.append(tuple(shape))
        return native(x, shape, *rest)  # type: ignore[arg-type]

    made = built(kind)
    replace_layer_norms(made, replace(native, name="counting", function=layer_norm))
    assert not shapes
    made(normal(3, 2, HIDDEN))
    assert shapes == [made.normalized_shape]


@by_class
def test_tensors_hooks_mode_and_random_state_are_unchanged(kind: type[nn.Module]) -> None:
    made = built(kind).eval()
    made.register_forward_hook(lambda *arguments: pytest.fail("the hook was run"))
    tensors = dict([*made.named_parameters(), *made.named_buffers()])
    keys, modules = list(made.state_dict()), list(map(id, made.modules()))
    random_state = torch.get_rng_state()
    assert replace_layer_norms(made, "two_pass").changed
    after = dict([*made.named_parameters(), *made.named_buffers()])
    assert {name: id(each) for name, each in after.items()} == {
        name: id(each) for name, each in tensors.items()
    }
    assert (list(made.state_dict()), list(map(id, made.modules()))) == (keys, modules)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert not made.training
    assert all(each.grad is None for each in made.parameters())


@by_class
def test_it_can_be_copied_pickled_and_replaced_again(kind: type[nn.Module]) -> None:
    made = built(kind)
    replace_layer_norms(made, "two_pass")
    for copied in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert type(copied) is type(made)
        assert copied.implementation is find("two_pass")
        assert torch.equal(copied(normal(3, 2, HIDDEN)), made(normal(3, 2, HIDDEN)))
        assert replace_layer_norms(copied, "welford").changed == ("",)
        assert copied.implementation is find("welford")
        assert type(copied) is type(made)
        assert replace_layer_norms(copied, "welford").left == (("", "already runs welford"),)


def test_shape_eps_and_parameters_are_read_from_the_module() -> None:
    made = built(GammaBetaNorm)
    replace_layer_norms(made, "two_pass")
    assert (made.normalized_shape, made.eps) == ((HIDDEN,), 1e-12)
    assert (made.weight, made.bias) == (made.gamma, made.beta)
    made.gamma = nn.Parameter(torch.full((HIDDEN,), 3.0))
    assert made.weight is made.gamma
    with_child, without_parameters = built(HolderNorm), built(NoParametersNorm)
    replace_layer_norms(nn.Sequential(with_child, without_parameters), "two_pass")
    assert with_child.weight is with_child.norm.weight
    assert (without_parameters.weight, without_parameters.bias) == (None, None)
    assert (without_parameters.eps, without_parameters.elementwise_affine) == (1e-6, False)


def test_the_loading_code_of_the_original_class_is_kept() -> None:
    made = nn.Sequential(built(RenamingNorm))
    replace_layer_norms(made, "two_pass")
    made.load_state_dict({"0.old": torch.full((HIDDEN,), 3.0), "0.bias": torch.zeros(HIDDEN)})
    assert made[0].weight[0] == 3.0


def test_x_can_be_passed_by_its_name_in_the_original_forward() -> None:
    made = built(RenamingNorm)
    before = made(hidden_states=normal(3, HIDDEN))
    replace_layer_norms(made, "two_pass")
    torch.testing.assert_close(made(hidden_states=normal(3, HIDDEN)), before)
    with pytest.raises(TypeError):
        made(normal(3, HIDDEN), normal(3, HIDDEN))


@pytest.mark.parametrize("kind", [Float32Norm, GammaBetaNorm, NoParametersNorm, WrapperNorm])
def test_a_model_in_low_precision_keeps_its_dtype(kind: type[nn.Module]) -> None:
    made = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), built(kind)).bfloat16()
    before = made(normal(3, HIDDEN).bfloat16())
    assert replace_layer_norms(made, "two_pass").changed == ("1",)
    after = made(normal(3, HIDDEN).bfloat16())
    assert after.dtype == before.dtype == torch.bfloat16
    torch.testing.assert_close(after, before, rtol=0.05, atol=0.05)  # 2^-8 per rounding


def test_with_float32_parameters_y_keeps_the_dtype_of_x_if_it_did_before() -> None:
    made = built(Float32Norm)
    x = normal(3, HIDDEN).bfloat16()
    before = made(x)
    replace_layer_norms(made, "two_pass")
    assert made(x).dtype == torch.bfloat16
    torch.testing.assert_close(made(x), before, rtol=2**-8, atol=0)
    with torch.autocast("cpu", torch.bfloat16):
        assert made(x).dtype == torch.bfloat16


def test_a_frozen_module_is_changed_also_under_inference_mode_and_autocast() -> None:
    made = built(GammaBetaNorm).requires_grad_(False)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert replace_layer_norms(made, "two_pass").changed == ("",)
    assert not made.gamma.requires_grad


def test_a_call_that_the_implementation_refuses_is_not_run_by_the_original_class() -> None:
    made = built(GammaBetaNorm).double()
    replace_layer_norms(made, replace(native, name="narrow", dtypes=frozenset({"float32"})))
    with pytest.raises(UnsupportedError, match="float64"):
        made(normal(3, HIDDEN).double())


# --- modules inside modules ----------------------------------------------------------------------


def test_a_layer_norm_inside_a_changed_one_is_neither_changed_nor_left() -> None:
    made = nn.Sequential(built(WrapperNorm))
    for name in ("two_pass", "welford"):
        report = replace_layer_norms(made, name)
        assert (report.changed, report.left) == (("0",), ())
        assert type(made[0].inner) is nn.LayerNorm


def test_a_layer_norm_inside_is_changed_if_the_outer_one_is_left() -> None:
    made = nn.Sequential(built(WrapperNorm))
    report = replace_layer_norms(made, "two_pass", only=lambda name, module: name != "0")
    assert (report.changed, [name for name, _ in report.left]) == (("0.inner",), ["0"])


def test_a_layer_norm_used_inside_a_changed_one_and_elsewhere_is_changed_too() -> None:
    wrapper = built(WrapperNorm)
    made = nn.ModuleDict({"alone": wrapper.inner, "outer": wrapper})
    report = replace_layer_norms(made, "two_pass")
    assert report.changed == ("alone", "outer")
    torch.testing.assert_close(made["outer"].weight, wrapper.gamma[0])


# --- what is left; golden/replacement_report.txt has the reasons ---------------------------------


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
