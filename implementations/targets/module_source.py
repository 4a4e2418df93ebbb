"""Build modules from a ``torch.nn.Module`` class, or copy an instance."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

from torch import nn

from implementations.contract import UnsupportedError
from implementations.targets.construct import Constructor, Form
from implementations.targets.meaning import CallOptions, Meaning
from implementations.targets.module_parameters import ParameterNames, own_eps, shape_of
from implementations.targets.signatures import inputs_besides_x, parameters_of

__all__ = ["ModuleSource"]

_WIDTHS = (32, 64, 768)  # hidden sizes to try; some kernels accept only a model's
_AFFINES = ((True, True), (True, False), (False, False), (False, True))  # weight and bias


class ModuleSource:
    """A module class or an instance, and what experiments have shown of it."""

    meaning: Meaning | None = None
    form: Form | None = None
    """How the constructor wants a size written."""
    names: ParameterNames | None = None
    ignores_eps = False
    """Whether an eps in the ``**kwargs`` of the constructor has no effect."""

    def __init__(
        self,
        source: Callable[..., nn.Module] | nn.Module,
        options: CallOptions,
        *,
        training: bool = True,
    ) -> None:
        """Take a module class, or an instance.

        Args:
            source: the class or instance.
            options: what the user has declared.
            training: the mode of modules that are built; an instance keeps its own.
        """
        self.source, self.options, self.training = source, options, training

    def in_other_mode(self) -> ModuleSource:
        """Return a copy for evaluation mode, or for training mode if this is for evaluation."""
        source = self.source
        if isinstance(source, nn.Module):
            source = copy.deepcopy(source).train(not source.training)
        other = ModuleSource(source, self.options, training=not self.training)
        other.meaning, other.form = self.meaning, self.form
        other.names, other.ignores_eps = self.names, self.ignores_eps
        return other

    @property
    def is_instance(self) -> bool:
        return isinstance(self.source, nn.Module)

    @property
    def normalized_shape(self) -> tuple[int, ...] | None:
        """The only shape that it normalises, from an instance or ``init``; None if it takes any."""
        if isinstance(self.source, nn.Module):
            return shape_of(self.source)
        if self.constructor().size is None:
            return shape_of(self.new((1,)))
        return None

    @property
    def takes_several_axes(self) -> bool:
        """Whether its normalized_shape may have several axes, judged by its constructor."""
        fixed = self.normalized_shape
        if fixed is not None or self.is_instance:
            return fixed is not None and len(fixed) > 1
        return self.constructor().takes_several_axes

    @property
    def takes_eps(self) -> bool:
        """Whether a caller can choose eps."""
        return not self.is_instance and self.constructor().eps is not None

    @property
    def is_size_guessed(self) -> bool:
        """Whether the normalized shape is guessed from the shape of a parameter."""
        return self.is_instance or self.constructor().size is None

    def constructor(self) -> Constructor:
        """Read the constructor of a class."""
        assert not isinstance(self.source, nn.Module)  # an instance has been constructed already
        constructor = Constructor.of(self.source, self.options.init)
        return replace(constructor, eps=None) if self.ignores_eps else constructor

    def new(
        self,
        shape: tuple[int, ...],
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
        form = self.form if len(shape) == 1 else None
        made = self.constructor().make(shape, eps, weight=weight, bias=bias, form=form)
        return made.train(self.training)

    def candidates(self) -> Iterator[tuple[tuple[int, ...], Form | None, nn.Module]]:
        """Yield shapes to try, a way of writing each, and a module built from it.

        Raises:
            UnsupportedError: no module can be built.
        """
        fixed = self.normalized_shape
        if fixed is not None or self.is_size_guessed:
            shape = fixed or (_WIDTHS[0],)
            yield shape, None, self.new(shape)
            return
        constructor = self.constructor()
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
                yield (width,), form, made.train(self.training)
                break  # the richest combination that can be built
        if not is_built:
            assert failed is not None  # every attempt was refused
            raise failed

    def find_ignored_eps(self, shape: tuple[int, ...]) -> None:
        """Find out whether an eps in ``**kwargs`` changes the eps that a module holds."""
        if self.is_instance or not self.constructor().guesses_eps:
            return
        try:
            usual, other = (self.new(shape, eps) for eps in (1e-3, 1e-2))
            self.ignores_eps = own_eps(usual) == own_eps(other)
        except UnsupportedError:
            self.ignores_eps = True

    def refuse_several_inputs(self) -> None:
        """Refuse a module whose forward requires more than x.

        Raises:
            UnsupportedError: the message names the other arguments.
        """
        forward = getattr(self.source, "forward", None)
        parameters = [] if forward is None else list(parameters_of(forward).values())
        own = parameters if self.is_instance else parameters[1:]  # without self
        if reason := inputs_besides_x(own):
            raise UnsupportedError(f"{reason}: it is no function of one tensor")
