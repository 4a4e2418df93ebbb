"""The part of the contract that a target takes, found by calling it; cases are fitted to it.

A target without an eps argument, without weight, or for three-dimensional x only is verified on
the rest of the contract. The scope is found by probes: each tries cases that differ in one thing,
and sets a field of the scope by those that raise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from harness.cases.axes import AXES
from harness.cases.inputs import LAYOUT_OF, LAYOUTS, make_inputs
from harness.records import Affine, Case, Direction, Status
from harness.records.finding import Finding, RemarkKind, remark
from harness.records.text import shape_text
from harness.run.attempt import Judged
from harness.run.call import ImplementationError
from implementations.contract import Implementation, UnsupportedError
from implementations.targets.attempt import first_success
from implementations.targets.from_function import NamedFunction
from implementations.targets.from_module import ModuleFunction
from implementations.targets.meaning import CallOptions, Meaning, Probe, find_meaning
from implementations.targets.recognise import LAYER_NORM

__all__ = [
    "AFFINE_WORDS",
    "InScope",
    "Scope",
    "adapter_of",
    "find_scope",
    "first_case",
    "fitted",
    "scope_of",
    "within_scope",
]

AFFINE_WORDS = {  # the most parameters first
    Affine.BOTH: "weight and bias",
    Affine.WEIGHT: "weight alone",
    Affine.NONE: "neither weight nor bias",
    Affine.BIAS: "bias alone",
}


_VALUES: dict[str, tuple[Any, ...]] = {
    "affine": tuple(AFFINE_WORDS),
    "ndim": (1, 2, 3, 4, 5),
    "normalized_axes": (1, 2, 3, 4, 5),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What a target takes; the defaults are the whole contract."""

    declined: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """The values for which it raises, by axis. Beside the axes of a case: "ndim", the number of
    axes of x, and "is_empty", whether x has no elements."""
    declined_backward: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """The values that it takes in a forward alone."""
    eps: float | None = None
    """The fixed eps that it adds; None if the caller chooses."""
    default_eps: float | None = None
    """The eps that it adds if none is given; None if unknown."""
    normalized_shape: tuple[int, ...] | None = None
    """The only normalized_shape that it takes; None for any."""
    channels_first: bool = False
    """Whether the features are axis 1 of x."""
    has_gradient: bool = True
    promotes: bool = False
    """Whether y has the parameters' dtype if that is wider than x's."""
    reasons: tuple[str, ...] = ()
    """What is outside the scope, each with what the target raised."""

    def accepts(self, axis: str, value: Any, *, backward: bool = False) -> bool:
        """Whether the target takes a value on an axis, in some forward or some backward."""
        declined = self.declined.get(axis, ())
        if axis == "eps" and declined:
            return self.eps is not None or bool(value > max(declined))
        return value not in declined and not (
            backward and value in self.declined_backward.get(axis, ())
        )

    def taken(self, axis: str, *, backward: bool = False) -> tuple[Any, ...]:
        """Return the values that it takes of "affine", "ndim" or "normalized_axes"."""
        values = _VALUES[axis]
        return tuple(value for value in values if self.accepts(axis, value, backward=backward))

    @property
    def axes(self) -> str:
        """Which axes it normalises, in words."""
        if self.channels_first:
            return "the channel axis (axis 1) of x"
        dims = self.taken("normalized_axes")
        if len(dims) > 1:
            return "any number of trailing axes"
        return "the last axis" if dims == (1,) else f"the last {dims[0]} axes"

    def fit(self, case: Case) -> Case | None:
        """Return the nearest case that the target takes; None if it lies outside the scope."""
        if self.normalized_shape is not None:
            shape = (*case.leading_shape, *self.normalized_shape)
            case = replace(case, shape=shape, normalized_dims=len(self.normalized_shape))
        dims = self.taken("normalized_axes")
        if case.normalized_dims == 1 and len(dims) == 1:
            case = _with_several_axes(case, dims[0])
        backward = case.direction is not Direction.FORWARD
        affines = self.taken("affine", backward=backward)
        case = AXES["affine"].set(case, case.affine if case.affine in affines else affines[0])
        if self.eps is not None:
            case = replace(case, eps=self.eps)
        axes = ({*self.declined} | {*self.declined_backward}) & {*AXES}
        values = {axis: AXES[axis].get(case) for axis in axes} | {"is_empty": 0 in case.shape}
        takes = (self.accepts(axis, value, backward=backward) for axis, value in values.items())
        return case if all(takes) else None


def _with_several_axes(case: Case, dims: int) -> Case:
    """Return the case with its last axis split into ``dims`` axes of the same total size."""
    hidden = case.shape[-1]
    split: list[int] = []
    for factor in (2, 3, 5, 7):
        if len(split) < dims - 1 and hidden % factor == 0 and hidden > factor:
            split.append(factor)
            hidden //= factor
    axes = (*split, hidden)
    axes = (1,) * (dims - len(axes)) + axes
    return replace(case, shape=(*case.shape[:-1], *axes), normalized_dims=dims)


class InScope:
    """A target with its scope, behind the contract's signature; x gets a number of axes it takes.

    An x with too few axes has its first axis split; one with too many has its first axes joined.
    The rows stay the same.
    """

    def __init__(self, function: Callable[..., Any], scope: Scope) -> None:
        self.function, self.scope = function, scope
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__doc__ = function.__doc__

    def __call__(self, x: Tensor, normalized_shape: Any, *arguments: Any, **named: Any) -> Any:
        given = (x, *arguments, *named.values())
        tensors = [argument for argument in given if isinstance(argument, Tensor)]
        backward = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        ndims = self.scope.taken("ndim", backward=backward)
        if x.dim() in ndims:
            y = self.function(x, normalized_shape, *arguments, **named)
        else:
            reshaped = _with_ndim(x, len(tuple(normalized_shape)), ndims)
            y = self.function(reshaped, normalized_shape, *arguments, **named)
            y = y.reshape(x.shape) if isinstance(y, Tensor) and y.numel() == x.numel() else y
        wide = torch.float32
        if self.scope.promotes and isinstance(y, Tensor) and y.dtype == wide:
            # the promotion is a remark
            return y.to(x.dtype) if wide in {tensor.dtype for tensor in tensors[1:]} else y
        return y


def _with_ndim(x: Tensor, dims: int, ndims: tuple[int, ...]) -> Tensor:
    """Return ``x`` with a number of axes that the target takes."""
    larger = [ndim for ndim in ndims if ndim > x.dim()]
    if not larger:
        joined = x.dim() - max(ndims)
        return x.flatten(0, joined) if x.dim() - dims > joined else x
    while x.dim() < min(larger):
        rows = x.shape[0] if x.dim() > dims else 0
        part = next((n for n in (2, 3, 5, 7) if rows > n and rows % n == 0), None)
        x = x.unflatten(0, (part, -1)) if part is not None else x.unsqueeze(0)
    return x


def within_scope(implementation: Implementation, scope: Scope) -> Implementation:
    """Return the target behind :class:`InScope`."""
    function: Any = InScope(implementation.function, scope)
    return replace(implementation, function=function, forward_only=not scope.has_gradient)


def scope_of(implementation: Implementation) -> Scope:
    """Return the scope of the target; the whole contract if none was found."""
    function = implementation.function
    return function.scope if isinstance(function, InScope) else Scope()


def adapter_of(implementation: Implementation) -> ModuleFunction | NamedFunction | None:
    """Return the adapter of a module or function; None for the contract's own signature."""
    function: object = implementation.function
    function = function.function if isinstance(function, InScope) else function
    return function if isinstance(function, ModuleFunction | NamedFunction) else None


def fitted(implementation: Implementation, case: Case, **changes: Any) -> Case:
    """Return ``case`` with changes, fitted to the target's scope.

    Raises:
        ImplementationError: unsupported, if the changes lie outside the scope.
    """
    if "shape" in changes:  # one normalized axis is the default
        changes = {"normalized_dims": 1} | changes
    nearest = scope_of(implementation).fit(replace(case, **changes))
    if nearest is None:
        raise ImplementationError(Status.UNSUPPORTED, "outside the target's scope")
    return nearest


def first_case(target: str, dtype: str, device: str) -> Case:
    """Return the case that every verification begins with, which a faulty cache would keep."""
    return Case(implementation=target, shape=(6, 32), dtype=dtype, param_dtype=dtype, device=device)


_WIDTHS = (32, 64, 768, 1024)  # of x; some kernels take one width only
_USUAL_EPS = 1e-5  # of torch.nn.functional.layer_norm
_EPS = (0.0, 1e-12)  # the smallest of the cases
_HALVES = {"float16", "bfloat16"}
_NDIMS = (2, 3, 4, 1, 5)  # numbers of axes of x, the most usual first
_SEVERAL = (2, 3, 5, 7)  # sizes that are all different, so that no axis is taken for another
_LEADING = (2, 3, 2, 2)  # sizes of the axes before the last


# --- what it computes ---------------------------------------------------------------------------


def _meaning_of(implementation: Implementation, device: str) -> Meaning | None:
    """Return what the target computes; None if it declares its algorithm.

    Raises:
        UnsupportedError: it raises for every x tried, or its module cannot be constructed.
    """
    adapter = adapter_of(implementation)
    if adapter is not None:
        return adapter.meaning(torch.device(device))
    if implementation.declared:
        return None
    function: Callable[..., Tensor] = implementation.function

    def of(width: int, has: tuple[bool, bool]) -> Meaning:
        probe = Probe(
            call=partial(_with_default_eps, function),
            shape=(width,),
            has_weight=has[0],
            has_bias=has[1],
            takes_eps=True,
            device=torch.device(device),
        )
        meaning = find_meaning(probe, CallOptions())
        return replace(meaning, width=None if width == _WIDTHS[0] else width)

    forms = ((True, True), (True, False), (False, False), (False, True))
    return first_success((partial(of, *way) for way in product(_WIDTHS, forms)), UnsupportedError)


def _with_default_eps(
    function: Callable[..., Tensor], x: Tensor, weight: Tensor | None, bias: Tensor | None
) -> Tensor:
    try:
        return function(x, tuple(x.shape[-1:]), weight, bias)
    except TypeError:  # eps has no default
        return function(x, tuple(x.shape[-1:]), weight, bias, _USUAL_EPS)


def _scope_from_meaning(
    implementation: Implementation, meaning: Meaning | None, options: CallOptions
) -> Scope:
    """Return what is known of the scope before any case is tried."""
    adapter = adapter_of(implementation)
    shape, dims, eps = None, options.normalized_dims, options.eps
    if meaning is not None and meaning.eps is not None:
        eps = meaning.eps
    if adapter is not None:
        shape = adapter.normalized_shape
        dims = dims if adapter.takes_several_axes else 1
    if meaning is not None and meaning.width is not None:
        shape = (meaning.width,)
    dims = dims if shape is None else len(shape)
    others = () if dims is None else tuple(count for count in range(1, 6) if count != dims)
    return Scope(
        declined={"normalized_axes": others} if others else {},
        eps=eps,
        default_eps=None if meaning is None else meaning.default_eps,
        normalized_shape=shape,
        channels_first=adapter is not None and meaning is not None and meaning.channels_first,
    )


def _normalises_the_last_alone(judged: Judged) -> bool:
    """Whether several axes were given, and only the last one was normalised."""
    case, outputs = judged.case, judged.outputs
    if outputs is None:
        return False
    inputs = make_inputs(case)
    distances = []
    for dims in (1, case.normalized_dims):
        expected = layer_norm(inputs.x.double(), inputs.x.shape[inputs.x.dim() - dims :])
        expected = expected if inputs.weight is None else expected * inputs.weight.double()
        expected = expected if inputs.bias is None else expected + inputs.bias.double()
        distances.append(float((outputs.y.double() - expected).norm()))
    return distances[0] < distances[1]


# --- what it takes --------------------------------------------------------------------------------


def _raised(judged: Judged) -> ImplementationError | None:
    """Return what the target raised; None if it returned, even a wrong result."""
    returned = judged.status in {Status.OK, Status.WRONG}
    return None if returned else ImplementationError(judged.status, judged.reason)


@dataclass(slots=True)
class _Finder:
    """The scope of a target as far as it is known, and remarks on it."""

    attempt: Callable[[Case], Judged]
    """Runs a case without judging it."""
    scope: Scope
    case: Case
    """The first case that does not raise."""
    remarks: list[Finding] = field(default_factory=list)

    def declines(self, case: Case) -> ImplementationError | None:
        """Return what the target raises for a case and for the same case of other sizes.

        None if one of them returns, even a wrong result: cases outside the scope are never tried,
        so that a mistake there would be missed.
        """
        raised = _raised(self.attempt(case))
        if raised is None or raised.status is Status.UNSUPPORTED or 0 in case.shape:
            return raised
        leading = tuple(size + 1 for size in case.leading_shape)
        more = 0 if self.scope.normalized_shape is not None else 4
        shape = (*leading, *(size + more for size in case.normalized_shape))
        return raised if _raised(self.attempt(replace(case, shape=shape))) else None

    def probe(
        self, axis: str, cases: Mapping[Any, Case], text: str, kind: RemarkKind | None = None
    ) -> None:
        """Find the values of an axis that the target declines.

        Args:
            axis: of the scope.
            cases: by value.
            text: says what is declined; {} is the value.
            kind: of a remark for each declined value; None for a reason in the scope.
        """
        found = []
        for value, case in cases.items():
            if (raised := self.declines(case)) is not None:
                found.append(value)
                is_declared = axis == "affine" and raised.status is Status.UNSUPPORTED
                line = f"{text.format(AFFINE_WORDS.get(value, value))}: {raised}"
                if kind is not None:
                    self.remarks.append(remark(kind, f"declines {line}"))
                elif not is_declared and (axis != "ndim" or value > case.normalized_dims):
                    self.reason(line)
        is_backward = any(case.direction is not Direction.FORWARD for case in cases.values())
        if found and axis in {"affine", "ndim"} and len(found) == len(cases):
            return  # it took the first case
        self.decline(axis, *found, backward=is_backward and axis != "grad_output")

    def decline(self, axis: str, *values: Any, backward: bool = False) -> None:
        name = "declined_backward" if backward else "declined"
        known = getattr(self.scope, name)
        if values:
            both = dict.fromkeys((*known.get(axis, ()), *values))
            self.scope = replace(self.scope, **{name: known | {axis: tuple(both)}})

    def reason(self, text: str) -> None:
        self.scope = replace(self.scope, reasons=(*self.scope.reasons, text))

    def by_ndim(self) -> dict[int, Case]:
        """Return a case with each number of axes of x, if the scope has one."""
        cases = (_of_ndim(self.case, ndim) for ndim in sorted(_NDIMS))
        fitted = [self.scope.fit(case) or case for case in cases]
        return {len(case.shape): case for case in fitted}


def _of_ndim(case: Case, ndim: int) -> Case:
    """Return a case whose x has so many axes, of which the last is normalised."""
    return replace(case, shape=(*_LEADING[: ndim - 1], _WIDTHS[0]), normalized_dims=1)


def _find_gradients(finder: _Finder) -> Case | None:
    """Find a backward, and which numbers of axes and parameters have one."""
    scope = finder.scope
    by_ndim = {ndim: case for ndim, case in finder.by_ndim().items() if scope.accepts("ndim", ndim)}
    first = None
    for case, affine in product((finder.case, *by_ndim.values()), scope.taken("affine")):
        backward = replace(case, affine=affine, direction=Direction.BACKWARD)
        raised = finder.declines(backward)
        if raised is None:
            break
        first = first or raised
    else:
        finder.reason(f"gradients: {first}")
        finder.scope = replace(finder.scope, has_gradient=False)
        return None
    cases: dict[Any, Case] = {
        affine: replace(backward, affine=affine) for affine in scope.taken("affine")
    }
    finder.probe("affine", cases, "gradients with {}")
    cases = {ndim: replace(backward, shape=case.shape) for ndim, case in by_ndim.items()}
    finder.probe("ndim", cases, "gradients of an x of {} axes")
    return backward


def _find_normalized_dims(finder: _Finder, *, is_module: bool) -> None:
    """Try several normalized axes on a target that may take them."""
    ndim = max(finder.scope.taken("ndim"))
    shape = _SEVERAL if finder.scope.accepts("ndim", 4) else _SEVERAL[-ndim:]
    dims = 2
    while dims <= min(len(shape), 4):
        case = replace(finder.case, shape=shape, normalized_dims=dims)
        finder.probe("normalized_axes", {dims: case}, "{} normalized axes")
        if not finder.scope.accepts("normalized_axes", dims):
            break
        # for a function that is a mistake, for a module class a limit of its scope
        if is_module and _normalises_the_last_alone(finder.attempt(case)):
            text = f"{dims} axes, such as {list(case.normalized_shape)}"
            text = f"accepts a normalized_shape of {text}, but normalises only the last axis"
            finder.remarks.append(remark(RemarkKind.SEVERAL_AXES_IGNORED, text))
            break
        dims += 1
    finder.decline("normalized_axes", *(range(dims, 6) if dims < 5 else ()))


def _find_empty(finder: _Finder, backward: Case | None) -> None:
    """Find whether an x without elements is taken: without rows, or without features."""
    for case, what in ((finder.case, "an empty x"), (backward, "the gradients of an empty x")):
        if case is None:
            return
        shapes = [(0, *case.shape[1:])] if len(case.shape) > case.normalized_dims else []
        if finder.scope.normalized_shape is None:
            shapes.append((*case.shape[:-1], 0))
        for shape in shapes:
            text = f"{what} ({shape_text(shape)})"
            empty = {True: replace(case, shape=shape)}
            finder.probe("is_empty", empty, text, RemarkKind.DECLINES_EMPTY)
            if not finder.scope.accepts("is_empty", True, backward=True):
                return


def _find_layouts(finder: _Finder, backward: Case | None) -> None:
    """Try each layout of x, of dy, and of the parameters."""
    kind, scope = RemarkKind.DECLINES_LAYOUT, finder.scope
    # with axes enough that x is not contiguous, if any are
    of_ndims = (case for ndim, case in finder.by_ndim().items() if scope.accepts("ndim", ndim))
    fitted = [finder.case, *filter(None, map(scope.fit, of_ndims))]
    cases = {}
    for layout in LAYOUTS:
        laid_out = [replace(case, layout=layout) for case in fitted]
        strided = (case for case in laid_out if not make_inputs(case).x.is_contiguous())
        cases[layout] = next(strided, laid_out[0])
    finder.probe("layout", cases, "an x in the layout {}", kind)
    cases = {name: replace(backward, grad_output=name) for name in LAYOUT_OF} if backward else {}
    finder.probe("grad_output", cases, "a dy in the layout of {}", kind)
    case = replace(finder.case, parameters="transposed")
    if scope.normalized_shape is None and scope.accepts("normalized_axes", 2):
        case = replace(case, shape=_SEVERAL[-max(scope.taken("ndim")) :], normalized_dims=2)
    if case.affine is not Affine.NONE and case.normalized_dims > 1:
        text = "a weight or bias in the layout {}"
        finder.probe("parameters", {"transposed": case}, text, kind)


def _find_mixed_dtypes(
    finder: _Finder, function: Callable[..., object], dtypes: tuple[str, ...]
) -> None:
    """Try x in half precision with parameters in float32, as in mixed-precision training."""
    for dtype in dtypes:
        case = replace(finder.case, dtype=dtype, param_dtype="float32")
        if dtype not in _HALVES or case.affine is Affine.NONE:
            continue
        if finder.declines(replace(case, param_dtype=dtype)):
            continue
        finder.probe("param_dtype", {"float32": case}, f"{dtype} x with {{}} parameters")
        if not finder.scope.accepts("param_dtype", "float32"):
            continue
        inputs = make_inputs(case)
        with torch.no_grad():
            y = function(inputs.x, case.normalized_shape, inputs.weight, inputs.bias, case.eps)
        if isinstance(y, Tensor) and y.dtype == torch.float32:
            finder.scope = replace(finder.scope, promotes=True)
            text = (
                "returns float32 for a half-precision x with float32 parameters; torch returns "
                "x's dtype"
            )
            finder.remarks.append(remark(RemarkKind.PROMOTES, text, (dtype,)))


def find_scope(
    implementation: Implementation,
    dtypes: tuple[str, ...],
    device: str,
    options: CallOptions,
    attempt: Callable[[Case], Judged],
) -> tuple[Scope, tuple[Finding, ...], str | None]:
    """Return the target's scope, remarks on it, and which other function it computes, if one.

    Args:
        implementation: not yet wrapped in :class:`InScope`.
        dtypes: names, tried in this order up to the first that does not raise.
        device: device kind.
        options: how the target is to be called.
        attempt: runs a case of the target, and need not judge it.

    Raises:
        UnsupportedError: the target raises in every form; the message has the first reason; or its
            module cannot be constructed.
    """
    meaning, adapter = _meaning_of(implementation, device), adapter_of(implementation)
    scope = _scope_from_meaning(implementation, meaning, options)
    usual = first_case(implementation.name, dtypes[0], device)
    finder = _Finder(attempt, scope, _first_accepted(scope, usual, dtypes, attempt))
    finder.probe("ndim", finder.by_ndim(), "x of {} axes")
    affines = {affine: replace(finder.case, affine=affine) for affine in AFFINE_WORDS}
    finder.probe("affine", affines, "{}")
    backward = None if implementation.forward_only else _find_gradients(finder)
    if scope.channels_first and meaning is not None:
        declined = [str(count + 2) for count in (1, 2, 3) if count not in meaning.spatial_counts]
        if declined:
            finder.reason(f"x of {' or '.join(declined)} axes, channels first: it raises")
    if options.normalized_dims is None and scope.normalized_shape is None:
        if scope.taken("normalized_axes") != (1,):
            _find_normalized_dims(finder, is_module=isinstance(adapter, ModuleFunction))
        elif adapter is not None:
            finder.reason("several normalized axes: it takes one size")
    if scope.eps is None:
        finder.probe("eps", {eps: replace(finder.case, eps=eps) for eps in _EPS}, "eps = {:g}")
    _find_empty(finder, backward)
    _find_layouts(finder, backward)
    _find_mixed_dtypes(finder, implementation.function, dtypes)
    scope, remarks = finder.scope, finder.remarks
    if scope.default_eps not in {None, _USUAL_EPS}:
        text = f"adds an eps of {scope.default_eps:g} if none is given; torch adds {_USUAL_EPS:g}"
        remarks.append(remark(RemarkKind.DEFAULT_EPS, text))
    if meaning is not None and meaning.also_channels_first:
        text = (
            "also normalises axis 1 of an x with its channels there; that was not verified: "
            "--channels-first verifies it"
        )
        remarks.append(remark(RemarkKind.ALSO_CHANNELS_FIRST, text))
    if scope.fit(usual) is None:
        raise UnsupportedError(f"it raises in the first case: {'; '.join(scope.reasons)}")
    name = None if meaning is None else meaning.normalization
    # without its weight or bias it is a LayerNorm with a mistake, which the diagnosis names
    is_layer_norm = name is None or name == LAYER_NORM or "without its" in name
    return scope, tuple(remarks), None if is_layer_norm else name


def _first_accepted(
    scope: Scope, usual: Case, dtypes: tuple[str, ...], attempt: Callable[[Case], Judged]
) -> Case:
    """Return the first case that does not raise."""
    first: ImplementationError | None = None
    for dtype, affine, ndim in product(dtypes, AFFINE_WORDS, _NDIMS):
        changed = replace(usual, dtype=dtype, param_dtype=dtype, affine=affine)
        case = scope.fit(_of_ndim(changed, ndim))
        if case is not None:
            if (raised := _raised(attempt(case))) is None:
                return case
            first = first or raised
    raise UnsupportedError(f"it raises in every form tried; first: {first}")
