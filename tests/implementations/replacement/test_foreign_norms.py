"""LayerNorms of other classes are replaced if they compute the same."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import pytest
import torch
from factories.foreign_norms import (
    HIDDEN,
    RIGHT,
    Float32Norm,
    GammaBetaNorm,
    HolderNorm,
    NoParametersNorm,
    RenamingNorm,
    WrapperNorm,
    built,
)
from torch import Tensor, nn

from implementations import LayerNorm, UnsupportedError, find, native, replace_layer_norms

by_class = pytest.mark.parametrize("kind", RIGHT, ids=lambda kind: kind.__name__)


def normal(*shape: int, seed: int = 8) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


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
        found.append([y, x.grad, *(parameter.grad for parameter in module.parameters())])
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
    assert {name: id(tensor) for name, tensor in after.items()} == {
        name: id(tensor) for name, tensor in tensors.items()
    }
    assert (list(made.state_dict()), list(map(id, made.modules()))) == (keys, modules)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert not made.training
    assert all(parameter.grad is None for parameter in made.parameters())


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
