"""A ``torch.nn.Module`` class or instance behind the signature of a function.

The class need not take a ``normalized_shape`` and an eps: :mod:`.construct` reads its constructor,
and :mod:`.meaning` finds out by calling it which axes it normalises and which eps it adds.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from inspect import Parameter, signature
from threading import RLock

import torch
from torch import Tensor, nn

from implementations.contract import UnsupportedError
from implementations.targets.channels import on_channels
from implementations.targets.construct import Constructor, Form
from implementations.targets.meaning import CallOptions, Meaning, Probe, find_meaning
from implementations.targets.module_parameters import (
    ParameterNames,
    own_eps,
    parameter_names,
    run_module,
    shape_of,
)
from implementations.targets.recognise import LAYER_NORM

__all__ = ["ModuleFunction"]

_KEPT = 16  # modules that live on: one per shape, eps, form and dtype; some are as large as x
_WIDTHS = (32, 64, 768)  # tried in this order: some kernels take no other than a model's
_PRECISIONS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_FORMS = ((True, True), (True, False), (False, False), (False, True))  # of weight and bias


@dataclass(slots=True)
class _Found:
    """What calling a source has shown of it."""

    meaning: Meaning | None = None
    form: Form | None = None
    """How its constructor wants a size written."""
    affine: ParameterNames | None = None
    """Names of its weight and bias."""
    takes_eps: bool = True
    """Whether an eps that its constructor passes on arrives."""


class ModuleFunction:
    """A module class or instance as a function of x, normalized_shape, weight, bias and eps.

    As in a model, a module lives on: there is one per ``normalized_shape``, ``eps`` and dtype of
    the latest calls. The weight and bias of a call take the place of its own. What the module
    cannot be told (its eps, several axes, no weight) is refused with ``UnsupportedError``.
    """

    def __init__(
        self,
        source: Callable[..., nn.Module] | nn.Module,
        options: CallOptions | None = None,
        *,
        training: bool = True,
        found: _Found | None = None,
    ) -> None:
        """Take a module class, or an instance, which is called as it stands.

        Args:
            source: the class or instance.
            options: what the user says of it.
            training: the mode of modules that are built; an instance keeps its own.
            found: what was found out before of the same source.
        """
        self.source, self.options, self._training = source, options or CallOptions(), training
        self._made: dict[tuple[object, ...], nn.Module] = {}
        self._alone = RLock()
        self._found = found or _Found()
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
        """Whether its normalized_shape may have several axes, as far as its constructor says."""
        fixed = self.normalized_shape
        if fixed is not None or self.is_instance:
            return fixed is not None and len(fixed) > 1
        return self._constructor().takes_several_axes

    def meaning(self, device: torch.device | None = None) -> Meaning:
        """Return what it computes, found by calling it the first time that this is asked.

        Raises:
            UnsupportedError: it cannot be built or called; the message says why, and what to give.
        """
        if self._found.meaning is None:
            with self._alone:
                self._found.meaning = self._find_meaning(device or torch.device("cpu"))
        return self._found.meaning

    def in_other_mode(self) -> ModuleFunction:
        """Return the same with modules in evaluation mode, or in training if they are not."""
        source = self.source
        if isinstance(source, nn.Module):
            source = copy.deepcopy(source).train(not source.training)
        return ModuleFunction(source, self.options, training=not self._training, found=self._found)

    def new(
        self,
        normalized_shape: Sequence[int],
        eps: float | None = None,
        *,
        weight: bool = True,
        bias: bool = True,
    ) -> nn.Module:
        """Return a new module, with its own weight and bias, and its own eps if none is given.

        Raises:
            UnsupportedError: it cannot be made from these.
        """
        if isinstance(self.source, nn.Module):
            return copy.deepcopy(self.source)
        shape = tuple(normalized_shape)
        form = self._found.form if len(shape) == 1 else None
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
        meaning = self._found.meaning or self.meaning(x.device)
        shape = tuple(normalized_shape)
        if tuple(x.shape[x.dim() - len(shape) :]) != shape:
            raise ValueError(f"x has shape {list(x.shape)}: it does not end in {list(shape)}")
        if meaning.eps is not None and eps is not None and eps != meaning.eps:
            raise UnsupportedError(f"its eps is always {meaning.eps:g}, and {eps:g} was asked for")
        if len(shape) > 1 and not self.takes_several_axes:
            raise UnsupportedError(f"normalises one axis; {len(shape)} were asked for")
        with self._alone:  # the parameters are put into the module, and taken out again
            module = self._module(x, shape, weight, bias, eps if meaning.takes_eps else None)
            affine = self._affine_in(module, shape)
            if meaning.channels_first:
                return on_channels(
                    lambda moved: run_module(module, affine, moved, shape, weight, bias),
                    x,
                    meaning.spatial_counts,
                )
            return run_module(module, affine, x, shape, weight, bias)

    def _affine_in(self, module: nn.Module, shape: tuple[int, ...]) -> ParameterNames:
        """Name weight and bias, as they were named when it was found out what it computes."""
        names = {name for name, _ in module.named_parameters()}
        found = self._found.affine
        known = set() if found is None else {found.weight, found.bias} - {None}
        return found if found is not None and names == known else parameter_names(module, shape)

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

    # --- finding out --------------------------------------------------------------------------

    def _constructor(self) -> Constructor:
        assert not isinstance(self.source, nn.Module)  # callers ask this of classes alone
        found = Constructor.of(self.source, self.options.init)
        return found if self._found.takes_eps else replace(found, eps=None)

    def _is_eps_taken(self, shape: tuple[int, ...]) -> bool:
        """Whether an eps that is passed on in ``**kwargs`` arrives: it changes a module."""
        try:
            usual, other = (self.new(shape, eps) for eps in (1e-3, 1e-2))
        except UnsupportedError:
            return False
        return own_eps(usual) != own_eps(other)

    def _find_meaning(self, device: torch.device) -> Meaning:
        """Build it in each way that its constructor allows, and call it, until that works."""
        _refuse_forward(self.source)
        failed: UnsupportedError | None = None
        for shape, form, module in self._candidates():
            affine = parameter_names(module, shape)
            try:
                probe = self._probe(module.to(device), affine, shape, device)
                meaning = find_meaning(probe, self.options)
            except UnsupportedError as error:
                failed = failed or error
                continue
            if affine.others and meaning.normalization == LAYER_NORM:
                raise UnsupportedError(
                    f"its parameter {affine.others[0]} is neither a weight nor a bias of shape "
                    f"{list(shape)}: what it does cannot be verified"
                )
            self._found.form, self._found.affine = form, affine
            if not self.is_instance and self._constructor().guesses_eps:
                self._found.takes_eps = self._is_eps_taken(shape)
                probe = replace(probe, takes_eps=self._found.takes_eps)
                meaning = find_meaning(probe, self.options)
            return meaning
        assert failed is not None  # there is at least one candidate, or building it raised
        raise failed

    def _candidates(self) -> Iterator[tuple[tuple[int, ...], Form | None, nn.Module]]:
        """Yield shapes, ways of writing them, and a module built so."""
        fixed = self.normalized_shape
        if fixed is not None or self.is_instance or self._constructor().size is None:
            yield fixed or (_WIDTHS[0],), None, self.new(fixed or (_WIDTHS[0],))
            return
        forms = self._constructor().forms
        failed: UnsupportedError | None = None
        built = False
        for width in _WIDTHS:
            for form in forms:
                for weight, bias in _FORMS:
                    try:
                        made = self._constructor().make(
                            (width,), None, weight=weight, bias=bias, form=form
                        )
                    except UnsupportedError as error:
                        failed = failed or error
                        continue
                    built = True
                    yield (width,), form, made.train(self._training)
                    break  # less of an affine only where more cannot be built
        if not built:
            assert failed is not None  # nothing was built, so something was refused
            raise failed

    def _probe(
        self,
        module: nn.Module,
        affine: ParameterNames,
        shape: tuple[int, ...],
        device: torch.device,
    ) -> Probe:
        modules: dict[torch.dtype, nn.Module] = {}

        def call(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
            if x.dtype not in modules:
                modules[x.dtype] = copy.deepcopy(module).to(x.dtype)
            weight = None if weight is None else weight.reshape(shape)
            bias = None if bias is None else bias.reshape(shape)
            return run_module(modules[x.dtype], affine, x, shape, weight, bias)

        return Probe(
            call=call,
            shape=shape,
            has_weight=affine.weight is not None,
            has_bias=affine.bias is not None,
            takes_eps=not self.is_instance and self._constructor().eps is not None,
            known_eps=(*own_eps(module), *(torch.finfo(each).eps for each in _PRECISIONS)),
            is_module=True,
            is_guess=self.is_instance or self._constructor().size is None,
            device=device,
        )


def _refuse_forward(source: Callable[..., nn.Module] | nn.Module) -> None:
    """Refuse a module whose forward needs more than x.

    Raises:
        UnsupportedError: it does; says what.
    """
    forward = getattr(source, "forward", None)
    if forward is None:
        return
    try:
        parameters = list(signature(forward).parameters.values())
    except (TypeError, ValueError):
        return
    if not isinstance(source, nn.Module):
        parameters = parameters[1:]  # self
    needed = [
        each.name
        for each in parameters
        if each.default is Parameter.empty
        and each.kind in {Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD}
    ]
    if len(needed) > 1:
        raise UnsupportedError(
            f"its forward needs {', '.join(needed[1:])} besides {needed[0]}: it is no function of "
            "one tensor"
        )
