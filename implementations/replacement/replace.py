"""Make the LayerNorms of a model run another implementation, and report which were not changed.

A module is changed in place, by assigning another class, as ``torch.nn.utils.parametrize`` does.
Its parameters, hooks, buffers and training mode stay, and so do all references to it.
:mod:`implementations.replacement.proof` finds by experiment whether a module of another class than
``torch.nn.LayerNorm`` computes the same.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized, type_before_parametrizations

from implementations.contract import Implementation
from implementations.dispatch import Dispatch, ImplementationLike, name_of, resolve
from implementations.module import LayerNorm
from implementations.replacement.converted import ConvertedLayerNorm, converted_class
from implementations.replacement.norm_modules import (
    class_name,
    fingerprint,
    norm_modules,
    reason_to_leave,
)
from implementations.replacement.proof import Proven, prove
from implementations.replacement.subject import UnprovenError

_FEW = 3  # modules with the same reason that have a line each; a ResNet-50 has 53 BatchNorms

Predicate = Callable[[str, nn.Module], bool]
"""Whether to change the module of this qualified name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacementReport:
    """What was changed in a model and what was not; ``str()`` returns a readable text.

    Names are qualified, as in ``model.named_modules()``; the name of the model itself is ``""``.
    """

    implementation: str
    """Name of the implementation that the changed modules now run."""
    changed: tuple[str, ...]
    """Names of the changed modules; a module used at several places has several."""
    left: tuple[tuple[str, str], ...]
    """Name and reason of each LayerNorm, or module of a class with "norm" in its name, that was
    left as it was. Modules inside a changed one are not listed, since it no longer calls them."""
    unfused: tuple[str, ...]
    """Encoders and encoder layers whose fused inference path, which never calls the norms, was
    switched off."""
    classes: tuple[tuple[str, str], ...] = ()
    """Name and class of each module, changed or left, that was no ``torch.nn.LayerNorm``."""

    def __str__(self) -> str:
        if not self.changed and not self.left:
            return (
                "nothing changed: the model has no torch.nn.LayerNorm, "
                'and no module of a class with "norm" in its name'
            )
        lines = [f"{len(self.changed)} changed to {self.implementation}"]
        lines += [f"  {self._described(name)}" for name in self.changed]
        if self.left:
            lines.append(f"{len(self.left)} left unchanged")
            lines += self._left_lines()
        if self.unfused:
            lines.append("fused inference path, which never calls the norms, switched off")
            lines += [f"  {_readable(name)}" for name in self.unfused]
        return "\n".join(lines)

    def _left_lines(self) -> list[str]:
        """Return one line per module; one per reason if many modules share it."""
        by_reason: dict[str, list[str]] = {}
        for name, reason in self.left:
            by_reason.setdefault(reason, []).append(self._described(name))
        lines = []
        for reason, names in by_reason.items():
            if len(names) <= _FEW:
                lines += [f"  {name}: {reason}" for name in names]
            else:
                lines.append(f"  {', '.join(names[:2])} and {len(names) - 2} more: {reason}")
        return lines

    def _described(self, name: str) -> str:
        kind = dict(self.classes).get(name)
        return _readable(name) + (f" ({kind})" if kind else "")


def replace_layer_norms(
    model: nn.Module, implementation: ImplementationLike, *, only: Predicate | None = None
) -> ReplacementReport:
    """Make every LayerNorm in ``model`` run ``implementation``, in place.

    Every ``torch.nn.LayerNorm`` is changed, and every module of a class with "norm" in its name
    that is shown to compute the same: copies of it are called in training and evaluation mode, and
    their results and gradients are compared with torch's. The model itself may be one. Hooks,
    parametrizations, weight tying, keys of the ``state_dict`` and optimizers keep working. An
    instance of :class:`implementations.LayerNorm` receives the new implementation.

    Unless the implementation is native, ``torch.nn.TransformerEncoderLayer`` and
    ``TransformerEncoder`` then use their slower inference path without nested tensors, because
    the fast path never calls their norms.

    Args:
        model: changed in place.
        implementation: what ``LayerNorm(..., implementation=)`` accepts.
        only: called with qualified name and module; a module is left if it returns False. A module
            used at two places is changed only if it returns True for both names.

    Raises:
        TargetError: the implementation is not found; nothing is changed.
    """
    chosen = resolve(implementation)
    # all decisions come first, so that a predicate that raises leaves the model unchanged
    decisions = _Decisions(model, chosen, only).of(norm_modules(model))
    changed: list[str] = []
    left: list[tuple[str, str]] = []
    classes: list[tuple[str, str]] = []
    for module, names, decision in decisions:
        if (kind := class_name(module)) is not None:
            classes += [(name, kind) for name in names]
        if isinstance(decision, str):
            left += [(name, decision) for name in names]
        else:
            changed += names
            _convert(module, decision).implementation = chosen
    return ReplacementReport(
        implementation=name_of(chosen),
        changed=tuple(changed),
        left=tuple(left),
        unfused=tuple(_unfuse(model)),
        classes=tuple(classes),
    )


def _readable(name: str) -> str:
    return name or "(the model itself)"


Decision = str | Proven | None
"""The reason to leave a module, or its proof; None if its class is known to be a LayerNorm."""


@dataclass(slots=True)
class _Decisions:
    """Decides for each norm of a model whether it is changed or left."""

    model: nn.Module
    chosen: Implementation | Dispatch
    only: Predicate | None
    proofs: dict[Hashable, Proven | str] = field(default_factory=dict)
    """By fingerprint."""

    def of(
        self, found: list[tuple[nn.Module, list[str]]]
    ) -> list[tuple[nn.Module, list[str], Decision]]:
        """Return each module with its names and the decision, except those inside a changed one.

        A changed module no longer calls the modules that it contains. If such a module is also
        used elsewhere, the decision is about its other names.
        """
        decisions: dict[int, tuple[nn.Module, list[str], Decision]] = {}
        covered: set[str] = set()
        # containers first: they have more modules inside them than their children have
        for module, names in sorted(found, key=lambda norm: -sum(1 for _ in norm[0].modules())):
            outside = [name for name in names if not _inside(name, covered)]
            if not outside:
                continue
            decision = self._of(outside, module)
            decisions[id(module)] = module, outside, decision
            is_changed = not isinstance(decision, str)
            if is_changed or isinstance(module, ConvertedLayerNorm):
                covered.update(outside)
        return [decisions[id(module)] for module, _ in found if id(module) in decisions]

    def _of(self, names: list[str], module: nn.Module) -> Decision:
        declined = [name for name in names if self.only is not None and not self.only(name, module)]
        if len(declined) == len(names):
            return "only() returned False"
        if declined:
            return f"also used as {_readable(declined[0])}, for which only() returned False"
        if "forward" in vars(module):
            return (
                "its forward was replaced on the object, for instance by a hook of accelerate; "
                "undo that first"
            )
        kind: type[nn.Module] = type_before_parametrizations(module)
        if isinstance(module, LayerNorm):
            if kind.forward not in (LayerNorm.forward, ConvertedLayerNorm.forward):
                return "is a subclass of implementations.LayerNorm with a forward of its own"
            already = module.implementation == self.chosen
            return f"already runs {name_of(self.chosen)}" if already else None
        if kind is nn.LayerNorm:
            return None
        return reason_to_leave(module) or self._proof(module)

    def _proof(self, module: nn.Module) -> Proven | str:
        key = fingerprint(module)
        if key not in self.proofs:
            try:
                self.proofs[key] = prove(module, *self._where(module))
            except UnprovenError as error:
                self.proofs[key] = str(error)
        return self.proofs[key]

    def _where(self, module: nn.Module) -> tuple[torch.device, torch.dtype]:
        """Return device and dtype of the module's x: those of its parameters, or the model's."""
        for owner in (module, self.model):
            for tensor in (*owner.parameters(), *owner.buffers()):
                if tensor.is_floating_point():
                    return torch.device("cpu") if tensor.is_meta else tensor.device, tensor.dtype
        return torch.device("cpu"), torch.float32


def _inside(name: str, covered: set[str]) -> bool:
    """Whether a name belongs to a module inside one of ``covered``."""
    parts = name.split(".") if name else []
    return any(".".join(parts[:count]) in covered for count in range(len(parts)))


def _convert(module: nn.Module, proven: Proven | None) -> LayerNorm:
    """Assign :class:`LayerNorm`, or a class derived from it, to ``module``."""
    if proven is not None:
        conversion = proven.conversion
        module.__class__ = converted_class(type(module), conversion)
        assert isinstance(module, LayerNorm)
        module.normalized_shape, module.eps = proven.normalized_shape, proven.eps
        module.elementwise_affine = {conversion.weight, conversion.bias} != {None}
    elif not isinstance(module, LayerNorm):
        kind: type[LayerNorm] = LayerNorm
        if is_parametrized(module):  # its class has a property for each parametrized tensor
            kind = type("ParametrizedLayerNorm", (LayerNorm,), dict(vars(type(module))))
        module.__class__ = kind
    assert isinstance(module, LayerNorm)
    return module


def _unfuse(model: nn.Module) -> Iterator[str]:
    """Switch off the fused inference path of encoders with a norm that is not native.

    torch.nn.modules.transformer tests these attributes before it takes that path.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            attribute, off, norms = "activation_relu_or_gelu", 0, module
        elif isinstance(module, nn.TransformerEncoder):
            attribute, off, norms = "use_nested_tensor", False, module.layers
        else:
            continue
        if getattr(module, attribute) and _has_other_norm(norms):
            setattr(module, attribute, off)
            yield name


def _has_other_norm(module: nn.Module) -> bool:
    return any(
        isinstance(inner, LayerNorm) and name_of(inner.implementation) != "native"
        for inner in module.modules()
    )
