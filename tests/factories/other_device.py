"""A device that is not the CPU, on a machine without one: values on the CPU, reported elsewhere.

Tensors report the device ``meta``, which every torch has. As on a GPU, an operator refuses tensors
of two devices, except scalars, and a copy between devices is explicit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

__all__ = ["OtherDevice"]

_COPIES = {torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default}


class _Elsewhere(torch.Tensor):
    """A tensor on the other device; ``values`` is the same tensor on the CPU."""

    values: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    def __new__(cls, values: Tensor) -> _Elsewhere:
        made: _Elsewhere = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            values.size(),
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device="meta",
        )
        made.values = values
        return made

    @classmethod
    def __torch_dispatch__(
        cls, operator: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        return _run(operator, arguments, options or {})

    # a made tensor has neither memory nor bits of its own

    def is_neg(self) -> bool:
        return self.values.is_neg()

    def resolve_neg(self) -> Tensor:
        return _Elsewhere(self.values.resolve_neg()) if self.is_neg() else self

    def data_ptr(self) -> int:
        return self.values.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.values.untyped_storage()


class OtherDevice(TorchDispatchMode):
    """Within it, the device ``meta`` computes."""

    def __torch_dispatch__(
        self, operator: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        return _run(operator, arguments, options or {})


def _run(operator: Any, arguments: Any, options: dict[str, Any]) -> Any:
    tensors = [leaf for leaf in tree_leaves((arguments, options)) if isinstance(leaf, Tensor)]
    elsewhere = [tensor for tensor in tensors if isinstance(tensor, _Elsewhere)]
    here = [tensor for tensor in tensors if not isinstance(tensor, _Elsewhere) and tensor.dim()]
    if elsewhere and here and operator not in _COPIES:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but {operator} got two devices"
        )
    asked = options.get("device")
    is_elsewhere = bool(elsewhere) if asked is None else torch.device(asked).type == "meta"
    if operator is torch.ops.aten.copy_.default:
        is_elsewhere = isinstance(arguments[0], _Elsewhere)
    if asked is not None:
        options = {**options, "device": torch.device("cpu")}
    arguments, options = tree_map(
        lambda each: each.values if isinstance(each, _Elsewhere) else each, (arguments, options)
    )
    known = {id(tensor.values): tensor for tensor in elsewhere}

    def placed(found: Any) -> Any:
        if not isinstance(found, Tensor) or not is_elsewhere:
            return found
        return known[id(found)] if id(found) in known else _Elsewhere(found)

    return tree_map(placed, operator(*arguments, **options))
