"""Replacing the LayerNorms of a model changes what they run, and nothing else of the model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from implementations import LayerNorm, TargetError, find, replace_layer_norms


def model() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Sequential(nn.LayerNorm(8)))


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(8))


# --- what is changed -----------------------------------------------------------------------------


def test_every_layer_norm_runs_the_implementation_afterwards() -> None:
    made = model()
    report = replace_layer_norms(made, "two_pass")
    assert report.changed == ("1", "2.0")
    assert report.left == ()
    assert made[1].implementation is made[2][0].implementation is find("two_pass")


def test_the_model_computes_the_same_afterwards() -> None:
    made = model()
    before = made(normal(5, 8))
    replace_layer_norms(made, "welford")
    # two LayerNorms of values near one: a few roundings
    torch.testing.assert_close(made(normal(5, 8)), before, rtol=1e-5, atol=1e-5)


def test_modules_and_parameters_stay_the_very_same_objects() -> None:
    made = model()
    before = [*made.modules(), *made.parameters()]
    replace_layer_norms(made, "two_pass")
    assert list(map(id, [*made.modules(), *made.parameters()])) == list(map(id, before))


def test_an_optimizer_made_before_goes_on_training() -> None:
    made = model()
    optimizer = torch.optim.SGD(made.parameters(), lr=0.5)
    replace_layer_norms(made, "two_pass")
    before = made[1].weight.detach().clone()
    made(normal(5, 8)).square().sum().backward()
    optimizer.step()
    assert not torch.equal(made[1].weight, before)


def test_mode_dtype_eps_and_frozen_parameters_are_kept() -> None:
    made = nn.Sequential(nn.LayerNorm((3, 8), eps=1e-3, bias=False, dtype=torch.float64)).eval()
    made[0].weight.requires_grad_(False)
    replace_layer_norms(made, "two_pass")
    assert isinstance(made[0], LayerNorm)
    assert (made[0].normalized_shape, made[0].eps, made[0].bias) == ((3, 8), 1e-3, None)
    assert made[0].weight.dtype == torch.float64
    assert not made[0].training
    assert not made[0].weight.requires_grad


def test_a_module_on_the_meta_device_stays_there() -> None:
    made = nn.Sequential(nn.LayerNorm(8, device="meta"))
    replace_layer_norms(made, "two_pass")
    assert made[0].weight.is_meta


def test_the_model_itself_can_be_the_layer_norm() -> None:
    made = nn.LayerNorm(8)
    report = replace_layer_norms(made, "two_pass")
    assert report.changed == ("",)
    assert isinstance(made, LayerNorm)


def test_a_module_used_at_two_places_stays_one_and_is_named_twice() -> None:
    shared = nn.LayerNorm(8)
    made = nn.ModuleDict({"first": shared, "second": shared})
    report = replace_layer_norms(made, "two_pass")
    assert report.changed == ("first", "second")
    assert made["first"] is made["second"] is shared
    assert isinstance(shared, LayerNorm)


def test_tied_parameters_stay_tied() -> None:
    made = nn.Sequential(nn.LayerNorm(8), nn.LayerNorm(8))
    made[1].weight = made[0].weight
    replace_layer_norms(made, "two_pass")
    assert made[1].weight is made[0].weight


def test_a_parametrized_layer_norm_stays_parametrized() -> None:
    made = nn.Sequential(nn.LayerNorm(8))
    parametrizations.weight_norm(made[0], "weight", dim=None)
    before, names = made(normal(5, 8)), list(made.state_dict())
    report = replace_layer_norms(made, "two_pass")
    assert report.changed == ("0",)
    assert list(made.state_dict()) == names
    torch.testing.assert_close(copy.deepcopy(made)(normal(5, 8)), before, rtol=1e-5, atol=1e-5)
    parametrize.remove_parametrizations(made[0], "weight")
    assert type(made[0]) is LayerNorm


HOOKS: list[Callable[[nn.Module, Callable[..., None]], Any]] = [
    lambda made, hook: made.register_forward_hook(hook),
    lambda made, hook: made.register_forward_pre_hook(hook),
    lambda made, hook: made.register_full_backward_hook(hook),
    lambda made, hook: made.register_state_dict_post_hook(hook),
    lambda made, hook: made.weight.register_post_accumulate_grad_hook(hook),
]


@pytest.mark.parametrize("register", HOOKS)
def test_hooks_are_carried_over_and_can_be_removed(
    register: Callable[[nn.Module, Callable[..., None]], Any],
) -> None:
    calls: list[int] = []
    made = nn.LayerNorm(8)
    handle = register(made, lambda *arguments: calls.append(1))

    def use() -> None:
        made(normal(5, 8).requires_grad_()).sum().backward()
        made.state_dict()

    replace_layer_norms(made, "two_pass")
    use()
    assert calls == [1]
    handle.remove()
    use()
    assert calls == [1]


def test_a_model_compiled_before_runs_the_implementation_afterwards() -> None:
    made = nn.Sequential(nn.LayerNorm(8))
    torch.compiler.reset()
    compiled = torch.compile(made, backend="eager")
    assert "NativeLayerNorm" in compiled(normal(5, 8)).grad_fn.name()
    replace_layer_norms(compiled, "two_pass")
    assert "NativeLayerNorm" not in compiled(normal(5, 8)).grad_fn.name()


def test_one_of_ours_gets_the_new_implementation() -> None:
    made = nn.Sequential(LayerNorm(8, implementation="welford"))
    assert replace_layer_norms(made, "two_pass").changed == ("0",)
    assert made[0].implementation is find("two_pass")


# --- what is left --------------------------------------------------------------------------------


def test_what_runs_the_implementation_already_is_left() -> None:
    made = model()
    replace_layer_norms(made, "two_pass")
    report = replace_layer_norms(made, "two_pass")
    assert report.changed == ()
    assert report.left == (("1", "runs two_pass already"), ("2.0", "runs two_pass already"))


def test_what_the_predicate_says_no_to_is_left() -> None:
    made = model()
    report = replace_layer_norms(made, "two_pass", only=lambda name, norm: name.startswith("2"))
    assert report.changed == ("2.0",)
    assert report.left == (("1", "only() said no"),)
    assert type(made[1]) is nn.LayerNorm


def test_a_predicate_that_fails_leaves_the_model_as_it_was() -> None:
    made = model()

    def fails_late(name: str, module: nn.Module) -> bool:
        return {"1": True}[name]

    with pytest.raises(KeyError):
        replace_layer_norms(made, "two_pass", only=fails_late)
    assert type(made[1]) is nn.LayerNorm


def test_a_shared_module_is_left_if_the_predicate_says_no_to_one_of_its_places() -> None:
    shared = nn.LayerNorm(8)
    made = nn.ModuleDict({"first": shared, "second": shared})
    report = replace_layer_norms(made, "two_pass", only=lambda name, norm: name == "first")
    reason = "used also as second, to which only() said no"
    assert report.left == (("first", reason), ("second", reason))
    assert type(shared) is nn.LayerNorm


def test_a_module_whose_own_forward_was_replaced_is_left() -> None:
    # as accelerate does it: the old forward, bound, would be run whatever the class says
    made = nn.Sequential(nn.LayerNorm(8))
    made[0].forward = made[0].forward
    report = replace_layer_norms(made, "two_pass")
    assert report.changed == ()
    assert "its forward was replaced" in report.left[0][1]


def test_an_unknown_implementation_leaves_the_model_as_it_was() -> None:
    made = model()
    with pytest.raises(TargetError):
        replace_layer_norms(made, "two_pas")
    assert type(made[1]) is nn.LayerNorm


def test_other_norms_are_not_touched() -> None:
    made = nn.Sequential(nn.RMSNorm(8), nn.GroupNorm(2, 8), nn.BatchNorm1d(8))
    before = list(map(type, made))
    report = replace_layer_norms(made, "two_pass")
    assert report.changed == ()
    assert report.left == (
        ("0", "is an RMSNorm: it does not subtract the mean"),
        ("1", "is a GroupNorm: it normalises over groups of channels and their positions"),
        ("2", "is a BatchNorm: it normalises over the batch"),
    )
    assert list(map(type, made)) == before


# --- encoders with a fused path that never calls its norms ---------------------------------------

# a prototype by its own words; torch takes it for a mask at inference
nested = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")


def encoder(layers: int = 2) -> nn.TransformerEncoder:
    torch.manual_seed(9)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, layers).eval()


def counted(module: nn.Module) -> list[int]:
    """Replace its LayerNorms by one that counts its calls in the list returned."""
    calls: list[int] = []
    native = find("native")

    def layer_norm(*arguments: Any) -> Tensor:
        calls.append(1)
        return native(*arguments)

    replace_layer_norms(
        module, type(native)(name="counting", function=layer_norm, source="this test")
    )
    return calls


@torch.no_grad()
def test_an_encoder_layer_calls_the_implementation_at_inference() -> None:
    layer = encoder().layers[0]
    before = layer(normal(2, 5, 8))
    calls = counted(layer)
    torch.testing.assert_close(layer(normal(2, 5, 8)), before, rtol=1e-5, atol=1e-5)
    assert len(calls) == 2


@nested
@torch.no_grad()
def test_an_encoder_calls_the_implementation_at_inference_with_padding() -> None:
    made = encoder()
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    before = made(normal(2, 5, 8), src_key_padding_mask=padding)
    calls = counted(made)
    after = made(normal(2, 5, 8), src_key_padding_mask=padding)
    torch.testing.assert_close(after[~padding], before[~padding], rtol=1e-5, atol=1e-5)
    assert len(calls) == 4


def test_encoders_whose_fused_path_was_switched_off_are_named() -> None:
    made = nn.ModuleDict({"encoder": encoder()})
    report = replace_layer_norms(made, "two_pass")
    assert report.unfused == ("encoder", "encoder.layers.0", "encoder.layers.1")


def test_an_encoder_keeps_its_fused_path_while_its_norms_are_native() -> None:
    made = encoder()
    assert replace_layer_norms(made, "native").unfused == ()
    assert replace_layer_norms(made, "two_pass", only=lambda *each: False).unfused == ()
    assert made.layers[0].activation_relu_or_gelu
    assert made.use_nested_tensor


@torch.no_grad()
def test_the_fused_path_can_read_the_parameters_of_ours() -> None:
    made = encoder()
    before = made.layers[0](normal(2, 5, 8))
    replace_layer_norms(made, "native")
    assert torch.equal(made.layers[0](normal(2, 5, 8)), before)


def test_an_encoder_trains_with_the_implementation() -> None:
    made = encoder().train()
    calls = counted(made)
    made(normal(2, 5, 8)).sum().backward()
    assert len(calls) == 4
    assert made.layers[0].norm1.weight.grad is not None


# --- what is said --------------------------------------------------------------------------------


def test_the_report_reads_as_a_list_of_what_was_changed_left_and_switched_off() -> None:
    made = nn.ModuleDict({"encoder": encoder(1), "head": nn.LayerNorm(8)})
    report = replace_layer_norms(made, "two_pass", only=lambda name, norm: name != "head")
    assert str(report) == (
        "2 changed to two_pass\n"
        "  encoder.layers.0.norm1\n"
        "  encoder.layers.0.norm2\n"
        "1 left as they were\n"
        "  head: only() said no\n"
        "fused inference path, which never calls the norms, switched off\n"
        "  encoder\n"
        "  encoder.layers.0"
    )


def test_the_report_of_the_model_itself_names_it_in_words() -> None:
    report = replace_layer_norms(nn.LayerNorm(8), "two_pass")
    assert str(report) == "1 changed to two_pass\n  (the model itself)"


def test_the_report_says_when_there_was_nothing_to_replace() -> None:
    report = replace_layer_norms(nn.Linear(8, 8), "two_pass")
    assert str(report) == (
        "nothing changed: the model has no torch.nn.LayerNorm, "
        'and no module of a class with "norm" in its name'
    )
