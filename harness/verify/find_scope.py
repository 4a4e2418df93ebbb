"""Find by calls which part of the contract a target takes, and in which calls it raises.

Each probe tries cases that differ in one thing, and sets a field of the scope by those that raise.
What models do, such as giving a transposed x, is a finding where it raises; what they hardly do is
a remark; what the target declares or its signature shows is a limit of its scope.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import Parameter, signature
from itertools import product
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from harness.cases.inputs import LAYOUT_OF, LAYOUTS, make_inputs
from harness.records import Affine, Case, Direction, Status
from harness.records.finding import Finding, RemarkKind, remark
from harness.records.text import listed
from harness.run import ImplementationError, Judged
from harness.verify.in_scope import adapter_of, first_case
from harness.verify.raises import (
    A_GRADIENT,
    EXPANDED,
    LAID_OUT,
    NOT_CONTIGUOUS,
    SLICE,
    TRANSPOSED,
    WITHOUT,
    laid_out,
    layout_of_dy,
    raises,
)
from harness.verify.scope import AFFINE_WORDS, EMPTY_ROWS, NO_ROWS, Scope
from harness.verify.words import cause
from implementations.contract import Implementation, UnsupportedError, scale_and_shift
from implementations.targets.attempt import first_success
from implementations.targets.from_function import NamedFunction
from implementations.targets.from_module import ModuleFunction
from implementations.targets.meaning import CallOptions, Meaning, Probe, find_meaning
from implementations.targets.recognise import LAYER_NORM

__all__ = ["find_scope"]

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
    normalised = layer_norm(inputs.x.double(), inputs.x.shape[-1:])
    expected = scale_and_shift(normalised, inputs.weight, inputs.bias)
    return torch.allclose(outputs.y.double(), expected, rtol=0.1, atol=0.1)


# --- what it takes --------------------------------------------------------------------------------


def _raised(judged: Judged) -> ImplementationError | None:
    """Return what the target raised; None if it returned, even a wrong result."""
    returned = judged.status in {Status.OK, Status.WRONG}
    return None if returned else ImplementationError(judged.status, judged.reason)


def _x_of(ndims: Collection[int]) -> str:
    return f"x of {listed(ndims, 'or')} {'axis' if [*ndims] == [1] else 'axes'}"


def _required_of(implementation: Implementation) -> set[str]:
    """Return which of weight and bias cannot be left out of a call, by its signature."""
    adapter, names = adapter_of(implementation), ("weight", "bias")
    if adapter is not None:
        return adapter.required & {*names} if isinstance(adapter, NamedFunction) else set()
    try:
        parameters = [*signature(implementation.function).parameters.values()]
    except (TypeError, ValueError):  # it declares none
        return set()
    positional = {Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD}
    return {
        name
        for name, taken in zip(names, parameters[2:], strict=False)
        if taken.kind in positional and taken.default is Parameter.empty
    }


@dataclass(slots=True)
class _Finder:
    """The scope of a target as far as it is known, and what was found with it."""

    attempt: Callable[[Case], Judged]
    """Runs a case without judging it."""
    scope: Scope
    case: Case
    """The first case that does not raise."""
    required: Collection[str]
    """Arguments that the signature requires; to call without one is declined."""
    findings: list[Finding] = field(default_factory=list)
    """Remarks, and calls that raise."""

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

    def probe(self, axis: str, cases: Mapping[Any, Case]) -> dict[Any, ImplementationError]:
        """Find the values of an axis that the target declines, each with what it raises."""
        errors = {value: self.declines(case) for value, case in cases.items()}
        raised = {value: error for value, error in errors.items() if error is not None}
        is_backward = any(case.direction is not Direction.FORWARD for case in cases.values())
        if axis in {"affine", "ndim"} and len(raised) == len(cases):
            return {}  # it took the first case
        self.decline(axis, *raised, backward=is_backward and axis != "grad_output")
        return raised

    def decline(self, axis: str, *values: Any, backward: bool = False) -> None:
        name = "declined_backward" if backward else "declined"
        known = getattr(self.scope, name)
        if values:
            both = dict.fromkeys((*known.get(axis, ()), *values))
            self.scope = replace(self.scope, **{name: known | {axis: tuple(both)}})

    def limit(self, what: str, *errors: ImplementationError) -> None:
        """Add a limit to the scope, with the first of ``errors``; ``what`` follows "declines "."""
        reason = f"{what} ({cause(errors[0].reason)})" if errors else what
        self.scope = replace(self.scope, reasons=(*self.scope.reasons, reason))

    def say(self, finding: Finding, what: str, error: ImplementationError) -> None:
        """Add the finding that a call raises, or a limit on ``what`` if that is declared."""
        if error.status is Status.ERROR:
            self.findings.append(finding)
        else:
            self.limit(what, error)

    def say_remark(self, kind: RemarkKind, what: str, error: ImplementationError) -> None:
        """Add a remark on what raises, or a limit if that is declared."""
        self.say(remark(kind, f"declines {what} ({cause(error.reason)})"), what, error)

    def say_affine(self, raised: Mapping[Affine, ImplementationError], when: str) -> None:
        """Say which calls without weight or bias raise.

        Args:
            raised: by combination of weight and bias.
            when: " with gradients" if these calls have them; else empty.
        """
        # without refusals that the target declares
        left = {affine: own for affine, own in raised.items() if own.status is Status.ERROR}
        needed: dict[str, ImplementationError] = {}
        for text, affines in WITHOUT.items():
            error = next((error for affine, error in left.items() if affine in affines), None)
            if error is None or not affines <= raised.keys():
                continue
            if name := next((name for name in self.required if name in text), None):
                needed[f"without {name}"] = error
            else:
                call = f"{A_GRADIENT} and {text}" if when else text
                self.findings.append(raises("affine", call, error.reason, 0))
            left = {affine: left[affine] for affine in left.keys() - affines}
        if needed:
            self.limit(f"calls {listed(needed, 'or')}{when}", *needed.values())
        if left:
            words = listed((AFFINE_WORDS[affine] for affine in left), "or")
            self.limit(f"calls with {words}{when}", *left.values())

    def say_layouts(
        self, name: str, axis: str, raised: Mapping[str, ImplementationError], strided: set[str]
    ) -> None:
        """Say in which memory layouts of x or dy it raises.

        Args:
            name: "x" or "dy".
            axis: of a case, which sets the layout.
            raised: by layout.
            strided: the layouts that were tried and are not contiguous.
        """
        kinds = {LAID_OUT[layout] for layout in strided}
        usual = {TRANSPOSED, SLICE, NOT_CONTIGUOUS} | ({EXPANDED} if name == "dy" else set())
        found = {LAID_OUT[layout]: error for layout, error in raised.items()}
        if len(kinds & usual) > 1 and strided <= raised.keys():
            rest = {kind: error for kind, error in found.items() if kind not in kinds}
            found = {NOT_CONTIGUOUS: next(iter(raised.values()))} | rest
        for kind, error in sorted(found.items(), key=itemgetter(0)):
            what = f"{'an' if name == 'x' else 'a'} {name} that is {kind}"
            if kind in usual:
                self.say(raises(axis, laid_out(name, kind), error.reason, 0), what, error)
            else:
                self.say_remark(RemarkKind.DECLINES_LAYOUT, what, error)

    def by_ndim(self) -> dict[int, Case]:
        """Return a case with each number of axes of x that is taken, as far as is known."""
        cases = (_of_ndim(self.case, ndim) for ndim in sorted(_NDIMS))
        fitted = (self.scope.fit(case) or case for case in cases)
        by_ndim = {len(case.shape): case for case in fitted}
        return {ndim: case for ndim, case in by_ndim.items() if self.scope.accepts("ndim", ndim)}


def _of_ndim(case: Case, ndim: int) -> Case:
    """Return a case whose x has so many axes, of which the last is normalised."""
    return replace(case, shape=(*_LEADING[: ndim - 1], _WIDTHS[0]), normalized_dims=1)


def _find_gradients(finder: _Finder) -> Case | None:
    """Find a backward, and which numbers of axes and parameters have one."""
    scope, by_ndim = finder.scope, finder.by_ndim()
    errors: list[ImplementationError] = []
    for case, affine in product((finder.case, *by_ndim.values()), scope.taken("affine")):
        backward = replace(case, affine=affine, direction=Direction.BACKWARD)
        raised = finder.declines(backward)
        if raised is None:
            break
        errors.append(raised)
    else:
        finding = raises("direction", A_GRADIENT, errors[0].reason, 0)
        finder.say(finding, "gradients", errors[0])
        finder.scope = replace(finder.scope, has_gradient=False)
        return None
    affines = {affine: replace(backward, affine=affine) for affine in scope.taken("affine")}
    finder.say_affine(finder.probe("affine", affines), " with gradients")
    cases = {ndim: replace(backward, shape=case.shape) for ndim, case in by_ndim.items()}
    if declined := finder.probe("ndim", cases):
        finder.limit(f"gradients of {_x_of(declined)}", *declined.values())
    return backward


def _find_normalized_dims(finder: _Finder, *, is_module: bool) -> None:
    """Try several normalized axes on a target that may take them."""
    ndim = max(finder.scope.taken("ndim"))
    shape = _SEVERAL if finder.scope.accepts("ndim", 4) else _SEVERAL[-ndim:]
    dims = 2
    while dims <= min(len(shape), 4):
        case = replace(finder.case, shape=shape, normalized_dims=dims)
        if raised := finder.probe("normalized_axes", {dims: case}):
            finder.limit(f"{dims} or more normalized axes", raised[dims])
            break
        # for a function that is a mistake, for a module class a limit of its scope
        if is_module and _normalises_the_last_alone(finder.attempt(case)):
            text = "accepts a normalized_shape of several axes, but normalises only the last axis"
            finder.findings.append(remark(RemarkKind.SEVERAL_AXES_IGNORED, text))
            break
        dims += 1
    finder.decline("normalized_axes", *(range(dims, 6) if dims < 5 else ()))


def _find_empty(finder: _Finder, backward: Case | None) -> None:
    """Find whether an x without elements is taken: without rows, or without features."""
    for case, what in ((finder.case, ""), (backward, "the gradients of ")):
        if case is None:
            return
        shapes = {}
        if len(case.shape) > case.normalized_dims:
            shapes[NO_ROWS] = (0, *case.shape[1:])
        if finder.scope.normalized_shape is None:
            shapes[EMPTY_ROWS] = (*case.shape[:-1], 0)
        cases = {words: replace(case, shape=shape) for words, shape in shapes.items()}
        if raised := finder.probe("emptiness", cases):
            first = next(iter(raised))
            finder.say_remark(RemarkKind.DECLINES_EMPTY, f"{what}{first}", raised[first])
            return


def _find_layouts(finder: _Finder, backward: Case | None) -> None:
    """Try each layout of x, of dy, and of the parameters."""
    scope = finder.scope
    # with axes enough that x is not contiguous, if any are
    fitted = [finder.case, *filter(None, map(scope.fit, finder.by_ndim().values()))]
    cases = {}
    for layout in LAYOUTS:
        own = [replace(case, layout=layout) for case in fitted]
        strided = (case for case in own if not make_inputs(case).x.is_contiguous())
        cases[layout] = next(strided, own[0])
    strided_x = {name for name, case in cases.items() if not make_inputs(case).x.is_contiguous()}
    finder.say_layouts("x", "layout", finder.probe("layout", cases), strided_x)
    cases = {name: replace(backward, grad_output=name) for name in LAYOUT_OF} if backward else {}
    raised = finder.probe("grad_output", cases)
    of_dy = {layout_of_dy(name): error for name, error in raised.items()}
    contiguous = {"negated", "storage_offset"}
    finder.say_layouts("dy", "grad_output", of_dy, {*map(layout_of_dy, cases)} - contiguous)
    if finder.case.affine is Affine.NONE:
        return
    cases = {name: replace(finder.case, parameters=name) for name in ("every_second", "chunk")}
    if scope.normalized_shape is None and scope.accepts("normalized_axes", 2):
        shape = _SEVERAL[-max(scope.taken("ndim")) :]
        cases["transposed"] = replace(
            finder.case, parameters="transposed", shape=shape, normalized_dims=2
        )
    for name, error in finder.probe("parameters", cases).items():
        what = f"a weight or bias that is {LAID_OUT[name]}"
        finder.say_remark(RemarkKind.DECLINES_LAYOUT, what, error)


def _find_mixed_dtypes(
    finder: _Finder, function: Callable[..., object], dtypes: Sequence[str]
) -> None:
    """Try x in half precision with parameters in float32, as in mixed-precision training."""
    for dtype in dtypes:
        case = replace(finder.case, dtype=dtype, param_dtype="float32")
        is_mixed = dtype in _HALVES and case.affine is not Affine.NONE
        if not is_mixed or finder.declines(replace(case, param_dtype=dtype)):
            continue
        if raised := finder.probe("param_dtype", {"float32": case}):
            finder.limit(f"{dtype} x with float32 parameters", raised["float32"])
            continue
        inputs = make_inputs(case)
        with torch.no_grad():
            y = function(inputs.x, case.normalized_shape, inputs.weight, inputs.bias, case.eps)
        if isinstance(y, Tensor) and y.dtype == torch.float32:
            finder.scope = replace(finder.scope, promotes=True)
            text = "returns float32, not the dtype of x, if weight and bias are float32"
            finder.findings.append(remark(RemarkKind.PROMOTES, text, (dtype,)))


def find_scope(
    implementation: Implementation,
    dtypes: Sequence[str],
    device: str,
    options: CallOptions,
    attempt: Callable[[Case], Judged],
) -> tuple[Scope, tuple[Finding, ...], str | None]:
    """Return the target's scope, findings, and which other function it computes, if one.

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
    first = _first_accepted(scope, usual, dtypes, attempt)
    finder = _Finder(attempt, scope, first, _required_of(implementation))
    raised = finder.probe("ndim", finder.by_ndim())
    if more := [ndim for ndim in raised if ndim > finder.case.normalized_dims]:
        finder.limit(_x_of(more), raised[more[0]])
    affines = {affine: replace(finder.case, affine=affine) for affine in AFFINE_WORDS}
    finder.say_affine(finder.probe("affine", affines), "")
    backward = None if implementation.forward_only else _find_gradients(finder)
    if scope.channels_first and meaning is not None:
        declined = [count + 2 for count in (1, 2, 3) if count not in meaning.spatial_counts]
        if declined:
            finder.limit(f"{_x_of(declined)}, channels first")
    if options.normalized_dims is None and scope.normalized_shape is None:
        if scope.taken("normalized_axes") != (1,):
            _find_normalized_dims(finder, is_module=isinstance(adapter, ModuleFunction))
        elif adapter is not None:
            finder.limit("several normalized axes")
    of_eps = {eps: replace(finder.case, eps=eps) for eps in _EPS}
    if scope.eps is None and (raised := finder.probe("eps", of_eps)):
        values = listed((f"{eps:g}" for eps in raised), "or")
        finder.limit(f"an eps of {values}", *raised.values())
    _find_empty(finder, backward)
    _find_layouts(finder, backward)
    _find_mixed_dtypes(finder, implementation.function, dtypes)
    scope, findings = finder.scope, finder.findings
    if scope.default_eps not in {None, _USUAL_EPS}:
        text = f"adds an eps of {scope.default_eps:g} if none is given; torch adds {_USUAL_EPS:g}"
        findings.append(remark(RemarkKind.DEFAULT_EPS, text))
    if meaning is not None and meaning.also_channels_first:
        text = "also normalises axis 1 of an x with channels there: see --channels-first"
        findings.append(remark(RemarkKind.ALSO_CHANNELS_FIRST, text))
    if scope.fit(usual) is None:
        raise UnsupportedError(f"it raises in the first case: {'; '.join(scope.reasons)}")
    name = None if meaning is None else meaning.normalization
    # without its weight or bias it is a LayerNorm with a mistake, which the diagnosis names
    is_layer_norm = name is None or name == LAYER_NORM or "without its" in name
    return scope, tuple(findings), None if is_layer_norm else name


def _first_accepted(
    scope: Scope, usual: Case, dtypes: Sequence[str], attempt: Callable[[Case], Judged]
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
