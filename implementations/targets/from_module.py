"""Call a ``torch.nn.Module`` class or instance with the contract's signature.

The class need not take a ``normalized_shape`` and an eps: :mod:`.construct` reads its constructor,
and :mod:`.meaning` finds by experiment which axes it normalises and which eps it adds.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from inspect import Parameter
from itertools import product
from threading import RLock

import torch
from torch import Tensor, nn

from implementations.contract import UnsupportedError
from implementations.targets.channels import on_channels
from implementations.targets.construct import Constructor, Form
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
    own_eps,
    parameter_names,
    run_module,
    shape_of,
)
from implementations.targets.recognise import LAYER_NORM
from implementations.targets.signatures import parameters_of, required

__all__ = ["ModuleFunction"]

_KEPT = 16  # modules kept: one per shape, eps, form and dtype; some are as large as x
_WIDTHS = (32, 64, 768)  # hidden sizes to try; some kernels accept only a model's
_AFFINES = ((True, True), (True, False), (False, False), (False, True))  # weight and bias


@dataclass(slots=True)
class _Findings:
    """What calling a source has shown of it."""

    meaning: Meaning | None = None
    form: Form | None = None
    """How its constructor wants a size written."""
    names: ParameterNames | None = None
    takes_eps: bool = True
    """Whether an eps in the ``**kwargs`` of its constructor has an effect."""


class ModuleFunction:
    """A module class or instance as a function of x, normalized_shape, weight, bias and eps.

    As in a model, modules are built once: there is one per ``normalized_shape``, ``eps`` and dtype
    of the latest calls. The weight and bias of a call replace the module's own. What the module
    has no argument for (its eps, several axes, no weight) is refused with ``UnsupportedError``.
    """

    def __init__(
        self,
        source: Callable[..., nn.Module] | nn.Module,
        options: CallOptions | None = None,
        *,
        training: bool = True,
        findings: _Findings | None = None,
    ) -> None:
        """Take a module class, or an instance, which is called as it is.

        Args:
            source: the class or instance.
            options: what the user has declared.
            training: the mode of modules that are built; an instance keeps its own.
            findings: from an earlier function of the same source.
        """
        self.source, self.options, self._training = source, options or CallOptions(), training
        self._made: dict[tuple[object, ...], nn.Module] = {}
        self._lock = RLock()
        self._findings = findings or _Findings()
        self.__doc__ = source.__doc__
        self.__name__ = getattr(source, "__name__", type(source).__name__)

    # --- what it is ---------------------------------------------------------------------------

    @property
    def is_instance(self) -> bool:
        return isinstance(self.source, nn.Module)

    @property
    def normalized_shape(self) -> tuple[int, ...] | None:
        """The one shape that it normalises: an instance's, or that of a size from ``init``."""
        if isinstance(self.source, nn.Module):
            return shape_of(self.source)
        if self._constructor().size is None:
            return shape_of(self.new((1,)))
        return None

    @property
    def takes_several_axes(self) -> bool:
        """Whether its normalized_shape may have several axes, judged by its constructor."""
        fixed = self.normalized_shape
        if fixed is not None or self.is_instance:
            return fixed is not None and len(fixed) > 1
        return self._constructor().takes_several_axes

    def meaning(self, device: torch.device | None = None) -> Meaning:
        """Return what the module computes; the first call finds it by experiment.

        Raises:
            UnsupportedError: it cannot be built or called; the message says why, and what to
                supply.
        """
        if self._findings.meaning is None:
            with self._lock:
                self._findings.meaning = self._find_meaning(device or torch.device("cpu"))
        return self._findings.meaning

    def in_other_mode(self) -> ModuleFunction:
        """Return a function of the same source in evaluation mode, or in training mode if this
        one is in evaluation mode."""
        source = self.source
        if isinstance(source, nn.Module):
            source = copy.deepcopy(source).train(not source.training)
        return ModuleFunction(
            source, self.options, training=not self._training, findings=self._findings
        )

    def new(
        self,
        normalized_shape: Sequence[int],
        eps: float | None = None,
        *,
        weight: bool = True,
        bias: bool = True,
    ) -> nn.Module:
        """Return a new module with its own weight and bias, and its own eps if ``eps`` is None.

        Raises:
            UnsupportedError: it cannot be built from these.
        """
        if isinstance(self.source, nn.Module):
            return copy.deepcopy(self.source)
        shape = tuple(normalized_shape)
        form = self._findings.form if len(shape) == 1 else None
        made = self._constructor().make(shape, eps, weight=weight, bias=bias, form=form)
        return made.train(self._training)

    # --- calling it ---------------------------------------------------------------------------

    def __call__(
        self,
        x: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float | None = None,
    ) -> Tensor:
        meaning = self._findings.meaning or self.meaning(x.device)
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
        names = self._findings.names
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
            made = self.new(shape, eps, weight=has[0], bias=has[1])
            self._made[key] = made.to(device=x.device, dtype=dtype)
            if len(self._made) > _KEPT:
                del self._made[next(iter(self._made))]
        return self._made[key]

    # --- the experiment -----------------------------------------------------------------------

    def _constructor(self) -> Constructor:
        assert not isinstance(self.source, nn.Module)  # an instance has been constructed already
        constructor = Constructor.of(self.source, self.options.init)
        return constructor if self._findings.takes_eps else replace(constructor, eps=None)

    def _find_meaning(self, device: torch.device) -> Meaning:
        """Build it in each way that its constructor allows until a call succeeds."""
        self._refuse_several_inputs()
        failed: UnsupportedError | None = None
        for shape, form, module in self._candidates():
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
            self._findings.form, self._findings.names = form, names
            if not self.is_instance and self._constructor().guesses_eps:
                self._findings.takes_eps = self._is_eps_taken(shape)
                probe = replace(probe, takes_eps=self._findings.takes_eps)
                meaning = find_meaning(probe, self.options)
            return meaning
        assert failed is not None  # there is at least one candidate, or building it raised
        raise failed

    def _refuse_several_inputs(self) -> None:
        """Refuse a module whose forward requires more than x.

        Raises:
            UnsupportedError: the message names the other arguments.
        """
        forward = getattr(self.source, "forward", None)
        parameters = [] if forward is None else list(parameters_of(forward).values())
        if not self.is_instance:
            parameters = parameters[1:]  # self
        needed = required(each for each in parameters if each.kind is not Parameter.KEYWORD_ONLY)
        if len(needed) > 1:
            raise UnsupportedError(
                f"its forward needs {', '.join(needed[1:])} besides {needed[0]}: it is no function "
                "of one tensor"
            )

    def _candidates(self) -> Iterator[tuple[tuple[int, ...], Form | None, nn.Module]]:
        """Yield a shape, a way of writing it, and a module built from it."""
        fixed = self.normalized_shape
        if fixed is not None or self.is_instance or self._constructor().size is None:
            yield fixed or (_WIDTHS[0],), None, self.new(fixed or (_WIDTHS[0],))
            return
        constructor = self._constructor()
        failed: UnsupportedError | None = None
        is_built = False
        for width, form in product(_WIDTHS, constructor.forms):
            for weight, bias in _AFFINES:
                try:
                    made = constructor.make((width,), None, weight=weight, bias=bias, form=form)
                except UnsupportedError as error:
                    failed = failed or error
                    continue
                is_built = True
                yield (width,), form, made.train(self._training)
                break  # the richest combination that can be built
        if not is_built:
            assert failed is not None  # every attempt was refused
            raise failed

    def _is_eps_taken(self, shape: tuple[int, ...]) -> bool:
        """Whether an eps in ``**kwargs`` changes the eps that a module holds."""
        try:
            usual, other = (self.new(shape, eps) for eps in (1e-3, 1e-2))
        except UnsupportedError:
            return False
        return own_eps(usual) != own_eps(other)

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
            takes_eps=not self.is_instance and self._constructor().eps is not None,
            known_eps=known_eps(module),
            is_module=True,
            is_guess=self.is_instance or self._constructor().size is None,
            device=device,
        )
