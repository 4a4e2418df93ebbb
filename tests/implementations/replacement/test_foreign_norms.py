"""LayerNorms of other classes are replaced where they compute the same, and left otherwise."""

from __future__ import annotations

import copy
import pickle

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
    OptionalBiasNorm,
    Outer,
    PlainNorm,
    RenamingNorm,
    TrainingNorm,
    UnbiasedNorm,
    WiderNorm,
    WrapperNorm,
    built,
)
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from implementations import LayerNorm, UnsupportedError, find, replace_layer_norms

by_class = pytest.mark.parametrize("kind", RIGHT, ids=lambda kind: kind.__name__)


def normal(*shape: int, seed: int = 8) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def reason(module: nn.Module) -> str:
    report = replace_layer_norms(nn.Sequential(module), "two_pass")
    assert "0" not in report.changed
    return dict(report.left)["0"]


# --- what is changed -----------------------------------------------------------------------------


@by_class
def test_a_layer_norm_of_another_class_is_changed(kind: type[nn.Module]) -> None:
    made = nn.Sequential(built(kind))
    report = replace_layer_norms(made, "two_pass")
    assert (report.changed, report.left) == (("0",), ())
    assert isinstance(made[0], LayerNorm)
    assert made[0].implementation is find("two_pass")


@by_class
def test_results_and_gradients_stay_what_they_were(kind: type[nn.Module]) -> None:
    made = built(kind)
    changed = copy.deepcopy(made)
    replace_layer_norms(changed, "two_pass")
    found = []
    for module in (made, changed):
        # of a variance about the largest eps among them, so that eps counts
        x = (0.03 * normal(4, 2, HIDDEN)).requires_grad_()
        y = module(x)
        (y * normal(4, 2, HIDDEN, seed=9)).sum().backward()
        found.append([y, x.grad, *(each.grad for each in module.parameters())])
    # a few roundings in float32, of gradients that 1 / sigma makes 30 times as large
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-4)


@by_class
def test_the_implementation_is_what_runs(kind: type[nn.Module]) -> None:
    calls: list[tuple[int, ...]] = []
    native = find("native")

    def layer_norm(x: Tensor, shape: tuple[int, ...], *rest: object) -> Tensor:
        calls.append(tuple(shape))
        return native(x, shape, *rest)  # type: ignore[arg-type]

    made = built(kind)
    replace_layer_norms(made, type(native)(name="counting", function=layer_norm, source="here"))
    assert not calls
    made(normal(3, 2, HIDDEN))
    assert calls == [made.normalized_shape]


@by_class
def test_tensors_keep_their_places_names_and_identity(kind: type[nn.Module]) -> None:
    made = built(kind)
    tensors = dict([*made.named_parameters(), *made.named_buffers()])
    state = copy.deepcopy(made.state_dict())
    modules = list(map(id, made.modules()))
    replace_layer_norms(made, "two_pass")
    after = dict([*made.named_parameters(), *made.named_buffers()])
    assert {name: id(each) for name, each in after.items()} == {
        name: id(each) for name, each in tensors.items()
    }
    assert list(made.state_dict()) == list(state)
    assert list(map(id, made.modules())) == modules


@by_class
def test_a_state_dict_goes_both_ways(kind: type[nn.Module]) -> None:
    before, after = built(kind), built(kind)
    replace_layer_norms(after, "two_pass")
    other = {name: each + 1 for name, each in before.state_dict().items()}
    after.load_state_dict(other)
    before.load_state_dict(after.state_dict())
    torch.testing.assert_close(after(normal(3, 2, HIDDEN)), before(normal(3, 2, HIDDEN)))


@by_class
def test_it_can_be_replaced_again(kind: type[nn.Module]) -> None:
    made = nn.Sequential(built(kind))
    replace_layer_norms(made, "two_pass")
    kind_before = type(made[0])
    assert replace_layer_norms(made, "welford").changed == ("0",)
    assert made[0].implementation is find("welford")
    assert type(made[0]) is kind_before
    assert replace_layer_norms(made, "welford").left == (("0", "runs welford already"),)


@by_class
def test_copies_and_pickles_keep_what_runs(kind: type[nn.Module]) -> None:
    made = built(kind)
    replace_layer_norms(made, "two_pass")
    for copied in (copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert type(copied) is type(made)
        assert copied.implementation is find("two_pass")
        assert torch.equal(copied(normal(3, 2, HIDDEN)), made(normal(3, 2, HIDDEN)))


@by_class
def test_it_stays_an_instance_of_its_class_and_is_shown_as_one(kind: type[nn.Module]) -> None:
    made = built(kind)
    replace_layer_norms(made, "two_pass")
    assert isinstance(made, kind)
    assert repr(made).startswith(f"{kind.__name__}(")
    assert "implementation=two_pass" in repr(made)


@by_class
def test_nothing_of_the_model_changes_while_that_is_found_out(kind: type[nn.Module]) -> None:
    made = built(kind).eval()
    made.register_forward_hook(lambda *arguments: pytest.fail("the hook was run"))
    random_state = torch.get_rng_state()
    replace_layer_norms(made, "two_pass")
    assert torch.equal(torch.get_rng_state(), random_state)
    assert not made.training
    assert all(each.grad is None for each in made.parameters())


def test_shape_eps_and_parameters_are_read_where_they_are() -> None:
    made = built(GammaBetaNorm)
    replace_layer_norms(made, "two_pass")
    assert isinstance(made, LayerNorm)
    assert (made.normalized_shape, made.eps) == ((HIDDEN,), 1e-12)
    assert made.weight is made.gamma
    assert made.bias is made.beta
    made.gamma = nn.Parameter(torch.full((HIDDEN,), 3.0))
    assert made.weight is made.gamma


def test_parameters_inside_a_child_are_read_there() -> None:
    made = built(HolderNorm)
    replace_layer_norms(made, "two_pass")
    assert made.weight is made.norm.weight


def test_one_without_parameters_has_none_afterwards() -> None:
    made = built(NoParametersNorm)
    replace_layer_norms(made, "two_pass")
    assert isinstance(made, LayerNorm)
    assert (made.weight, made.bias, made.eps) == (None, None, 1e-6)
    assert not made.elementwise_affine


def test_what_the_class_does_while_loading_remains() -> None:
    made = nn.Sequential(built(RenamingNorm))
    replace_layer_norms(made, "two_pass")
    made.load_state_dict({"0.old": torch.full((HIDDEN,), 3.0), "0.bias": torch.zeros(HIDDEN)})
    assert made[0].weight[0] == 3.0


def test_hooks_of_the_user_go_on_running() -> None:
    calls: list[int] = []
    made = built(GammaBetaNorm)
    handle = made.register_forward_hook(lambda *arguments: calls.append(1))
    replace_layer_norms(made, "two_pass")
    made(normal(3, HIDDEN))
    handle.remove()
    made(normal(3, HIDDEN))
    assert calls == [1]


def test_tied_weights_and_optimizers_go_on_working() -> None:
    made = nn.Sequential(built(GammaBetaNorm), built(GammaBetaNorm))
    made[1].gamma = made[0].gamma
    optimizer = torch.optim.SGD(made.parameters(), lr=0.5)
    replace_layer_norms(made, "two_pass")
    before = made[1].weight.detach().clone()
    made(normal(5, HIDDEN)).square().sum().backward()
    optimizer.step()
    assert made[0].weight is made[1].weight
    assert not torch.equal(made[1].weight, before)


def test_x_can_be_given_by_the_name_it_had() -> None:
    made = built(OptionalBiasNorm)
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
    torch.testing.assert_close(after, before, rtol=0.05, atol=0.05)  # of 2^-8 for each rounding


def test_float32_parameters_leave_the_dtype_of_x_where_they_did() -> None:
    made = built(Float32Norm)
    x = normal(3, HIDDEN).bfloat16()
    before = made(x)
    replace_layer_norms(made, "two_pass")
    assert made(x).dtype == torch.bfloat16
    torch.testing.assert_close(made(x), before, rtol=2**-8, atol=0)
    with torch.autocast("cpu", torch.bfloat16):
        assert made(x).dtype == torch.bfloat16


def test_a_model_on_the_meta_device_is_recognised_and_stays_there() -> None:
    made = nn.Sequential(built(GammaBetaNorm)).to("meta")
    assert replace_layer_norms(made, "two_pass").changed == ("0",)
    assert made[0].weight.is_meta


def test_frozen_parameters_and_callers_modes_do_not_matter() -> None:
    made = built(GammaBetaNorm).requires_grad_(False)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert replace_layer_norms(made, "two_pass").changed == ("",)
    assert not made.gamma.requires_grad


def test_a_model_compiled_before_runs_the_implementation_afterwards() -> None:
    made = nn.Sequential(built(GammaBetaNorm))
    torch.compiler.reset()
    compiled = torch.compile(made, backend="eager", fullgraph=True)
    before = compiled(normal(5, HIDDEN))
    replace_layer_norms(compiled, "two_pass")
    torch.testing.assert_close(compiled(normal(5, HIDDEN)), before)


def test_what_an_implementation_refuses_stays_refused() -> None:
    made = built(GammaBetaNorm).double()
    native = find("native")
    narrow = type(native)(
        name="narrow", function=native.function, source="here", dtypes=frozenset({"float32"})
    )
    replace_layer_norms(made, narrow)
    with pytest.raises(UnsupportedError, match="float64"):
        made(normal(3, HIDDEN).double())


# --- modules inside modules ----------------------------------------------------------------------


def test_a_layer_norm_inside_a_changed_one_is_neither_changed_nor_left() -> None:
    made = nn.Sequential(built(WrapperNorm))
    report = replace_layer_norms(made, "two_pass")
    assert (report.changed, report.left) == (("0",), ())
    assert type(made[0].inner) is nn.LayerNorm
    again = replace_layer_norms(made, "welford")
    assert (again.changed, again.left) == (("0",), ())


def test_a_layer_norm_inside_is_changed_where_the_outer_one_is_left() -> None:
    made = nn.Sequential(built(WrapperNorm))
    report = replace_layer_norms(made, "two_pass", only=lambda name, module: name != "0")
    assert report.changed == ("0.inner",)
    assert report.left == (("0", "only() said no"),)


def test_a_layer_norm_used_inside_a_changed_one_and_elsewhere_is_changed_for_there() -> None:
    wrapper = built(WrapperNorm)
    made = nn.ModuleDict({"alone": wrapper.inner, "outer": wrapper})
    report = replace_layer_norms(made, "two_pass")
    assert report.changed == ("alone", "outer")
    torch.testing.assert_close(made["outer"].weight, wrapper.gamma[0])


def test_a_module_with_another_name_is_none_but_what_is_inside_it() -> None:
    made = nn.Sequential(Outer())
    assert replace_layer_norms(made, "two_pass").changed == ("0.norm",)


def test_what_computes_a_weight_is_no_candidate() -> None:
    made = nn.Sequential(parametrizations.weight_norm(nn.Linear(HIDDEN, HIDDEN)))
    report = replace_layer_norms(made, "two_pass")
    assert (report.changed, report.left) == ((), ())


# --- what is left --------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "why"), LEFT, ids=[kind.__name__ for kind, why in LEFT])
def test_what_is_no_layer_norm_is_left_with_the_reason(kind: type[nn.Module], why: str) -> None:
    made = built(kind)
    tensors = copy.deepcopy(made.state_dict())
    found = reason(made)
    assert found.startswith(why) or why in found
    assert type(made) is kind
    torch.testing.assert_close(made.state_dict(), tensors, rtol=0, atol=0)


def test_channels_first_is_left_with_that_reason() -> None:
    assert reason(FormatNorm(channels_first=True)) == "normalises over the channel axis (axis 1)"


@pytest.mark.parametrize("training", [True, False])
def test_one_that_differs_in_one_mode_is_left(training: bool) -> None:
    assert "LayerNorm: up to" in reason(built(TrainingNorm).train(training))
    if not training:
        assert reason(built(TrainingNorm).eval()).startswith("in training mode it is no LayerNorm")


def test_one_that_returns_another_dtype_than_x_is_left() -> None:
    assert reason(WiderNorm().bfloat16()) == "returns torch.float32 for an x in torch.bfloat16"


def test_an_eps_that_depends_on_the_dtype_is_left_where_it_is_another() -> None:
    class DtypeNorm(PlainNorm):
        def forward(self, x: Tensor) -> Tensor:
            eps = 1e-5 if x.dtype == torch.float32 else 1e-2
            return nn.functional.layer_norm(x, (HIDDEN,), self.weight, self.bias, eps)

    made = DtypeNorm()
    assert "in torch.bfloat16 with the eps" in reason(copy.deepcopy(made).bfloat16())
    assert replace_layer_norms(made, "two_pass").changed == ("",)
    assert made.eps == 1e-5


def test_one_with_hooks_on_what_is_inside_is_left() -> None:
    made = built(HolderNorm)
    made.norm.register_forward_hook(lambda *arguments: None)
    report = replace_layer_norms(made, "two_pass")
    assert report.changed == ("norm",)
    assert report.left == (("", "norm inside it has hooks, which would not run any more"),)


def test_a_parametrized_one_is_left() -> None:
    made = built(GammaBetaNorm)
    parametrizations.weight_norm(made, "gamma", dim=None)
    assert reason(made).startswith("is parametrized")


def test_one_whose_parameters_have_no_shape_yet_is_left() -> None:
    class LazyNorm(PlainNorm):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.UninitializedParameter()

    assert reason(LazyNorm()).startswith("its parameters have no shape yet")


def test_a_subclass_of_ours_with_a_forward_of_its_own_is_left() -> None:
    class Doubled(LayerNorm):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    assert "with a forward of its own" in reason(Doubled(HIDDEN))


def test_the_predicate_is_asked_of_every_candidate() -> None:
    asked: list[tuple[str, type]] = []
    made = nn.Sequential(built(GammaBetaNorm), nn.BatchNorm1d(HIDDEN), nn.Linear(HIDDEN, 1))
    report = replace_layer_norms(
        made, "two_pass", only=lambda name, module: bool(asked.append((name, type(module))))
    )
    assert sorted(asked, key=lambda each: each[0]) == [
        ("0", GammaBetaNorm),
        ("1", nn.BatchNorm1d),
    ]
    assert report.left == (("0", "only() said no"), ("1", "only() said no"))


def test_instances_of_one_class_are_told_apart_by_their_flags() -> None:
    made = nn.Sequential(FormatNorm(), FormatNorm(channels_first=True), FormatNorm())
    report = replace_layer_norms(made, "two_pass")
    assert report.changed == ("0", "2")
    assert [name for name, why in report.left] == ["1"]


# --- what is said --------------------------------------------------------------------------------


def test_the_report_names_classes_other_than_torch_s() -> None:
    made = nn.Sequential(
        nn.LayerNorm(HIDDEN), built(GammaBetaNorm), built(UnbiasedNorm), nn.RMSNorm(HIDDEN)
    )
    assert str(replace_layer_norms(made, "two_pass")) == (
        "2 changed to two_pass\n"
        "  0\n"
        "  1 (foreign_norms.GammaBetaNorm)\n"
        "2 left as they were\n"
        "  2 (foreign_norms.UnbiasedNorm): divides by N - 1 in its variance, not by N\n"
        "  3 (torch.nn.RMSNorm): is an RMSNorm: it does not subtract the mean"
    )
    assert "1 (foreign_norms.GammaBetaNorm)" in str(replace_layer_norms(made, "welford"))


# --- how long it takes ---------------------------------------------------------------------------


def test_modules_alike_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(GammaBetaNorm, "forward", counted(GammaBetaNorm.forward, calls))
    replace_layer_norms(built(GammaBetaNorm), "two_pass")
    of_one = len(calls)
    calls.clear()
    made = nn.Sequential(*(built(GammaBetaNorm) for _ in range(100)))
    assert len(replace_layer_norms(made, "two_pass").changed) == 100
    assert len(calls) == of_one


def counted(forward: object, calls: list[int]) -> object:
    def wrapped(self: nn.Module, x: Tensor) -> Tensor:
        calls.append(1)
        return forward(self, x)  # type: ignore[operator, no-any-return]

    return wrapped


def test_buffers_and_failures_do_not_matter_to_each_other() -> None:
    made = nn.Sequential(built(BrokenNorm), built(BufferBetaNorm), AnySizeNorm())
    report = replace_layer_norms(made, "two_pass")
    assert report.changed == ("1",)
    assert [name for name, why in report.left] == ["0", "2"]
