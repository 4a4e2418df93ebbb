"""Loading a scale and a shift that were saved under other names; only ever when asked to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

__all__ = ["OTHER_NAMES", "rename", "rename_layer_norm_keys"]

OTHER_NAMES: Mapping[str, str] = {
    "gamma": "weight",  # the paper's algebra, TensorFlow, Keras, the first BERT checkpoints
    "beta": "bias",
    "gain": "weight",  # Ba, Kiros and Hinton, arXiv 1607.06450
    "scale": "weight",  # Flax, Haiku
    "offset": "bias",  # Haiku
    "shift": "bias",
}
"""Every name we met for the two parameters, and what ``torch.nn.LayerNorm`` calls it."""


def rename(state_dict: Mapping[str, Any], renamed: Mapping[str, str]) -> dict[str, Any]:
    """Return a copy of ``state_dict`` whose keys are ``renamed`` (old: new); others are kept.

    Raises:
        ValueError: two keys would become one.
    """
    found: dict[str, Any] = {}
    source: dict[str, str] = {}
    for key, value in state_dict.items():
        new = renamed.get(key, key)
        if new in found:
            raise ValueError(
                f"{source[new]!r} and {key!r} would both be loaded as {new!r}; "
                "remove one of them, or rename fewer"
            )
        found[new], source[new] = value, key
    return found


def rename_layer_norm_keys(
    model: nn.Module, state_dict: Mapping[str, Any], renamed: Mapping[str, str] = OTHER_NAMES
) -> dict[str, Any]:
    """Return ``state_dict`` for ``model``, with the keys of its LayerNorms renamed, no others.

    A ``gamma`` elsewhere, such as a layer scale, keeps its name.

    Args:
        model: what the result is for; every ``torch.nn.LayerNorm`` in it, subclasses too, counts.
        state_dict: as saved; not modified.
        renamed: from a parameter's name as saved to ``weight`` or ``bias``.

    Raises:
        ValueError: two keys would become one.
    """
    keys: dict[str, str] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, nn.LayerNorm):
            prefix = f"{name}." if name else ""
            keys |= {f"{prefix}{old}": f"{prefix}{new}" for old, new in renamed.items()}
    return rename(state_dict, keys)
