"""LayerNorms of a model are replaced if they compute the same, and nothing else changes."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from factories.foreign_norms import (
    HIDDEN,
    LEFT,
    RIGHT,
    BrokenNorm,
    FormatNorm,
    GammaBetaNorm,
    HolderNorm,
    NoParametersNorm,
    PlainNorm,
    RenamingNorm,
    TrainingNorm,
    WiderNorm,
    WrapperNorm,
    built,
)
from factories.golden import assert_golden
from factories.operands import normal
from factories.right_modules import Float32Norm
from torch import Tensor, nn

from implementations import LayerNorm, TargetError, find, native, replace_layer_norms

by_class = pytest.mark.parametrize("kind", [nn.LayerNorm, *RIGHT], ids=lambda kind: kind.__name__)
torch_or_foreign = pytest.mark.parametrize("kind", [nn.LayerNorm, GammaBetaNorm])


def model() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Linear(HIDDEN, HIDDEN), nn.LayerNorm(HIDDEN), nn.Sequential(nn.LayerNorm(HIDDEN))
    )


def counted(module: nn.Module) -> list[tuple[int, ...]]:
    """Replace the LayerNorms by one that appends its normalized shape to the returned list."""
    shapes: list[tuple[int, ...]] = []

    def layer_norm(x: Tensor, shape: Any, *rest: Any) -> Tensor:
        shapes.append(tuple(shape))
        return native(x, shape, *rest)

    counting = replace(native, name="counting", function=layer_norm)
    assert replace_layer_norms(module, counting).changed
    return shapes


# --- a module ------------------------------------------------------------------------------------


@by_class
def test_results_and_gradients_stay_the_same(kind: type[nn.Module]) -> None:
    made = built(kind)
    changed = copy.deepcopy(made)
    shapes = counted(changed)
    assert isinstance(changed, LayerNorm)
    assert isinstance(changed, kind)
    assert "implementation=counting" in repr(changed)
    found = []
    for module in (made, changed):
        # the variance is about the largest eps among the classes, so that eps matters
        x = (0.03 * normal(4, 2, HIDDEN)).requires_grad_()
        y = module(x)
        (y * normal(4, 2, HIDDEN, seed=9)).sum().backward()
        found.append([y, x.grad, *(parameter.grad for parameter in module.parameters())])
    # a few roundings in float32, of gradients that 1 / sigma makes 30 times as large
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-4)
    assert shapes == [tuple(changed.normalized_shape)]


@by_class
def test_tensors_hooks_mode_and_random_state_are_unchanged(kind: type[nn.Module]) -> None:
    made = built(kind).eval()
    made.register_forward_hook(lambda *arguments: pytest.fail("the hook was run"))

    def objects() -> list[int]:
        return list(map(id, [*made.modules(), *made.parameters(), *made.buffers()]))

    before, keys, random_state = objects(), list(made.state_dict()), torch.get_rng_state()
    assert replace_layer_norms(made, "two_pass").changed
    assert (objects(), list(made.state_dict())) == (before, keys)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert not made.training
    assert {parameter.grad for parameter in made.parameters()} <= {None}


@by_class
def test_it_can_be_copied_pickled_and_replaced_again(kind: type[nn.Module]) -> None:
    made = built(kind)
    replace_layer_norms(made, "two_pass")
    for copied in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert type(copied) is type(made)
        assert torch.equal(copied(normal(3, 2, HIDDEN)), made(normal(3, 2, HIDDEN)))
        assert replace_layer_norms(copied, "welford").changed == ("",)
        assert (type(copied), copied.implementation) == (type(made), find("welford"))
        assert replace_layer_norms(copied, "welford").left == (("", "already runs welford"),)


def test_the_original_class_still_names_x_and_loads_checkpoints() -> None:
    made = nn.Sequential(built(RenamingNorm))
    before = made[0](hidden_states=normal(3, HIDDEN))
    replace_layer_norms(made, "two_pass")
    torch.testing.assert_close(made[0](hidden_states=normal(3, HIDDEN)), before)
    made.load_state_dict({"0.old": torch.full((HIDDEN,), 3.0), "0.bias": torch.zeros(HIDDEN)})
    assert made[0].weight[0] == 3.0


@pytest.mark.parametrize("kind", [Float32Norm, GammaBetaNorm, NoParametersNorm, WrapperNorm])
def test_a_model_in_low_precision_keeps_its_dtype(kind: type[nn.Module]) -> None:
    made = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), built(kind)).bfloat16()
    before = made(normal(3, HIDDEN).bfloat16())
    assert replace_layer_norms(made, "two_pass").changed == ("1",)
    after = made(normal(3, HIDDEN).bfloat16())
    assert after.dtype == before.dtype == torch.bfloat16
    torch.testing.assert_close(after, before, rtol=0.05, atol=0.05)  # 2^-8 per rounding


HOOKS: list[Callable[[nn.Module, Callable[..., None]], Any]] = [
    lambda made, hook: made.register_forward_hook(hook),
    lambda made, hook: made.register_full_backward_hook(hook),
    lambda made, hook: next(made.parameters()).register_post_accumulate_grad_hook(hook),
]


@pytest.mark.parametrize("register", HOOKS)
@torch_or_foreign
def test_hooks_are_carried_over_and_can_be_removed(
    register: Callable[..., Any], kind: type[nn.Module]
) -> None:
    calls: list[int] = []
    made = built(kind)
    handle = register(made, lambda *arguments: calls.append(1))
    replace_layer_norms(made, "two_pass")
    for _ in range(2):
        made(normal(5, HIDDEN).requires_grad_()).sum().backward()
        assert calls == [1]
        handle.remove()


@torch_or_foreign
def test_tied_parameters_and_an_optimizer_made_before_keep_working(kind: type[nn.Module]) -> None:
    made = nn.Sequential(built(kind), built(kind))
    ((name, tied), *_) = made[0].named_parameters()
    setattr(made[1], name, tied)
    optimizer = torch.optim.SGD(made.parameters(), lr=0.5)
    replace_layer_norms(made, "two_pass")
    before = made[1].weight.detach().clone()
    made(normal(5, HIDDEN)).square().sum().backward()
    optimizer.step()
    assert made[0].weight is made[1].weight is tied
    assert not torch.equal(made[1].weight, before)


@torch_or_foreign
def test_a_model_compiled_before_runs_the_implementation_afterwards(kind: type[nn.Module]) -> None:
    made = nn.Sequential(built(kind))
    torch.compiler.reset()
    compiled = torch.compile(made, backend="eager", fullgraph=True)
    before = compiled(normal(5, HIDDEN))
    replace_layer_norms(compiled, "two_pass")
    after = compiled(normal(5, HIDDEN))
    torch.testing.assert_close(after, before)
    assert "NativeLayerNorm" not in after.grad_fn.name()


# --- a model -------------------------------------------------------------------------------------


def test_every_layer_norm_of_a_model_is_changed() -> None:
    made = model()
    before = made(normal(5, HIDDEN))
    for name in ("welford", "two_pass"):  # the second time, it is a drop-in already
        report = replace_layer_norms(made, name)
        assert (report.changed, report.left) == (("1", "2.0"), ())
        assert made[1].implementation is made[2][0].implementation is find(name)
        # two LayerNorms of values near one: a few roundings
        torch.testing.assert_close(made(normal(5, HIDDEN)), before, rtol=1e-5, atol=1e-5)


def test_a_module_used_at_two_places_stays_one_and_needs_the_consent_of_the_predicate_twice() -> (
    None
):
    shared = nn.LayerNorm(HIDDEN)
    made = nn.ModuleDict({"first": shared, "second": shared})
    report = replace_layer_norms(made, "two_pass", only=lambda name, norm: name == "first")
    assert [name for name, why in report.left if "second" in why] == ["first", "second"]
    assert replace_layer_norms(made, "two_pass").changed == ("first", "second")
    assert made["first"] is made["second"] is shared


def test_a_layer_norm_inside_a_changed_one_is_changed_only_if_it_is_called_elsewhere() -> None:
    made = nn.Sequential(built(WrapperNorm))
    report = replace_layer_norms(made, "two_pass", only=lambda name, module: name != "0")
    assert (report.changed, [name for name, _ in report.left]) == (("0.inner",), ["0"])
    made = nn.Sequential(built(WrapperNorm))
    assert replace_layer_norms(made, "two_pass").changed == ("0",)
    assert type(made[0].inner) is nn.LayerNorm
    wrapper = built(WrapperNorm)
    made = nn.ModuleDict({"alone": wrapper.inner, "outer": wrapper})
    assert replace_layer_norms(made, "two_pass").changed == ("alone", "outer")


def test_an_unknown_implementation_or_a_predicate_that_raises_leaves_the_model_as_it_was() -> None:
    made = model()
    with pytest.raises(TargetError):
        replace_layer_norms(made, "two_pas")
    with pytest.raises(KeyError):
        replace_layer_norms(made, "two_pass", only=lambda name, _: {"1": True}[name])
    assert type(made[1]) is nn.LayerNorm


# --- encoders with a fused path that never calls its norms ---------------------------------------


def encoder() -> nn.TransformerEncoder:
    torch.manual_seed(9)
    layer = nn.TransformerEncoderLayer(HIDDEN, 2, 16, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2).eval()


# torch calls nested tensors a prototype, and uses them for a mask at inference
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("has_padding", [False, True])
@torch.no_grad()
def test_an_encoder_calls_the_implementation_at_inference(has_padding: bool) -> None:
    made, x = encoder(), normal(2, 5, HIDDEN)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2]) if has_padding else None
    kept = slice(None) if padding is None else ~padding
    before = made(x, src_key_padding_mask=padding)
    replace_layer_norms(made, "native")  # the fused path reads the parameters of the drop-in
    assert torch.equal(made(x, src_key_padding_mask=padding)[kept], before[kept])
    calls = counted(made)
    after = made(x, src_key_padding_mask=padding)
    torch.testing.assert_close(after[kept], before[kept], rtol=1e-5, atol=1e-5)
    assert len(calls) == 4


def test_an_encoder_keeps_its_fused_path_exactly_while_its_norms_are_native() -> None:
    made = encoder()
    assert replace_layer_norms(made, "native").unfused == ()
    assert made.layers[0].activation_relu_or_gelu
    report = replace_layer_norms(nn.ModuleDict({"encoder": made}), "two_pass")
    assert report.unfused == ("encoder", "encoder.layers.0", "encoder.layers.1")


# --- what is left --------------------------------------------------------------------------------


def test_instances_of_one_class_are_distinguished_by_their_flags() -> None:
    made = nn.Sequential(FormatNorm(), FormatNorm(), BrokenNorm())
    made[1].channels_first = True
    report = replace_layer_norms(made, "two_pass")
    assert report.changed == ("0",)
    assert [(name, "axis 1" in why) for name, why in report.left] == [("1", True), ("2", False)]


def other_norms() -> nn.ModuleDict:
    """Return modules that are left, each for another reason."""
    replaced = nn.LayerNorm(HIDDEN)
    replaced.forward = replaced.forward
    hooked = built(HolderNorm)
    hooked.norm.register_forward_hook(lambda *arguments: None)
    torch.manual_seed(0)  # of the noise of TrainingNorm
    return nn.ModuleDict(
        {kind.__name__: built(kind) for kind in LEFT}
        | {
            "TrainingNorm": built(TrainingNorm).eval(),
            "WiderNorm": WiderNorm().bfloat16(),
            "RMSNorm": nn.RMSNorm(HIDDEN),
            "replaced_forward": replaced,
            "hooked": hooked,
            "already": LayerNorm(HIDDEN, implementation="two_pass"),
        }
    )


def test_modules_that_compute_something_else_are_left_as_they_were() -> None:
    made, same = other_norms(), other_norms()
    report = replace_layer_norms(made, "two_pass")
    assert report.changed == ("hooked.norm",)
    assert {name for name, _ in report.left} == {name for name, _ in made.named_children()}
    for kind in LEFT:
        assert type(made[kind.__name__]) is kind
        states = (modules[kind.__name__].state_dict() for modules in (made, same))
        torch.testing.assert_close(*states, rtol=0, atol=0)


def test_the_report_is_that_of_the_golden_file() -> None:
    shared = nn.LayerNorm(HIDDEN)
    models = {
        "a model": nn.ModuleDict({
            "encoder": encoder(),
            "foreign": built(GammaBetaNorm),
            "shared": shared,
            "head": shared,
            "batches": nn.Sequential(*(nn.BatchNorm1d(HIDDEN) for _ in range(5))),
        }),
        "other norms": other_norms(),
        "a module that stays": PlainNorm(),
        "no norm": nn.Linear(HIDDEN, HIDDEN),
    }
    declined = {"a model": "head", "a module that stays": ""}
    texts = []
    for title, model in models.items():
        report = replace_layer_norms(
            model, "two_pass", only=lambda name, _, title=title: name != declined.get(title)
        )
        texts.append(f"# {title}\n{report}")
    text = "\n\n".join(texts)
    assert_golden(text, __file__, "replacement_report.txt")
