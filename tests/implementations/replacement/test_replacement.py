"""LayerNorms of a model are replaced if they compute the same, and nothing else changes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from factories.golden import assert_golden
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize

from implementations import LayerNorm, TargetError, find, native, replace_layer_norms


def model() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Sequential(nn.LayerNorm(8)))


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(8))


# --- what is changed -----------------------------------------------------------------------------


def test_every_layer_norm_runs_the_implementation_and_the_rest_is_unchanged() -> None:
    made = model()
    objects = list(map(id, [*made.modules(), *made.parameters()]))
    before = made(normal(5, 8))
    for name in ("welford", "two_pass"):  # the second time, it is a drop-in already
        report = replace_layer_norms(made, name)
        assert (report.changed, report.left) == (("1", "2.0"), ())
        assert made[1].implementation is made[2][0].implementation is find(name)
        # two LayerNorms of values near one: a few roundings
        torch.testing.assert_close(made(normal(5, 8)), before, rtol=1e-5, atol=1e-5)
    assert list(map(id, [*made.modules(), *made.parameters()])) == objects
    report = replace_layer_norms(made, "two_pass")
    assert (report.changed, [name for name, _ in report.left]) == ((), ["1", "2.0"])


def test_mode_dtype_eps_and_frozen_parameters_are_kept() -> None:
    made = nn.Sequential(nn.LayerNorm((3, 8), eps=1e-3, bias=False, dtype=torch.float64)).eval()
    made[0].weight.requires_grad_(False)
    replace_layer_norms(made, "two_pass")
    assert isinstance(made[0], LayerNorm)
    assert (made[0].normalized_shape, made[0].eps, made[0].bias) == ((3, 8), 1e-3, None)
    assert made[0].weight.dtype == torch.float64
    assert not made[0].training
    assert not made[0].weight.requires_grad


def test_a_module_used_at_two_places_stays_one_and_is_named_twice() -> None:
    shared = nn.LayerNorm(8)
    made = nn.ModuleDict({"first": shared, "second": shared})
    report = replace_layer_norms(made, "two_pass")
    assert report.changed == ("first", "second")
    assert made["first"] is made["second"] is shared
    assert isinstance(shared, LayerNorm)


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


Build = Callable[[], nn.Module]
torch_or_foreign = pytest.mark.parametrize(
    "build", [lambda: nn.LayerNorm(8), lambda: built(GammaBetaNorm)], ids=["torch", "foreign"]
)
HOOKS: list[Callable[[nn.Module, Callable[..., None]], Any]] = [
    lambda made, hook: made.register_forward_hook(hook),
    lambda made, hook: made.register_forward_pre_hook(hook),
    lambda made, hook: made.register_full_backward_hook(hook),
    lambda made, hook: made.register_state_dict_post_hook(hook),
    lambda made, hook: next(made.parameters()).register_post_accumulate_grad_hook(hook),
]


@pytest.mark.parametrize("register", HOOKS)
@torch_or_foreign
def test_hooks_are_carried_over_and_can_be_removed(
    register: Callable[[nn.Module, Callable[..., None]], Any], build: Build
) -> None:
    calls: list[int] = []
    made = build()
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


@torch_or_foreign
def test_tied_parameters_and_an_optimizer_made_before_keep_working(build: Build) -> None:
    made = nn.Sequential(build(), build())
    ((name, tied), *_) = made[0].named_parameters()
    setattr(made[1], name, tied)
    optimizer = torch.optim.SGD(made.parameters(), lr=0.5)
    replace_layer_norms(made, "two_pass")
    before = made[1].weight.detach().clone()
    made(normal(5, 8)).square().sum().backward()
    optimizer.step()
    assert made[0].weight is made[1].weight is tied
    assert not torch.equal(made[1].weight, before)


@torch_or_foreign
def test_a_model_on_the_meta_device_stays_there(build: Build) -> None:
    made = nn.Sequential(build()).to("meta")
    assert replace_layer_norms(made, "two_pass").changed == ("0",)
    assert made[0].weight.is_meta


@torch_or_foreign
def test_a_model_compiled_before_runs_the_implementation_afterwards(build: Build) -> None:
    made = nn.Sequential(build())
    torch.compiler.reset()
    compiled = torch.compile(made, backend="eager", fullgraph=True)
    before = compiled(normal(5, 8))
    replace_layer_norms(compiled, "two_pass")
    after = compiled(normal(5, 8))
    torch.testing.assert_close(after, before)
    assert "NativeLayerNorm" not in after.grad_fn.name()


# --- what is left --------------------------------------------------------------------------------


def test_a_module_is_left_if_the_predicate_returns_false() -> None:
    made = model()
    report = replace_layer_norms(made, "two_pass", only=lambda name, norm: name.startswith("2"))
    assert report.changed == ("2.0",)
    assert [name for name, _ in report.left] == ["1"]
    assert type(made[1]) is nn.LayerNorm


def test_an_unknown_implementation_or_a_predicate_that_raises_leaves_the_model_as_it_was() -> None:
    made = model()
    with pytest.raises(TargetError):
        replace_layer_norms(made, "two_pas")
    with pytest.raises(KeyError):
        replace_layer_norms(made, "two_pass", only=lambda name, _: {"1": True}[name])
    assert type(made[1]) is nn.LayerNorm


def test_a_shared_module_is_left_if_the_predicate_returns_false_for_one_of_its_names() -> None:
    shared = nn.LayerNorm(8)
    made = nn.ModuleDict({"first": shared, "second": shared})
    report = replace_layer_norms(made, "two_pass", only=lambda name, norm: name == "first")
    assert [name for name, why in report.left if "second" in why] == ["first", "second"]
    assert type(shared) is nn.LayerNorm


# --- encoders with a fused path that never calls its norms ---------------------------------------

# torch calls nested tensors a prototype, and uses them for a mask at inference
nested = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")


def encoder(layers: int = 2) -> nn.TransformerEncoder:
    torch.manual_seed(9)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, layers).eval()


def counted(module: nn.Module) -> list[int]:
    """Replace the LayerNorms by one that appends to the returned list in every call."""
    calls: list[int] = []

    def layer_norm(*arguments: Any) -> Tensor:
        calls.append(1)
        return native(*arguments)

    replace_layer_norms(module, replace(native, name="counting", function=layer_norm))
    return calls


@torch.no_grad()
def test_an_encoder_layer_calls_the_implementation_at_inference() -> None:
    layer = encoder().layers[0]
    before = layer(normal(2, 5, 8))
    replace_layer_norms(layer, "native")  # the fused path reads the parameters of the drop-in
    assert torch.equal(layer(normal(2, 5, 8)), before)
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


def test_an_encoder_keeps_its_fused_path_exactly_while_its_norms_are_native() -> None:
    made = encoder()
    assert replace_layer_norms(made, "native").unfused == ()
    assert replace_layer_norms(made, "two_pass", only=lambda *each: False).unfused == ()
    assert made.layers[0].activation_relu_or_gelu
    assert made.use_nested_tensor
    report = replace_layer_norms(nn.ModuleDict({"encoder": made}), "two_pass")
    assert report.unfused == ("encoder", "encoder.layers.0", "encoder.layers.1")


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


def other_norms() -> nn.ModuleDict:
    """Return modules that are left, each for another reason."""
    parametrized, replaced = built(GammaBetaNorm), nn.LayerNorm(HIDDEN)
    parametrizations.weight_norm(parametrized, "gamma", dim=None)
    replaced.forward = replaced.forward
    torch.manual_seed(0)  # of the noise of TrainingNorm
    return nn.ModuleDict(
        {kind.__name__: built(kind) for kind in LEFT}
        | {
            "FormatNorm": FormatNorm(channels_first=True),
            "TrainingNorm": built(TrainingNorm).eval(),
            "WiderNorm": WiderNorm().bfloat16(),
            "RMSNorm": nn.RMSNorm(HIDDEN),
            "GroupNorm": nn.GroupNorm(2, HIDDEN),
            "parametrized": parametrized,
            "replaced_forward": replaced,
            "already": LayerNorm(HIDDEN, implementation="two_pass"),
        }
    )


def test_the_report_is_that_of_the_golden_file() -> None:
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(HIDDEN, 2, 16, batch_first=True), num_layers=1
    )
    shared = nn.LayerNorm(HIDDEN)
    models = {
        "a model": nn.ModuleDict({
            "encoder": encoder.eval(),
            "foreign": built(GammaBetaNorm),
            "shared": shared,
            "head": shared,
            "batches": nn.Sequential(*(nn.BatchNorm1d(HIDDEN) for _ in range(5))),
        }),
        "other norms": other_norms(),
        "one module": nn.LayerNorm(HIDDEN),
        "a module that stays": PlainNorm(),
        "no norm": nn.Linear(HIDDEN, HIDDEN),
    }
    texts = []
    for title, model in models.items():
        declined = {"a model": "head", "a module that stays": ""}.get(title)
        report = replace_layer_norms(
            model, "two_pass", only=lambda name, _, declined=declined: name != declined
        )
        texts.append(f"# {title}\n{report}")
    text = "\n\n".join(texts)
    assert_golden(text, Path(__file__).with_name("golden") / "replacement_report.txt")
