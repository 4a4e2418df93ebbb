"""Make the ``torch.nn.LayerNorm`` of a model run another implementation, and say which did not.

A module is changed where it stands, by giving it another class, as ``torch.nn.utils.parametrize``
does: parameters, hooks, buffers, training mode, places it is used at and references to it remain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import nn
from torch.nn.utils.parametrize import is_parametrized, type_before_parametrizations

from implementations.dispatch import Choice, name_of, resolve
from implementations.module import LayerNorm

__all__ = ["Report", "replace_layer_norms"]

Predicate = Callable[[str, nn.LayerNorm], bool]
"""Whether to change the module of this qualified name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was changed in a model and what was not; ``str()`` of it is meant to be read.

    Names are qualified, as ``model.named_modules()`` has them; of the model itself it is ``""``.
    """

    implementation: str
    """What the changed modules now run."""
    changed: tuple[str, ...]
    """Names of changed modules; a module used at several places has several."""
    left: tuple[tuple[str, str], ...]
    """Name of, and reason for, each LayerNorm that was left as it was."""
    unfused: tuple[str, ...]
    """Encoders and encoder layers whose fused inference path, which never calls their norms, was
    switched off."""

    def __str__(self) -> str:
        if not self.changed and not self.left:
            return "nothing changed: the model has no torch.nn.LayerNorm"
        lines = [f"{len(self.changed)} changed to {self.implementation}"]
        lines += [f"  {_readable(name)}" for name in self.changed]
        if self.left:
            lines.append(f"{len(self.left)} left as they were")
            lines += [f"  {_readable(name)}: {reason}" for name, reason in self.left]
        if self.unfused:
            lines.append("fused inference path, which never calls the norms, switched off")
            lines += [f"  {_readable(name)}" for name in self.unfused]
        return "\n".join(lines)


def replace_layer_norms(
    model: nn.Module,
    implementation: Choice,
    *,
    only: Predicate | None = None,
    also: tuple[type[nn.LayerNorm], ...] = (),
) -> Report:
    """Make every ``torch.nn.LayerNorm`` in ``model`` run ``implementation``, in place.

    The model itself may be one. Hooks, parametrizations, weight tying and optimizers go on
    working. An instance of :class:`implementations.LayerNorm` gets the new implementation.
    ``torch.nn.TransformerEncoderLayer`` and ``TransformerEncoder`` take their slower path for
    inference from then on, and no nested tensors, since the fast one bypasses their norms; unless
    the implementation is native, which it stands for anyway.

    Args:
        model: changed in place.
        implementation: what ``LayerNorm(..., implementation=)`` takes.
        only: called with qualified name and module; what it says no to is left. A module used at
            two places is changed if it says yes to both.
        also: subclasses of ``torch.nn.LayerNorm`` to change as well. They lose what they override.

    Raises:
        TargetError: the implementation is not found; nothing is changed.
    """
    chosen = resolve(implementation)
    changed: list[str] = []
    left: list[tuple[str, str]] = []
    # decided for all before any is changed: a predicate that raises leaves the model as it was
    to_change: list[nn.LayerNorm] = []
    for names, module in _norms(model):
        if reason := _reason_to_leave(names, module, only, (nn.LayerNorm, LayerNorm, *also)):
            left += [(name, reason) for name in names]
        elif isinstance(module, LayerNorm) and module.implementation == chosen:
            left += [(name, f"runs {name_of(chosen)} already") for name in names]
        else:
            changed += names
            to_change.append(module)
    for module in to_change:
        _become_ours(module).implementation = chosen
    return Report(
        implementation=name_of(chosen),
        changed=tuple(changed),
        left=tuple(left),
        unfused=tuple(_unfuse(model)),
    )


def _readable(name: str) -> str:
    return name or "(the model itself)"


def _norms(model: nn.Module) -> list[tuple[list[str], nn.LayerNorm]]:
    """Every LayerNorm of the model once, with all the names it has there."""
    found: dict[int, tuple[list[str], nn.LayerNorm]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, nn.LayerNorm):
            found.setdefault(id(module), ([], module))[0].append(name)
    return list(found.values())


def _reason_to_leave(
    names: list[str],
    module: nn.LayerNorm,
    only: Predicate | None,
    classes: tuple[type[nn.Module], ...],
) -> str | None:
    declined = [name for name in names if only is not None and not only(name, module)]
    if len(declined) == len(names):
        return "only() said no"
    if declined:
        return f"used also as {_readable(declined[0])}, to which only() said no"
    kind = type_before_parametrizations(module)
    if kind not in classes:
        return (
            f"is a subclass, {kind.__module__}.{kind.__qualname__}, whose forward may do more; "
            "if it does not, name the class in also="
        )
    if "forward" in vars(module):
        return "its forward was replaced on the object, by a hook of accelerate say; undo it first"
    return None


def _become_ours(module: nn.LayerNorm) -> LayerNorm:
    """Give ``module`` our class, or one with the same parametrizations derived from it."""
    if not isinstance(module, LayerNorm):
        kind: type[LayerNorm] = LayerNorm
        if is_parametrized(module):  # its class has a property for each parametrized tensor
            kind = type("ParametrizedLayerNorm", (LayerNorm,), dict(vars(type(module))))
        module.__class__ = kind
    assert isinstance(module, LayerNorm)
    return module


def _unfuse(model: nn.Module) -> Iterator[str]:
    """Switch off the fused inference path of encoders with a norm that is not native.

    These are the attributes by which torch.nn.modules.transformer decides on it, and says so.
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
        isinstance(each, LayerNorm) and name_of(each.implementation) != "native"
        for each in module.modules()
    )
