"""Contract checks of what PyTorch and its users do to a module, as done to a torch.nn.LayerNorm.

Each action is taken on a new module and on a torch.nn.LayerNorm with the same parameters, and what
can be seen afterwards is compared.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from operator import methodcaller
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from harness.records import Direction
from harness.run.call import ImplementationError, guarded
from harness.verify.checks.calls import Call, has_bits_of
from harness.verify.checks.contract_checks import check
from harness.verify.checks.made import MODES, TRAINING, Made, pickled, usual_of
from implementations.targets.module_parameters import own_eps

_OF_X = ("forward_pre", "full_backward")  # hooks that get x and dx
Action = Callable[[nn.Module], object]

_SAME, _ERROR = "the same", "an error"
_UNKNOWN = {"unknown": torch.zeros(1)}


def _load(
    module: nn.Module,
    change: Callable[[Tensor], Tensor] = Tensor.clone,
    more: Mapping[str, Tensor] = MappingProxyType({}),
    **options: bool,
) -> object:
    """Load a module's own state, with changed values and more keys."""
    state = {
        name: change(own) if isinstance(own, Tensor) and own.is_floating_point() else own
        for name, own in module.state_dict().items()
    }
    return module.load_state_dict({**state, **more}, **options)


def _load_with(kind: str, hook: Callable[..., object], module: nn.Module) -> object:
    getattr(module, f"register_{kind}_hook")(hook)
    return _load(module, strict=False)


def _adds_a_key(_: nn.Module, state: dict[str, Tensor], *_others: object) -> None:
    state.update(_UNKNOWN)


_ACTIONS: dict[str, Action] = {
    "copy.deepcopy(module)": copy.deepcopy,
    "copy.copy(module)": copy.copy,
    "pickle": pickled,
    "module.train()": methodcaller("train"),
    "module.eval()": methodcaller("eval"),
    "module.double()": methodcaller("double"),
    "module.requires_grad_(False)": methodcaller("requires_grad_", False),
    "module.share_memory()": methodcaller("share_memory"),
    "load_state_dict of a state in bfloat16": partial(_load, change=Tensor.bfloat16),
    "load_state_dict with assign=True": partial(_load, assign=True),
    "load_state_dict with strict=False and an unknown key": partial(
        _load, more=_UNKNOWN, strict=False
    ),
    "load_state_dict with an unknown key": partial(_load, more=_UNKNOWN),
    "load_state_dict of parameters with one element": partial(
        _load, change=lambda own: own.new_ones(1)
    ),
    "load_state_dict of parameters with more elements": partial(
        _load, change=lambda own: torch.cat([own, own])
    ),
    "load_state_dict({})": methodcaller("load_state_dict", {}),
    "load_state_dict({}, strict=False)": methodcaller("load_state_dict", {}, strict=False),
    "load_state_dict where a pre hook adds a key": partial(
        _load_with, "load_state_dict_pre", _adds_a_key
    ),
    "load_state_dict where a post hook adds an unexpected key": partial(
        _load_with, "load_state_dict_post", lambda _, keys: keys.unexpected_keys.append("unknown")
    ),
    "load_state_dict(module.state_dict()) where a post hook of state_dict adds a key": partial(
        _load_with, "state_dict_post", _adds_a_key
    ),
}
"""What is done, in words that follow "after"."""


def _seen_after(action: Action, made: Made) -> dict[str, object]:
    """Return what can be seen of a module after an action, in words that precede "is"."""
    module, eps, before = made.module, own_eps(made.module), made.parameters
    module.eval()
    module.register_forward_hook(print)  # it is not called
    hooks_before = len(module._forward_hooks)
    vars(module)["note"] = "of its user"
    made.freeze(*[*before][1:])
    addresses = {role: own.data_ptr() for role, own in before.items()}
    for own in before.values():
        own.grad = torch.ones_like(own)
    try:
        result: Any = guarded(action, module)()
    except ImplementationError:
        return {"what it returns": _ERROR}
    after = result if isinstance(result, nn.Module) else module
    hooks = len(after._forward_hooks)
    kind = "another module" if after is result else type(result).__name__
    seen: dict[str, object] = {"what it returns": _SAME if result is module else kind}
    for role, own in replace(made, module=after).parameters.items():
        is_old = own is before[role] or after is not module
        seen |= {
            f"{role}.dtype": own.dtype,
            f"{role}.grad.dtype": (own if own.grad is None else own.grad).dtype,
            f"{role}.requires_grad": own.requires_grad,
            f"{role}.is_shared()": own.is_shared(),
            f"{role}, which an optimizer may hold,": _SAME if is_old else "another",
            f"the memory of its {role}": _SAME if own.data_ptr() == addresses[role] else "another",
        }
    return seen | {
        "unexpected_keys": getattr(result, "unexpected_keys", None),
        "whether keys are missing": bool(getattr(result, "missing_keys", None)),
        "its mode": "training" if after.training else _SAME,
        "the number of its forward hooks": _SAME if hooks == hooks_before else hooks,
        "an attribute that was set": getattr(after, "note", "missing"),
        "its eps": _SAME if own_eps(after) == eps else "another",
    }


@check(Direction.FORWARD)
def does_as_torch_does(call: Call) -> Iterator[str]:
    """A module that is copied, moved, loaded or switched is what a torch.nn.LayerNorm would be."""
    usual = usual_of(call)
    # torch's own wrappers, such as of torch.compile, do otherwise
    if type(Made.of(usual).module).__module__.startswith(("torch._", "torch.jit", "torch.fx")):
        return
    for words, action in _ACTIONS.items():
        expected = _seen_after(action, Made.of_torch(usual))
        found = _seen_after(action, Made.of(usual))
        if found["what it returns"] == _ERROR:  # other checks say what raises
            continue
        for what, value in expected.items():
            if found[what] not in (value, _SAME):
                where = f"differs from torch.nn.LayerNorm after {words}"
                yield f"{where}: {what} is {found[what]}, not {value}"


@check(None)
def runs_hooks(call: Call) -> Iterator[str]:
    """A hook runs in each call, also of a copy: tools that read activations depend on it.

    What it returns takes the place of what it is given.
    """
    usual = usual_of(call)
    kinds = ["forward", "forward_pre"]
    kinds += [] if call.target.forward_only else ["full_backward", "full_backward_pre"]
    for scope, kind in product(("", "module_"), kinds):
        made, runs = Made.of(usual), list[object]()
        if made.is_script:  # it takes none
            return

        def zeros(_: object, *given: Any, runs: list[object] = runs) -> Any:
            """Return zeros in place of y, or of the tuple that a hook before or behind it gets."""
            runs.append(None)
            is_y = isinstance(given[-1], Tensor)
            return given[-1] * 0 if is_y else tuple(own * 0 for own in given[0])

        holder: object = nn.modules.module if scope else made.module
        words = f"{'global ' if scope else ''}{kind.replace('_', ' ')} hooks"
        copies, modes = [made.module], (TRAINING,) if "backward" in kind else MODES
        plain = {mode: made.outputs(mode) for mode in modes}
        with getattr(holder, f"register_{scope}{kind}_hook")(zeros):
            with suppress(Exception):  # another check names it
                copies.append(copy.deepcopy(made.module))
            for module, mode in product(copies, modes):
                runs.clear()
                outputs = replace(made, module=module).outputs(mode)
                # in rows of one element y is the bias, whatever x is, and dx is 0
                is_seen = kind not in _OF_X or call.case.hidden > 1
                if not runs or (is_seen and has_bits_of(outputs, plain[mode])):
                    verb = "ignores the results of" if runs else "runs no"
                    of_copy = "" if module is made.module else " of a deep copy"
                    yield f"{verb} {words}{of_copy} {mode.words}"
