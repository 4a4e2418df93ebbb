"""LayerNorms of other classes are replaced if they compute the same, and left otherwise."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import pytest
import torch
from foreign_norms import (
    HIDDEN,
    LEFT,
    RIGHT,
    AnySizeNorm,
    BrokenNorm,
    BufferBetaNorm,
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
def test_a_layer_norm_of_another_class_is_changed_and_keeps_its_class(
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
def test_results_and_gradients_stay_what_they_were(kind: type[nn.Module]) -> None:
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
def test_the_implementation_is_what_runs(kind: type[nn.Module]) -> None:
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
def test_tensors_hooks_mode_and_random_state_are_left_alone(kind: type[nn.Module]) -> None:
    made = built(kind).eval()
    made.register_forward_hook(lambda *arguments: pytest.fail("the hook was run"))
    tensors = dict([*made.named_parameters(), *made.named_buffers()])
    keys, modules = list(made.state_dict()), list(map(id, made.modules()))
    random_state = torch.get_rng_state()
    replace_layer_norms(made, "two_pass")
    after = dict([*made.named_parameters(), *made.named_buffers()])
    assert {name: id(each) for name, each in after.items()} == {
        name: id(each) for name, each in tensors.items()
    }
    assert (list(made.state_dict()), list(map(id, made.modules()))) == (keys, modules)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert not made.training
    assert all(each.grad is None for each in made.parameters())


@by_class
def test_a_state_dict_is_loaded_in_both_directions(kind: type[nn.Module]) -> None:
    before, after = built(kind), built(kind)
    replace_layer_norms(after, "two_pass")
    after.load_state_dict({name: each + 1 for name, each in before.state_dict().items()})
    before.load_state_dict(after.state_dict())
    torch.testing.assert_close(after(normal(3, 2, HIDDEN)), before(normal(3, 2, HIDDEN)))


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


def test_parameters_inside_a_child_are_read_from_the_child() -> None:
    made = built(HolderNorm)
    replace_layer_norms(made, "two_pass")
    assert made.weight is made.norm.weight


def test_a_module_without_parameters_has_none_afterwards() -> None:
    made = built(NoParametersNorm)
    replace_layer_norms(made, "two_pass")
    assert (made.weight, made.bias, made.eps) == (None, None, 1e-6)
    assert not made.elementwise_affine


def test_the_loading_code_of_the_class_stays() -> None:
    made = nn.Sequential(built(RenamingNorm))
    replace_layer_norms(made, "two_pass")
    made.load_state_dict({"0.old": torch.full((HIDDEN,), 3.0), "0.bias": torch.zeros(HIDDEN)})
    assert made[0].weight[0] == 3.0


def test_x_can_be_passed_by_the_name_in_the_original_forward() -> None:
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


def test_frozen_parameters_and_the_modes_of_the_caller_do_not_matter() -> None:
    made = built(GammaBetaNorm).requires_grad_(False)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert replace_layer_norms(made, "two_pass").changed == ("",)
    assert not made.gamma.requires_grad


def test_a_call_that_the_implementation_refuses_stays_refused() -> None:
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


def test_a_class_without_norm_in_its_name_is_not_tried_but_the_modules_inside_are() -> None:
    made = nn.Sequential(Outer())
    assert replace_layer_norms(made, "two_pass").changed == ("0.norm",)


def test_a_module_that_computes_a_weight_is_not_tried() -> None:
    made = nn.Sequential(parametrizations.weight_norm(nn.Linear(HIDDEN, HIDDEN)))
    report = replace_layer_norms(made, "two_pass")
    assert (report.changed, report.left) == ((), ())


# --- what is left; golden/replacement_report.txt has the reasons ---------------------------------


@pytest.mark.parametrize("kind", LEFT, ids=lambda kind: kind.__name__)
def test_a_module_that_computes_something_else_is_left_as_it_was(kind: type[nn.Module]) -> None:
    made = built(kind)
    tensors = copy.deepcopy(made.state_dict())
    assert reason(made)
    assert type(made) is kind
    torch.testing.assert_close(made.state_dict(), tensors, rtol=0, atol=0)


@pytest.mark.parametrize("training", [True, False])
def test_a_module_that_differs_in_one_mode_is_left(training: bool) -> None:
    why = reason(built(TrainingNorm).train(training))
    assert why.startswith("in training mode") != training


def test_a_module_that_returns_another_dtype_than_that_of_x_is_left() -> None:
    assert "torch.float32" in reason(WiderNorm().bfloat16())


def test_an_eps_that_depends_on_the_dtype_is_left_only_in_the_dtype_with_another_eps() -> None:
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


def test_a_parametrized_module_is_left() -> None:
    made = built(GammaBetaNorm)
    parametrizations.weight_norm(made, "gamma", dim=None)
    assert "parametriz" in reason(made)


def test_a_module_whose_parameters_have_no_shape_yet_is_left() -> None:
    class LazyNorm(PlainNorm):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.UninitializedParameter()

    assert "no shape yet" in reason(LazyNorm())


def test_a_subclass_of_the_drop_in_with_its_own_forward_is_left() -> None:
    class Doubled(LayerNorm):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    assert "forward" in reason(Doubled(HIDDEN))


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
    made = nn.Sequential(FormatNorm(), FormatNorm(channels_first=True), FormatNorm())
    report = replace_layer_norms(made, "two_pass")
    assert report.changed == ("0", "2")
    ((name, why),) = report.left
    assert (name, "axis 1" in why) == ("1", True)


def test_one_failure_does_not_affect_other_modules() -> None:
    made = nn.Sequential(built(BrokenNorm), built(BufferBetaNorm), AnySizeNorm())
    report = replace_layer_norms(made, "two_pass")
    assert report.changed == ("1",)
    assert [name for name, _ in report.left] == ["0", "2"]


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
