"""A drop-in for ``torch.nn.LayerNorm`` that runs a given implementation.

It never runs another one: a call that the implementation cannot handle is refused. One limitation:
``torch.nn.TransformerEncoderLayer`` has a fused path for inference that reads the parameters of
its norms and never calls them. :func:`implementations.replace_layer_norms` switches that path off.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from implementations.contract import Implementation, UnsupportedError, requires_gradient
from implementations.dispatch import Dispatch, ImplementationLike, name_of, reference_to, resolve

FLOAT32_UNDER_AUTOCAST = frozenset({"cuda", "xpu", "mps", "mtia", "maia"})
"""Device kinds whose autocast runs layer_norm in float32 (torch, AT_FORALL_FP32 in
aten/src/ATen/autocast_mode.h). On the CPU, autocast does not change the inputs of layer_norm."""

_DECLARED_DEVICES = frozenset({"cpu", "cuda"})
"""The kinds that ``Implementation.devices`` covers; others (mps, meta) are not refused by it."""


class LayerNorm(nn.LayerNorm):
    """``torch.nn.LayerNorm``, run by the implementation of your choice.

    Constructor, parameters, ``state_dict`` and errors are those of ``torch.nn.LayerNorm``, and so
    are dtype and device of y, also under autocast. The ``state_dict`` does not contain the
    implementation; ``pickle`` and ``copy.deepcopy`` keep it.

    Args:
        implementation: a name or target that :func:`implementations.find` accepts, an
            :class:`Implementation`, a :class:`Dispatch`, or a mapping that becomes one.

    Raises:
        TargetError: the implementation is not found.
        UnsupportedError: on a call that the implementation does not support.
    """

    _implementation: Implementation | Dispatch

    def __init__(
        self,
        normalized_shape: int | list[int] | tuple[int, ...] | torch.Size,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        implementation: ImplementationLike = "native",
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, bias, device, dtype)
        self.implementation = implementation

    @property
    def implementation(self) -> Implementation | Dispatch:
        """The implementation or table that a call runs; set it to any value for the constructor."""
        return self._implementation

    @implementation.setter
    def implementation(self, choice: ImplementationLike) -> None:
        self._implementation = resolve(choice)

    def forward(self, input: Tensor) -> Tensor:
        """Normalise ``input`` over its trailing axes.

        Raises:
            NotImplementedError: ``input`` has no floating dtype.
            RuntimeError: the shape of ``input`` does not end in ``normalized_shape``.
            TypeError: ``input`` is not a tensor.
            UnsupportedError: the implementation does not support the call; the message says why.
        """
        self._check(input)
        weight: Tensor | None = self.weight
        bias: Tensor | None = self.bias
        kind = input.device.type
        if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
            return self._run(input, weight, bias)
        if kind in FLOAT32_UNDER_AUTOCAST:
            input = _to_float32(input)
            weight = None if weight is None else _to_float32(weight)
            bias = None if bias is None else _to_float32(bias)
        # autocast must not cast the single operations of an implementation
        with torch.autocast(kind, enabled=False):
            return self._run(input, weight, bias)

    def _run(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        gradient = requires_gradient(x, weight, bias)
        chosen = self._implementation
        if isinstance(chosen, Dispatch):
            chosen = chosen.choose(x, self.normalized_shape, gradient=gradient)
        _refuse_undeclared(chosen, x, gradient=gradient)
        return chosen.function(x, self.normalized_shape, weight, bias, self.eps)

    def _check(self, x: Tensor) -> None:
        """Raise what ``torch.nn.LayerNorm`` raises, whatever the implementation would raise."""
        if not isinstance(x, Tensor):
            raise TypeError(f"layer_norm(): input must be Tensor, not {type(x).__name__}")
        if x.is_nested:  # a nested tensor has no shape to compare
            return
        wanted = self.normalized_shape
        if not wanted:
            raise RuntimeError("Expected normalized_shape to be at least 1-dimensional, got []")
        if tuple(x.shape[-len(wanted) :]) != wanted:
            raise RuntimeError(
                f"Given normalized_shape={list(wanted)}, expected input with shape "
                f"[*, {', '.join(map(str, wanted))}], but got input of size{list(x.shape)}"
            )
        if not x.is_floating_point():
            raise NotImplementedError(f"layer_norm of {x.dtype}: expected a floating dtype")

    def extra_repr(self) -> str:
        """Return what ``torch.nn.LayerNorm`` shows, plus the implementation unless it is native."""
        name = name_of(self._implementation)
        return super().extra_repr() + ("" if name == "native" else f", implementation={name}")

    def __getstate__(self) -> dict[str, Any]:
        """Store the implementation by name, since its function cannot be pickled."""
        state = dict(super().__getstate__())  # type: ignore[no-untyped-call]
        if isinstance(self._implementation, Implementation):
            state["_implementation"] = reference_to(self._implementation)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        implementation = resolve(state["_implementation"])
        super().__setstate__(state | {"_implementation": implementation})  # type: ignore[no-untyped-call]


def _refuse_undeclared(chosen: Implementation, x: Tensor, *, gradient: bool) -> None:
    """Refuse a call that the implementation declares not to support.

    Raises:
        UnsupportedError: it does not declare x's device or dtype, or it has no gradient.
    """
    kind, dtype = x.device.type, str(x.dtype).removeprefix("torch.")
    if kind in _DECLARED_DEVICES and kind not in chosen.devices:
        raise UnsupportedError(
            f"{chosen.name} does not run on {kind}; it runs on {_listed(chosen.devices)}"
        )
    if dtype not in chosen.dtypes:
        raise UnsupportedError(
            f"{chosen.name} does not take {dtype}; it takes {_listed(chosen.dtypes)}"
        )
    if gradient and chosen.forward_only:
        raise UnsupportedError(
            f"{chosen.name} has no gradient; call it under torch.no_grad(), or choose another"
        )


def _listed(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))


def _to_float32(tensor: Tensor) -> Tensor:
    """Convert a tensor as autocast does for an operator on its float32 list."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()
