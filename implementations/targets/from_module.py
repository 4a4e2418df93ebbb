"""Call a ``torch.nn.Module`` class or instance with the contract's signature.

The class need not take a ``normalized_shape`` and an eps: :mod:`.construct` reads its constructor,
and :mod:`.meaning` finds by experiment which axes it normalises and which eps it adds.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import RLock

import torch
from torch import Tensor, nn

from implementations.contract import UnsupportedError
from implementations.targets.channels import on_channels
from implementations.targets.meaning import (
    CallOptions,
    Meaning,
    Probe,
    check_axes,
    find_meaning,
)
from implementations.targets.module_parameters import (
    ParameterNames,
    known_eps,
    parameter_names,
    run_module,
)
from implementations.targets.module_source import ModuleSource
from implementations.targets.recognise import LAYER_NORM

__all__ = ["ModuleFunction"]

_KEPT = 16  # modules kept: one per shape, eps, form and dtype; some are as large as x


class ModuleFunction:
    """A module class or instance as a function of x, normalized_shape, weight, bias and eps.

    As in a model, modules are built once: there is one per ``normalized_shape``, ``eps`` and dtype
    of the latest calls. The weight and bias of a call replace the module's own. What the module
    has no argument for (its eps, several axes, no weight) is refused with ``UnsupportedError``.
    """

    def __init__(
        self,
        source: Callable[..., nn.Module] | nn.Module | ModuleSource,
        options: CallOptions | None = None,
    ) -> None:
        """Take a module class, or an instance, which is called as it is.

        Args:
            source: the class or instance; modules of a class are built in training mode.
            options: what the user has declared.
        """
        self.options = options or CallOptions()
        if not isinstance(source, ModuleSource):
            source = ModuleSource(source, self.options)
        self._source = source
        self._made: dict[tuple[object, ...], nn.Module] = {}
        self._lock = RLock()
        origin = source.source
        self.__doc__ = origin.__doc__
        self.__name__ = getattr(origin, "__name__", type(origin).__name__)

    @property
    def is_instance(self) -> bool:
        return self._source.is_instance

    @property
    def normalized_shape(self) -> tuple[int, ...] | None:
        """The only shape that it normalises, from an instance or ``init``; None if it takes any."""
        return self._source.normalized_shape

    @property
    def takes_several_axes(self) -> bool:
        """Whether its normalized_shape may have several axes, judged by its constructor."""
        return self._source.takes_several_axes

    def meaning(self, device: torch.device | None = None) -> Meaning:
        """Return what the module computes; the first call finds it by experiment.

        Raises:
            UnsupportedError: it cannot be built or called; the message says why, and what to
                supply.
        """
        if self._source.meaning is None:
            with self._lock:
                self._source.meaning = self._find_meaning(device or torch.device("cpu"))
        return self._source.meaning

    def in_other_mode(self) -> ModuleFunction:
        """Return a function of the same source in the other of training and evaluation mode."""
        return ModuleFunction(self._source.in_other_mode(), self.options)

    def new(self, normalized_shape: Sequence[int]) -> nn.Module:
        """Return a new module with its own weight, bias and eps.

        Raises:
            UnsupportedError: it cannot be built for this shape.
        """
        return self._source.new(tuple(normalized_shape))

    def __call__(
        self,
        x: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float | None = None,
    ) -> Tensor:
        meaning = self._source.meaning or self.meaning(x.device)
        shape = tuple(normalized_shape)
        meaning.check_eps(eps)
        check_axes(x, shape, takes_several=len(shape) == 1 or self.takes_several_axes)
        with self._lock:  # functional_call replaces the module's parameters during the call
            module = self._module(x, shape, weight, bias, eps if meaning.takes_eps else None)
            names = self._names_in(module, shape)
            if meaning.channels_first:
                return on_channels(
                    lambda moved: run_module(module, names, moved, shape, weight, bias),
                    x,
                    meaning.spatial_counts,
                )
            return run_module(module, names, x, shape, weight, bias)

    def _names_in(self, module: nn.Module, shape: tuple[int, ...]) -> ParameterNames:
        """Return the names found by the experiment, if the module has exactly those parameters."""
        own = {name for name, _ in module.named_parameters()}
        names = self._source.names
        if names is not None and own == {names.weight, names.bias} - {None}:
            return names
        return parameter_names(module, shape)

    def _module(
        self,
        x: Tensor,
        shape: tuple[int, ...],
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float | None,
    ) -> nn.Module:
        """Return a module for a call, kept from an earlier one if there is one."""
        dtype = next((each.dtype for each in (weight, bias) if each is not None), x.dtype)
        has = weight is not None, bias is not None
        key = shape, eps, has, x.device, dtype
        if key not in self._made:
            fixed = self.normalized_shape
            if fixed is not None and shape != fixed:
                raise UnsupportedError(
                    f"its normalized_shape is always {list(fixed)}, and {list(shape)} was asked for"
                )
            with torch.inference_mode(False):  # later calls may train with its buffers
                made = self._source.new(shape, eps, weight=has[0], bias=has[1])
                self._made[key] = made.to(device=x.device, dtype=dtype)
            if len(self._made) > _KEPT:
                del self._made[next(iter(self._made))]
        return self._made[key]

    def _find_meaning(self, device: torch.device) -> Meaning:
        """Build it in each way that its constructor allows until a call succeeds."""
        self._source.refuse_several_inputs()
        failed: UnsupportedError | None = None
        for shape, form, module in self._source.candidates():
            names = parameter_names(module, shape)
            try:
                probe = self._probe(module.to(device), names, shape, device)
                meaning = find_meaning(probe, self.options)
            except UnsupportedError as error:
                failed = failed or error
                continue
            if names.others and meaning.normalization == LAYER_NORM:
                raise UnsupportedError(
                    f"its parameter {names.others[0]} is neither a weight nor a bias of shape "
                    f"{list(shape)}: what it does cannot be verified"
                )
            self._source.form, self._source.names = form, names
            self._source.find_ignored_eps(shape)
            if self._source.takes_eps != probe.takes_eps:
                probe = replace(probe, takes_eps=self._source.takes_eps)
                meaning = find_meaning(probe, self.options)
            return meaning
        assert failed is not None  # there is at least one candidate, or building it raised
        raise failed

    def _probe(
        self,
        module: nn.Module,
        names: ParameterNames,
        shape: tuple[int, ...],
        device: torch.device,
    ) -> Probe:
        modules: dict[torch.dtype, nn.Module] = {}

        def call(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
            if x.dtype not in modules:
                modules[x.dtype] = copy.deepcopy(module).to(x.dtype)
            weight = None if weight is None else weight.reshape(shape)
            bias = None if bias is None else bias.reshape(shape)
            return run_module(modules[x.dtype], names, x, shape, weight, bias)

        return Probe(
            call=call,
            shape=shape,
            has_weight=names.weight is not None,
            has_bias=names.bias is not None,
            takes_eps=self._source.takes_eps,
            known_eps=known_eps(module),
            is_module=True,
            is_guess=self._source.is_size_guessed,
            device=device,
        )
