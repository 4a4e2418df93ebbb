"""Find what a target computes and its scope, the part of the contract that it takes, by calling it.

The scope is found by probes: each tries cases that differ in one thing, and sets a field of the
scope by those that raise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from harness.cases.inputs import LAYOUT_OF, LAYOUTS, make_inputs
from harness.records import Affine, Case, Direction, Status
from harness.records.finding import Finding, RemarkKind, remark
from harness.records.text import shape_text
from harness.run.attempt import Judged
from harness.run.call import (
    ImplementationError,
)
from harness.verify.cases.plan import first_case
from harness.verify.scope import AFFINE_WORDS, Scope, adapter_of
from implementations.contract import Implementation, UnsupportedError
from implementations.targets.from_module import ModuleFunction
from implementations.targets.meaning import CallOptions, Meaning, Probe, find_meaning
from implementations.targets.recognise import LAYER_NORM

__all__ = ["find_scope"]

_WIDTHS = (32, 64, 768, 1024)  # of x; some kernels take one width only
_USUAL_EPS = 1e-5  # of torch.nn.functional.layer_norm
_EPS = (0.0, 1e-12, 0.5)  # the extremes of the cases
_HALVES = {"float16", "bfloat16"}
_RANKS = (2, 3, 4, 1, 5)  # numbers of axes of x, the most usual first
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
    forms = ((True, True), (True, False), (False, False), (False, True))
    for width, (has_weight, has_bias) in product(_WIDTHS, forms):
        probe = Probe(
            call=lambda x, w, b: _with_default_eps(function, x, w, b),
            shape=(width,),
            has_weight=has_weight,
            has_bias=has_bias,
            takes_eps=True,
            device=torch.device(device),
        )
        try:
            meaning = find_meaning(probe, CallOptions())
            return replace(meaning, width=None if width == _WIDTHS[0] else width)
        except UnsupportedError as error:
            last_error = error
    raise last_error


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
    scope = Scope(eps=options.eps)
    if meaning is not None:
        eps = meaning.eps if meaning.eps is not None else options.eps
        scope = replace(scope, eps=eps, default_eps=meaning.default_eps)
        adapter = adapter_of(implementation)
        if adapter is not None:
            shape = adapter.normalized_shape
            dims = scope.normalized_dims if adapter.takes_several_axes else (1,)
            scope = replace(
                scope,
                normalized_shape=shape,
                normalized_dims=dims if shape is None else (len(shape),),
                channels_first=meaning.channels_first,
            )
        if meaning.width is not None:
            scope = replace(scope, normalized_shape=(meaning.width,), normalized_dims=(1,))
    if options.normalized_dims is not None:
        scope = replace(scope, normalized_dims=(options.normalized_dims,))
    return scope


def _remark_on_meaning(finder: _Finder) -> None:
    """Add the remarks that follow from what the target computes."""
    eps = finder.scope.default_eps
    if eps is not None and eps != _USUAL_EPS:
        text = f"adds an eps of {eps:g} if none is given; torch adds {_USUAL_EPS:g}"
        finder.remark(RemarkKind.DEFAULT_EPS, text)
    if finder.meaning is not None and finder.meaning.also_channels_first:
        finder.remark(
            RemarkKind.ALSO_CHANNELS_FIRST,
            "also normalises axis 1 of an x with its channels there; that was not verified: "
            "--channels-first verifies it",
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
    """The scope of a target as far as it is known, and what lies outside it."""

    implementation: Implementation
    meaning: Meaning | None
    options: CallOptions
    dtypes: tuple[str, ...]
    case: Case
    """The first case that does not raise."""
    scope: Scope
    attempt: Callable[[Case], Judged]
    """Runs a case without judging it."""
    backward: Case | None = None
    """A backward that does not raise; None if none was found."""
    reasons: list[str] = field(default_factory=list)
    """What is outside the scope, each with what the target raised."""
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

    def declined(
        self,
        cases: Mapping[Any, Case],
        text: str,
        kind: RemarkKind | None = None,
        is_silent: Callable[[Case, ImplementationError], bool] = lambda case, raised: False,
    ) -> list[Any]:
        """Return the values whose case is declined.

        Args:
            cases: by value.
            text: says what is declined; {} is the value.
            kind: of a remark for each declined value; None for a reason in the scope.
            is_silent: which of them are not mentioned.
        """
        found = []
        for value, case in cases.items():
            if (raised := self.declines(case)) is not None:
                found.append(value)
                line = f"{text.format(AFFINE_WORDS.get(value, value))}: {raised}"
                if kind is not None:
                    self.remark(kind, f"declines {line}")
                elif not is_silent(case, raised):
                    self.reasons.append(line)
        return found

    def with_rank(self, rank: int) -> Case:
        """Return a case with so many axes, if the scope has one."""
        case = _of_rank(self.implementation, rank, self.case.dtype, self.case.device)
        return self.scope.fit(case) or case

    def remark(self, kind: RemarkKind, text: str, *dtypes: str) -> None:
        self.remarks.append(remark(kind=kind, text=text, dtypes=dtypes))

    def set(self, **fields: Any) -> None:
        self.scope = replace(self.scope, **fields)


def _of_rank(implementation: Implementation, rank: int, dtype: str, device: str) -> Case:
    """Return a case with so many axes."""
    case = first_case(implementation.name, dtype, device)
    return replace(case, shape=(*_LEADING[: rank - 1], _WIDTHS[0]))


def _find_forms(finder: _Finder) -> None:
    """Find the numbers of axes of x, and the parameters that it takes."""
    by_rank = {len(case.shape): case for case in map(finder.with_rank, sorted(_RANKS))}
    declined = finder.declined(
        by_rank,
        "x of {} axes",
        is_silent=lambda case, raised: len(case.shape) <= case.normalized_dims,
    )
    ranks = tuple(rank for rank in by_rank if rank not in declined)
    finder.set(ranks=ranks or finder.scope.ranks)
    declined = finder.declined(
        {affine: replace(finder.case, affine=affine) for affine in AFFINE_WORDS},
        "{}",
        is_silent=lambda case, raised: raised.status is Status.UNSUPPORTED,
    )
    affines = tuple(affine for affine in AFFINE_WORDS if affine not in declined)
    finder.set(affines=affines or finder.scope.affines)


def _find_gradients(finder: _Finder) -> None:
    """Find a backward, and which numbers of axes and parameters have one."""
    if finder.implementation.forward_only:
        return
    scope = finder.scope
    by_rank = {len(case.shape): case.shape for case in map(finder.with_rank, sorted(_RANKS))}
    shapes = {rank: by_rank[rank] for rank in scope.ranks}
    first = None
    for shape, affine in product((finder.case.shape, *shapes.values()), scope.affines):
        case = replace(finder.case, shape=shape, affine=affine, direction=Direction.BACKWARD)
        raised = finder.declines(case)
        if raised is None:
            break
        first = first or raised
    else:
        finder.reasons.append(f"gradients: {first}")
        finder.set(has_gradient=False)
        return
    finder.backward = case
    by_affine = {affine: replace(case, affine=affine) for affine in scope.affines}
    affines = finder.declined(by_affine, "gradients with {}")
    cases = {rank: replace(case, shape=shape) for rank, shape in shapes.items()}
    ranks = finder.declined(cases, "gradients of an x of {} axes")
    finder.set(affines_without_gradient=tuple(affines), ranks_without_gradient=tuple(ranks))


def _find_normalized_dims(finder: _Finder) -> None:
    """Try several normalized axes on a target that may take them."""
    scope, meaning = finder.scope, finder.meaning
    if scope.channels_first and meaning is not None:
        declined = [str(count + 2) for count in (1, 2, 3) if count not in meaning.spatial_counts]
        if declined:
            finder.reasons.append(f"x of {' or '.join(declined)} axes, channels first: it raises")
    if finder.options.normalized_dims is not None or scope.normalized_shape is not None:
        return
    if scope.normalized_dims == (1,):
        if adapter_of(finder.implementation) is not None:
            finder.reasons.append("several normalized axes: it takes one size")
        return
    taken = [1]
    shape = _SEVERAL if 4 in scope.ranks else _SEVERAL[-max(scope.ranks) :]
    for dims in range(2, min(len(shape), 4) + 1):
        case = replace(finder.case, shape=shape, normalized_dims=dims)
        if finder.declined({dims: case}, "{} normalized axes"):
            break
        # for a function that is a mistake, for a module class a limit of its scope
        is_module = isinstance(adapter_of(finder.implementation), ModuleFunction)
        if is_module and _normalises_the_last_alone(finder.attempt(case)):
            finder.remark(
                RemarkKind.SEVERAL_AXES_IGNORED,
                f"accepts a normalized_shape of {dims} axes, such as "
                f"{list(case.normalized_shape)}, but normalises only the last axis",
            )
            break
        taken.append(dims)
    finder.set(normalized_dims=(*taken, 5) if len(taken) == 4 else tuple(taken))


def _find_sizes(finder: _Finder) -> None:
    """Find the smallest eps, and whether an x without elements is taken, and in a backward."""
    if finder.scope.eps is None:
        cases = {eps: replace(finder.case, eps=eps) for eps in _EPS}
        small = [eps for eps in finder.declined(cases, "eps = {:g}") if eps < 1e-5]
        finder.set(least_eps=max((1e-8 if eps else 1e-12 for eps in small), default=0.0))
    for name, case, what in (
        ("takes_empty", finder.case, "an empty x"),
        ("takes_empty_backward", finder.backward, "the gradients of an empty x"),
    ):
        if case is None:
            continue
        shapes = [(0, *case.shape[1:])] if len(case.shape) > case.normalized_dims else []
        if finder.scope.normalized_shape is None:
            shapes.append((*case.shape[:-1], 0))
        for shape in shapes:
            empty = {shape_text(shape): replace(case, shape=shape)}
            if finder.declined(empty, f"{what} ({{}})", RemarkKind.DECLINES_EMPTY):
                finder.set(**{name: False})
                return


def _find_layouts(finder: _Finder) -> None:
    """Try each layout of x, of dy, and of the parameters."""
    kind, scope, backward = RemarkKind.DECLINES_LAYOUT, finder.scope, finder.backward
    # with axes enough that x is not contiguous, if any are
    of_ranks = (finder.with_rank(rank) for rank in sorted(scope.ranks))
    fitted = [finder.case, *filter(None, map(scope.fit, of_ranks))]
    cases = {}
    for layout in LAYOUTS:
        laid_out = [replace(case, layout=layout) for case in fitted]
        strided = (case for case in laid_out if not make_inputs(case).x.is_contiguous())
        cases[layout] = next(strided, laid_out[0])
    layouts = finder.declined(cases, "an x in the layout {}", kind)
    cases = {name: replace(backward, grad_output=name) for name in LAYOUT_OF} if backward else {}
    grad_outputs = finder.declined(cases, "a dy in the layout of {}", kind)
    case = replace(finder.case, parameters="transposed")
    if scope.normalized_shape is None and 2 in scope.normalized_dims:
        case = replace(case, shape=_SEVERAL[-max(scope.ranks) :], normalized_dims=2)
    has_axes = case.affine is not Affine.NONE and case.normalized_dims > 1
    cases = {"transposed": case} if has_axes else {}
    parameters = finder.declined(cases, "a weight or bias in the layout {}", kind)
    finder.set(
        declined_layouts=tuple(layouts),
        declined_grad_outputs=tuple(grad_outputs),
        declined_parameters=tuple(parameters),
    )


def _find_mixed_dtypes(finder: _Finder) -> None:
    """Try x in half precision with parameters in float32, as in mixed-precision training."""
    for dtype in finder.dtypes:
        case = replace(finder.case, dtype=dtype, param_dtype="float32")
        if dtype not in _HALVES or case.affine is Affine.NONE:
            continue
        if finder.declines(replace(case, param_dtype=dtype)):
            continue
        if finder.declined({dtype: case}, "{} x with float32 parameters"):
            finder.set(takes_mixed_dtypes=False)
            continue
        inputs = make_inputs(case)
        call: Any = finder.implementation.function
        with torch.no_grad():
            y = call(inputs.x, case.normalized_shape, inputs.weight, inputs.bias, case.eps)
        if isinstance(y, Tensor) and y.dtype == torch.float32:
            finder.set(promotes=True)
            finder.remark(
                RemarkKind.PROMOTES,
                "returns float32 for a half-precision x with float32 parameters; torch returns "
                "x's dtype",
                dtype,
            )


def find_scope(
    implementation: Implementation,
    dtypes: tuple[str, ...],
    device: str,
    options: CallOptions,
    attempt: Callable[[Case], Judged],
) -> tuple[Scope, tuple[Finding, ...], str | None]:
    """Return the target's scope, remarks on it, and which other function it computes, if one.

    Args:
        implementation: not yet wrapped in :class:`harness.verify.scope.InScope`.
        dtypes: names, tried in this order up to the first that does not raise.
        device: device kind.
        options: how the target is to be called.
        attempt: runs a case of the target, and need not judge it.

    Raises:
        UnsupportedError: the target raises in every form; the message has the first reason; or its
            module cannot be constructed.
    """
    meaning = _meaning_of(implementation, device)
    scope = _scope_from_meaning(implementation, meaning, options)
    case, scope = _first_accepted(implementation, scope, dtypes, device, attempt)
    finder = _Finder(implementation, meaning, options, dtypes, case, scope, attempt)
    for find in (
        _find_forms,
        _find_gradients,
        _find_normalized_dims,
        _find_sizes,
        _find_layouts,
        _find_mixed_dtypes,
        _remark_on_meaning,
    ):
        find(finder)
    scope = replace(finder.scope, reasons=tuple(finder.reasons))
    if scope.fit(first_case(implementation.name, dtypes[0], device)) is None:
        raise UnsupportedError(f"it raises in the first case: {'; '.join(scope.reasons)}")
    name = None if meaning is None else meaning.normalization
    # without its weight or bias it is a LayerNorm with a mistake, which the diagnosis names
    is_layer_norm = name is None or name == LAYER_NORM or "without its" in name
    return scope, tuple(finder.remarks), None if is_layer_norm else name


def _first_accepted(
    implementation: Implementation,
    scope: Scope,
    dtypes: tuple[str, ...],
    device: str,
    attempt: Callable[[Case], Judged],
) -> tuple[Case, Scope]:
    """Return the first case that does not raise, and the scope with its affine and rank."""
    first: ImplementationError | None = None
    for dtype, affine, rank in product(dtypes, AFFINE_WORDS, _RANKS):
        some = replace(scope, affines=(affine,))
        case = some.fit(_of_rank(implementation, rank, dtype, device))
        if case is not None:
            if (raised := _raised(attempt(case))) is None:
                return case, replace(some, ranks=(len(case.shape),))
            first = first or raised
    raise UnsupportedError(f"it raises in every form tried; first: {first}")
