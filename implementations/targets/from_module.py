"""Call a ``torch.nn.Module`` class or instance with the contract's signature.

The class need not take a ``normalized_shape`` and an eps: :mod:`.construct` reads its constructor,
and :mod:`.meaning` finds by experiment which axes it normalises and which eps it adds. The call
with the contract's signature, common to modules and functions, is in :mod:`.adapter`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from inspect import Parameter
from itertools import product
from threading import RLock
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from implementations.contract import Param, UnsupportedError
from implementations.targets.adapter import Adapter
from implementations.targets.attempt import Raised, attempt, first_success
from implementations.targets.construct import Constructor, Form, flags_among
from implementations.targets.meaning import CallOptions, Meaning, Probe, find_meaning
from implementations.targets.module_parameters import (
    ParameterNames,
    call_once,
    is_uninitialized,
    known_eps,
    own_eps,
    parameter_names,
    run_module,
    shape_of,
)
from implementations.targets.recognise import LAYER_NORM
from implementations.targets.signatures import VARIADIC, inputs_besides_x, parameters_of

_KEPT = 16  # modules kept: one per shape, eps, form and dtype; some are as large as x
_WIDTHS = (32, 64, 768)  # hidden sizes to try; some kernels accept only a model's
_AFFINES = ((True, True), (True, False), (False, False), (False, True))  # weight and bias


class _Found(NamedTuple):
    """A module that could be called, and what it computed."""

    form: Form | None
    names: ParameterNames
    probe: Probe
    meaning: Meaning


class ModuleFunction(Adapter):
    """A module class or instance as a function of x, normalized_shape, weight, bias and eps.

    As in a model, modules are built once: there is one per ``normalized_shape``, ``eps`` and dtype
    of the latest calls. The weight and bias of a call replace the module's own.
    """

    _form: Form | None = None
    """How the constructor wants a size written."""
    _names: ParameterNames | None = None
    _ignores_eps = False
    """Whether an eps in the ``**kwargs`` of the constructor has no effect."""
    _evaluates = False
    """Whether calls are made in evaluation mode."""
    _only_makes = False
    """Whether calls make their module, and do not call it."""
    _is_lazy = False
    """Whether the first call of a module makes its parameters."""

    def __init__(
        self,
        source: Callable[..., nn.Module] | nn.Module,
        options: CallOptions | None = None,
    ) -> None:
        """Take a module class, or an instance, which is called as it is.

        Args:
            source: the class or instance.
            options: what the user has declared.
        """
        super().__init__(source, options)
        self.is_instance = isinstance(source, nn.Module)
        self._made: dict[tuple[object, ...], nn.Module] = {}
        self._lock = RLock()

    def with_arguments(self, **arguments: object) -> ModuleFunction:
        """Return a function of the same class, whose modules are built with further arguments."""
        other, init = copy.copy(self), {**self.options.init, **arguments}
        options = replace(self.options, init=init)
        vars(other).update(options=options, _made={}, _lock=RLock())
        return other

    @property
    def arguments(self) -> Mapping[str, Parameter]:
        """The arguments of the constructor, as far as the user has not given them.

        Those of ``torch.nn.LayerNorm`` are included if a subclass has ``**kwargs`` and no argument
        of another name.
        """
        if self.is_instance:
            return {}
        own, of_torch = parameters_of(self.source), parameters_of(nn.LayerNorm)
        others = {name for name, taken in own.items() if taken.kind not in VARIADIC} - {*of_torch}
        is_open = any(taken.kind is Parameter.VAR_KEYWORD for taken in own.values()) and not others
        if is_open and isinstance(self.source, type) and issubclass(self.source, nn.LayerNorm):
            own = {**of_torch, **own}
        return {name: taken for name, taken in own.items() if name not in self.options.init}

    @property
    def switches(self) -> Mapping[str, str]:
        """The arguments that switch off "weight", "bias" or both ("affine"), and which."""
        return flags_among(self.arguments)

    @property
    def normalized_shape(self) -> tuple[int, ...] | None:
        """The only shape that it normalises, from an instance or ``init``; None if it takes any."""
        if isinstance(self.source, nn.Module):
            return shape_of(self.source)
        constructor = self._constructor()
        if constructor.size is None:
            return shape_of(constructor.make((1,), None, weight=True, bias=True))
        return None

    @property
    def takes_several_axes(self) -> bool:
        """Whether its normalized_shape may have several axes, judged by its constructor."""
        fixed = self.normalized_shape
        if fixed is not None or self.is_instance:
            return fixed is not None and len(fixed) > 1
        return self._constructor().takes_several_axes

    @property
    def _takes_eps(self) -> bool:
        """Whether a caller can choose eps."""
        return not self.is_instance and self._constructor().eps is not None

    @property
    def _is_size_guessed(self) -> bool:
        """Whether the normalized shape is guessed from the shape of a parameter."""
        return self.is_instance or self._constructor().size is None

    def _constructor(self) -> Constructor:
        """Read the constructor of a class."""
        constructor = Constructor.of(self.source, self.options.init)
        return replace(constructor, eps=None) if self._ignores_eps else constructor

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
            return self._ready(_copied(self.source), tuple(normalized_shape))
        shape = tuple(normalized_shape)
        form = self._form if len(shape) == 1 else None
        made = self._constructor().make(shape, eps, weight=weight, bias=bias, form=form)
        return self._ready(made, shape)

    def _ready(self, made: nn.Module, shape: tuple[int, ...]) -> nn.Module:
        """Return a module that has its parameters, after a call if that makes them."""
        if self._is_lazy or is_uninitialized(made):
            call_once(made, shape)
        return made

    def _call(
        self, x: Tensor, shape: tuple[int, ...], weight: Param, bias: Param, eps: float | None
    ) -> Tensor:
        given = [parameter for parameter in (weight, bias) if parameter is not None]
        dtype = given[0].dtype if given else x.dtype
        key = shape, eps, weight is not None, bias is not None, x.device, dtype
        with self._lock:  # functional_call replaces the module's parameters during the call
            if key not in self._made:
                fixed = self.normalized_shape
                if fixed is not None and shape != fixed:
                    raise UnsupportedError(
                        f"its normalized_shape is always {list(fixed)}, and {list(shape)} was "
                        "asked for"
                    )
                with torch.inference_mode(False):  # later calls may train with its buffers
                    made = self.new(shape, eps, weight=weight is not None, bias=bias is not None)
                    self._made[key] = made.to(device=x.device, dtype=dtype)
                if len(self._made) > _KEPT:
                    del self._made[next(iter(self._made))]
            if self._only_makes:
                return x
            module, names = self._made[key], self._names
            own = {name for name, _ in module.named_parameters()}
            # the names found by the experiment, if the module has exactly those parameters
            if names is None or own != {names.weight, names.bias} - {None}:
                names = parameter_names(module, shape)
            if not self._evaluates:
                return run_module(module, names, x, shape, weight, bias)
            # what it folds when it gets to evaluation mode must be these
            was_training, parameters = module.training, dict(module.named_parameters())
            module.train()
            with torch.inference_mode(False), torch.no_grad():
                for name, value in ((names.weight, weight), (names.bias, bias)):
                    parameter = parameters.get(name or "")
                    if parameter is not None and value is not None:
                        parameter.copy_(value.reshape(parameter.shape))
            module.eval()
            try:
                return run_module(module, names, x, shape, weight, bias)
            finally:
                module.train(was_training)

    def in_evaluation(self, *arguments: Any, **named: Any) -> Tensor:
        """Call a module in evaluation mode, after weight and bias were written into it."""
        return self._with("_evaluates", arguments, named)

    def make_only(self, *arguments: Any, **named: Any) -> Tensor:
        """Make the module of a call, as it is made before a model runs; return x."""
        return self._with("_only_makes", arguments, named)

    def _with(self, flag: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Tensor:
        with self._lock:
            setattr(self, flag, True)
            try:
                return self(*arguments, **named)
            finally:
                setattr(self, flag, False)

    def _find_meaning(self, device: torch.device) -> Meaning:
        """Build it in each way that its constructor allows until a call succeeds."""
        self._refuse_several_inputs()
        with self._lock:
            tried = (partial(self._tried, device, *candidate) for candidate in self._candidates())
            self._form, self._names, probe, meaning = first_success(tried, UnsupportedError)
            if self._names.others and meaning.normalization == LAYER_NORM:
                raise UnsupportedError(
                    f"its parameter {self._names.others[0]} is neither a weight nor a bias of "
                    f"shape {list(probe.shape)}: verify a function of x, normalized_shape, weight, "
                    "bias and eps that calls it"
                )
            self._find_ignored_eps(probe.shape)
            if self._takes_eps != probe.takes_eps:
                meaning = find_meaning(replace(probe, takes_eps=self._takes_eps), self.options)
            return meaning

    def _candidates(self) -> Iterator[tuple[tuple[int, ...], Form | None, nn.Module]]:
        """Yield shapes to try, a way of writing each, and a module built from it.

        Raises:
            UnsupportedError: no module can be built.
        """
        fixed = self.normalized_shape
        if fixed is not None or self._is_size_guessed:
            shape = fixed or (_WIDTHS[0],)
            yield shape, None, self.new(shape)
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
                yield (width,), form, self._ready(made, (width,))
                break  # the richest combination that can be built
        if not is_built:
            assert failed is not None  # every attempt was refused
            raise failed

    def _find_ignored_eps(self, shape: tuple[int, ...]) -> None:
        """Find out whether an eps in ``**kwargs`` changes the eps that a module holds."""
        if self.is_instance or not self._constructor().guesses_eps:
            return
        try:
            usual, other = (self.new(shape, eps) for eps in (1e-3, 1e-2))
            self._ignores_eps = own_eps(usual) == own_eps(other)
        except UnsupportedError:
            self._ignores_eps = True

    def _refuse_several_inputs(self) -> None:
        """Refuse a module whose forward requires more than x.

        Raises:
            UnsupportedError: the message names the other arguments.
        """
        forward = getattr(self.source, "forward", None)
        parameters = [] if forward is None else list(parameters_of(forward).values())
        own = parameters if self.is_instance else parameters[1:]  # without self
        if reason := inputs_besides_x(own):
            raise UnsupportedError(f"{reason}: it is no function of one tensor")

    def _tried(
        self, device: torch.device, shape: tuple[int, ...], form: Form | None, made: nn.Module
    ) -> _Found:
        """Call a module, and return what it computes."""
        names = parameter_names(made, shape)
        modules: dict[torch.dtype, nn.Module] = {}

        def call(x: Tensor, weight: Param, bias: Param) -> Tensor:
            if x.dtype not in modules:
                modules[x.dtype] = _copied(made).to(x.dtype)
            weight = None if weight is None else weight.reshape(shape)
            bias = None if bias is None else bias.reshape(shape)
            return run_module(modules[x.dtype], names, x, shape, weight, bias)

        made.to(device)
        probe = Probe(
            call=call,
            shape=shape,
            has_weight=names.weight is not None,
            has_bias=names.bias is not None,
            takes_eps=self._takes_eps,
            known_eps=known_eps(made),
            is_module=True,
            is_guess=self._is_size_guessed,
            device=device,
        )
        found, known = find_meaning(probe, self.options), {*dict(made.named_parameters())}
        if any({*dict(called.named_parameters())} > known for called in modules.values()):
            self._is_lazy = True
            return self._tried(device, shape, form, self._ready(made, shape))
        return _Found(form, names, probe, found)


def _copied(module: nn.Module) -> nn.Module:
    """Return a copy, or the module itself if it cannot be copied."""
    with torch.no_grad():  # parameters of a ScriptModule are copied by an operation
        copied = attempt(partial(copy.deepcopy, module))
    return module if isinstance(copied, Raised) else copied
