"""Custom operators of torch with a derivative that is never wrong without an error.

An operator is opaque to torch.compile, as a loop over elements and a launch of a kernel have to be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def differentiable(
    operator: Any, gradient: Callable[..., Any], save: Callable[..., None]
) -> Callable[..., Any]:
    """Return a custom operator with a derivative, which raises in forward mode.

    A derivative that is registered for the operator alone would there be 0, without an error.

    Args:
        operator: as ``torch.library.custom_op`` makes it.
        gradient: from the context and the gradients of the outputs to those of the inputs.
        save: stores in the context what ``gradient`` needs, from the inputs and the outputs.
    """
    operator.register_autograd(gradient, setup_context=save)

    class Recorded(torch.autograd.Function):
        generate_vmap_rule = True
        forward = staticmethod(operator)
        setup_context = staticmethod(save)
        backward = staticmethod(gradient)

    recorded: Callable[..., Any] = Recorded.apply

    def call(*arguments: Any) -> Any:
        is_compiling = torch.compiler.is_compiling()  # of Recorded it would break the graph
        return operator(*arguments) if is_compiling else recorded(*arguments)

    return call
