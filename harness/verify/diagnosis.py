"""Diagnosis: name the known mistakes that explain the failures of a target.

A mutant matches if, on every input where the target is clearly wrong, the distance between the two
is small compared to the error of the target. All outputs are compared together first, and one by
one if no mutant matches them together. Some mistakes no mutant can match, because two functions
with the same rounding mistake still round differently: probes are inputs on which one such mistake
has a known result. Each dtype is diagnosed by itself, since a function may have another mistake in
each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from harness.cases.inputs import Inputs, make_inputs
from harness.mutants import WRONG, Mutant, read_from_memory
from harness.numerics.bounds import ErrorBound, error_bound_of, unit_roundoff
from harness.numerics.error_measurement import BoundRatio, bound_ratios
from harness.numerics.outputs import GRADIENTS, OUTPUTS, Outputs
from harness.numerics.verdict import is_beyond, status_of
from harness.records import Case, Direction, Status
from harness.run.attempt import Judged, attempt, exact_of
from harness.run.call import ContractViolationError, ImplementationError, checked, guarded
from harness.run.process_state import process_state_restored
from harness.verify.cases.plan import first_case
from harness.verify.findings import Suspect
from harness.verify.scope import fitted, scope_of
from implementations.contract import Algorithm, Implementation, Reduction
from implementations.native import native
from implementations.targets.recognise import measured_eps

_MATCH_RATIO = 0.2
"""Of the target's own error; the right mutant leaves less than 0.03 of it, any other over 0.5."""
_CLEAR_RATIO = 10  # times the bound; closer to it, most of the error is rounding
_FAR_RATIO = 1e4  # times the float64 bound; float32 rounds 5e8 times as coarsely
_MOST_CASES = 4  # of different kinds; trade-off: each is run on every mutant
_MOST_SUSPECTS = 3  # what a person reads
_MOST_ELEMENTS = 1 << 15  # of one case, which is run on every mutant
_MOST_JUDGED = 6  # the smallest failures; a mistake that explains them explains the others
_DENSE_COPIES = 3  # of the smallest failures; of a mistake in all layouts, the first copy fails
_ROWS = 4100  # more ones than bfloat16 (256) and float16 (2048) can count
_EPS = (1e-3, 1e-7)
_NEAR = 1e-3  # of the norm of y; a LayerNorm with the measured eps is closer


def diagnose(implementation: Implementation, failures: Sequence[Judged]) -> tuple[Suspect, ...]:
    """Return the known mistakes that explain ``failures``, best first; empty if none does."""
    found: dict[tuple[str, tuple[str, ...]], Suspect] = {}
    for dtype in dict.fromkeys(trial.case.dtype for trial in failures):
        of_dtype = [trial for trial in failures if trial.case.dtype == dtype]
        for suspect in _in_one_dtype(implementation, of_dtype):
            key = suspect.name, suspect.outputs
            if (known := found.get(key)) is not None:
                ratio = max(known.unexplained_ratio, suspect.unexplained_ratio)
                dtypes = known.dtypes + suspect.dtypes
                suspect = replace(suspect, dtypes=dtypes, unexplained_ratio=ratio)
            found[key] = suspect
    return tuple(found.values())


def _in_one_dtype(target: Implementation, failures: Sequence[Judged]) -> list[Suspect]:
    for probe in (missing_gradient, strided_read_as_dense, cancelling_variance):
        if found := list(probe(target, failures)):
            return found
    # a function that normalises the last axis alone has another mistake where there are more
    on_one_axis = [trial for trial in failures if trial.case.normalized_dims == 1]
    for kept in (failures, on_one_axis or failures):
        clear = _clear_failures(kept)
        computed = {case: _outputs_of(target, case) for case in clear}
        usable = {case: outputs for case, outputs in computed.items() if outputs is not None}
        if found := _matches(usable, OUTPUTS):
            return found
    wrong = {name for trial in failures for name in trial.outputs_beyond()}
    for probe, shown_by in (
        (constant_eps, {*OUTPUTS}),
        (computed_in_float32, {*OUTPUTS}),
        (narrow_sums, {"dweight", "dbias"}),
        (_narrow_statistics, {"dx", "dweight"}),
    ):
        if wrong & shown_by:
            found += probe(target, failures)
    explained = {name for suspect in found for name in suspect.outputs}
    for name in OUTPUTS:
        if name not in explained:
            with_name = {case: own for case, own in usable.items() if name in clear[case]}
            found += _matches(with_name, (name,))[:1]
    return found


def _suspect(
    name: str, mistake: str, dtype: str, outputs: tuple[str, ...] = OUTPUTS, ratio: float = 0.0
) -> Suspect:
    return Suspect(
        name=name, mistake=mistake, dtypes=(dtype,), outputs=outputs, unexplained_ratio=ratio
    )


def _outputs_of(target: Implementation, case: Case, inputs: Inputs | None = None) -> Outputs | None:
    """Return the outputs for ``case``; None if the target raises or breaks its contract.

    Args:
        target: what is called.
        case: what to compute.
        inputs: None for those of the case.
    """
    if inputs is None:
        return attempt(target, case, is_judged=False).outputs
    given = inputs, exact_of(case)[1]
    return attempt(target, case, exact=lambda case: given, is_judged=False).outputs


def _ratios(outputs: Outputs, case: Case, bound: ErrorBound) -> tuple[BoundRatio, ...]:
    """Return the errors of outputs over a bound."""
    inputs, reference = exact_of(case)
    return bound_ratios(outputs, inputs, case, bound, reference)


def _probe(target: Implementation, failures: Sequence[Judged], *shape: int, **axes: Any) -> Case:
    """Return a plain backward case of the dtype and device of the failures, or a forward one."""
    first = first_case(target.name, failures[0].case.dtype, failures[0].case.device)
    direction = Direction.FORWARD if target.forward_only else Direction.BACKWARD
    return fitted(target, first, shape=shape, direction=direction, **axes)


def _size(trial: Judged) -> int:
    return trial.case.rows * trial.case.hidden


# --- mutants -------------------------------------------------------------------------------------


def _matches(computed: Mapping[Case, Outputs], names: tuple[str, ...]) -> list[Suspect]:
    """Return the mutants that match the named outputs in every case, best first."""
    found = ((_most_unexplained_by(mutant, computed, names), mutant) for mutant in WRONG)
    suspects = [
        _suspect(mutant.name, mutant.mistake, next(iter(computed)).dtype, names, ratio)
        for ratio, mutant in found
        if ratio is not None and ratio < _MATCH_RATIO
    ]
    return sorted(suspects, key=lambda suspect: suspect.unexplained_ratio)[:_MOST_SUSPECTS]


def _clear_failures(failures: Sequence[Judged]) -> dict[Case, set[str]]:
    """Return small, clear failures of different kinds, each with its clearly wrong outputs.

    Rows of one element come last, and before them rows that are not normal: where the variance is
    0 or overflows, right and wrong code differ by NaN and by the order of operations.
    """

    def rank(trial: Judged) -> tuple[bool, bool, int]:
        return trial.case.hidden == 1, trial.case.distribution != "normal", _size(trial)

    kinds: set[tuple[object, ...]] = set()
    clear = {}
    for trial in sorted(failures, key=rank):
        case, wrong_outputs = trial.case, trial.outputs_beyond(_CLEAR_RATIO)
        values = (case.distribution, case.affine, case.grad_output, case.parameters)
        kind = *values, case.normalized_dims, case.eps
        if wrong_outputs and 16 <= _size(trial) <= _MOST_ELEMENTS and kind not in kinds:
            kinds.add(kind)
            clear[case] = wrong_outputs
        if len(kinds) == _MOST_CASES:
            break
    return clear


def _most_unexplained_by(
    mutant: Mutant, computed: Mapping[Case, Outputs], names: tuple[str, ...]
) -> float | None:
    """Return the largest distance over the cases, up to the first without a match; None for none.

    Most mutants do not match the first case.
    """
    largest = None
    for case, outputs in computed.items():
        if case.dtype not in mutant.dtypes:
            continue
        distance = _unexplained_by(outputs, mutant, case, names)
        if distance is not None:
            largest = max(largest or 0.0, distance)
            if not distance < _MATCH_RATIO:
                break
    return largest


def _unexplained_by(
    target: Outputs, mutant: Mutant, case: Case, names: tuple[str, ...]
) -> float | None:
    """Return the distance of target and mutant over the target's error; None without an error."""
    wrong = replace(native, name=mutant.name, function=mutant.fresh(), declared=False)
    with process_state_restored():  # some mutants change it
        if mutant.keeps_state:  # it must start from the target's state
            _outputs_of(wrong, first_case(mutant.name, case.dtype, case.device))
        outputs = _outputs_of(wrong, case)
    return float("inf") if outputs is None else _unexplained(target, outputs, case, names)


def _unexplained(
    target: Outputs, suspected: Outputs, case: Case, names: tuple[str, ...]
) -> float | None:
    """Return the distance of two results over the target's error; None without an error.

    Args:
        target: outputs of the target for ``case``.
        suspected: outputs that it would have with the suspected mistake.
        case: what was computed.
        names: of the outputs that are compared.
    """
    distance = error = 0.0
    for name, exact in _exact(case).items():
        own, guess = getattr(target, name), getattr(suspected, name)
        if name not in names or own is None or guess is None:
            continue
        # right outputs and mistakes round too: only the distance to the rounded result is an error
        exact = exact.to(own.dtype)
        # on the CPU, where the exact result is
        own, guess, exact = (tensor.cpu().double().flatten() for tensor in (own, guess, exact))
        finite = torch.isfinite(own) & torch.isfinite(guess) & torch.isfinite(exact)
        if not bool((torch.isfinite(own) == torch.isfinite(guess)).all()):
            return float("inf")
        # relative to each output's size: gradients of parameters are sums over many rows
        size = float(exact[finite].norm()) or 1.0
        distance += (float((own - guess)[finite].norm()) / size) ** 2
        error += (float((own - exact)[finite].norm()) / size) ** 2
    return (distance / error) ** 0.5 if error else None


def _exact(case: Case) -> dict[str, Tensor]:
    """Return the exact outputs of a case, rounded to float64."""
    blocks = list(exact_of(case)[1])
    found = {"y": torch.cat([block.y[0] for block in blocks])}
    if blocks[0].dx is not None:
        found["dx"] = torch.cat([block.dx[0] for block in blocks if block.dx is not None])
        for name in ("dweight", "dbias"):
            found[name] = torch.stack([getattr(block, name)[0] for block in blocks]).sum(0)
    return found


# --- probes that explain all failures ------------------------------------------------------------


def missing_gradient(target: Implementation, failures: Sequence[Judged]) -> Iterator[Suspect]:
    """Name the gradients that are None."""
    reasons = [trial.reason for trial in failures]
    names = tuple(
        name for name in sorted(GRADIENTS) if any(r.startswith(f"{name} is None") for r in reasons)
    )
    if names:
        mistake = f"gives no gradient ({', '.join(names)} is None)"
        yield _suspect("missing_gradient", mistake, failures[0].case.dtype, names)


def strided_read_as_dense(target: Implementation, failures: Sequence[Judged]) -> Iterator[Suspect]:
    """Test whether arguments that are not contiguous are read as if they were.

    Results are then right with dense copies, and a wrong result is the one for arguments that hold
    what lies in memory in place of their values.
    """
    layouts = sorted({trial.case.layout for trial in failures} - {"contiguous"})
    if any(
        trial.case.layout == "contiguous" and trial.case.parameters != "transposed"
        for trial in failures
    ):
        return
    smallest = sorted(failures, key=_size)[:_DENSE_COPIES]
    for trial in smallest:
        parameters = trial.case.parameters.replace("transposed", "normal")
        plain = replace(trial.case, layout="contiguous", parameters=parameters)
        if attempt(target, plain).status is Status.WRONG:
            return  # wrong in any layout, on other conditions
    left = [_left_by_dense_read(target, trial) for trial in smallest]
    explained = [ratio for ratio in left if ratio is not None and ratio < _MATCH_RATIO]
    if explained:
        what = "an x" if layouts else "a weight or bias"
        where = f" (layouts: {', '.join(layouts)})" if layouts else ""
        mistake = f"reads {what} that is not contiguous as if it were{where}"
        dtype = failures[0].case.dtype
        yield _suspect("strided_read_as_dense", mistake, dtype, ratio=min(explained))


def _left_by_dense_read(target: Implementation, trial: Judged) -> float | None:
    """Return the part of the error that reading memory in order leaves unexplained, if known."""
    measured = trial.errors.outputs if trial.errors else ()
    wrong = [row.output for row in measured if is_beyond(row)]
    outputs = _outputs_of(target, trial.case)
    if outputs is None or not wrong:
        return None
    inputs = make_inputs(trial.case)
    read = inputs.at([read_from_memory(tensor) for tensor in inputs.tensors])
    predicted = _outputs_of(target, replace(trial.case, layout="contiguous"), read)
    if predicted is None:
        return None
    return _unexplained(outputs, predicted, trial.case, (wrong[0],))


def cancelling_variance(target: Implementation, failures: Sequence[Judged]) -> Iterator[Suspect]:
    """Test for E[x^2] - E[x]^2, whose errors are large only where the mean is large.

    It matches if every failed case is within the error bound of a one-pass algorithm, one of them
    with a finite bound, and one clearly beyond the target's own bound.
    """
    is_clear = any(trial.outputs_beyond(_CLEAR_RATIO) for trial in failures if trial.ratios)
    if not is_clear or not all(trial.ratios for trial in failures):
        return
    one_pass = replace(target, algorithm=Algorithm.ONE_PASS, reduction=Reduction.SEQUENTIAL)
    found = []
    for case in [trial.case for trial in sorted(failures, key=_size)[:_MOST_JUDGED]]:
        outputs = _outputs_of(target, case)
        if outputs is None:
            return
        found.append(status_of(_ratios(outputs, case, error_bound_of(one_pass, case))))
    if Status.WRONG not in found and Status.OK in found:
        mistake = (
            "computes the variance as E[x^2] - E[x]^2, which cancels where the mean is large "
            "beside the deviations"
        )
        yield _suspect("one_pass_statistics", mistake, failures[0].case.dtype)


# --- probes that explain some outputs ------------------------------------------------------------


def constant_eps(target: Implementation, failures: Sequence[Judged]) -> Iterator[Suspect]:
    """Pass two values of eps, and measure which are added."""
    if scope_of(target).eps is not None:
        return
    probe = _probe(target, failures, 6, 32)
    inputs = make_inputs(replace(probe, direction=Direction.FORWARD))
    weight, bias = (  # on the CPU, as the x by which eps is measured
        None if tensor is None else tensor.cpu().double().flatten()
        for tensor in (inputs.weight, inputs.bias)
    )

    def y_of(x: Tensor, eps: float) -> Tensor:
        given = x.to(inputs.x).reshape(inputs.x.shape)
        shape = probe.normalized_shape
        y = guarded(target.function, given, shape, inputs.weight, inputs.bias, eps)()
        return checked("y", y, given).reshape(x.shape).cpu()

    x = inputs.x.cpu().double().reshape(probe.rows, probe.hidden)
    try:
        with torch.no_grad():
            first, second = (
                measured_eps(partial(y_of, eps=eps), tuple(x.shape), -1, weight, bias)
                for eps in _EPS
            )
            y = y_of(x, _EPS[0]).double()
    except (ImplementationError, ContractViolationError):
        return
    if first is None or second is None or abs(first - second) > 0.01 * max(first, second):
        return
    like = functional.layer_norm(x, x.shape[-1:], weight, bias, first)
    if (y - like).norm() <= _NEAR * like.norm():
        mistake = f"adds an eps of {first:.3g} for every eps that is passed"
        yield _suspect("constant_eps", mistake, probe.dtype)


def computed_in_float32(target: Implementation, failures: Sequence[Judged]) -> Iterator[Suspect]:
    """Test whether the error in float64 is that of float32.

    The test uses eps = 0, since a slightly wrong eps causes an error of the same size.
    """
    if failures[0].case.dtype != "float64":
        return
    probe = _probe(target, failures, 16, 64)
    if scope_of(target).eps is None:
        probe = replace(probe, eps=0.0)
    outputs = _outputs_of(target, probe)
    if outputs is None:
        return
    wide = error_bound_of(target, probe)
    narrow = replace(wide, accumulate_dtype=torch.float32)
    by_wide, by_narrow = (_ratios(outputs, probe, bound) for bound in (wide, narrow))
    found = tuple(
        one.output
        for one, other in zip(by_wide, by_narrow, strict=True)
        if (one.bound_ratio or 0) > _FAR_RATIO and (other.bound_ratio or 0) <= 1
    )
    if found:
        yield _suspect("float64_in_float32", "computes float64 in float32", "float64", found)


def narrow_sums(target: Implementation, failures: Sequence[Judged]) -> Iterator[Suspect]:
    """Test how dweight and dbias are summed over the rows, using dbias.

    When counting to 4100, a narrow accumulator stops where adding 1 no longer changes it. If
    partial sums over portions of the rows are rounded, a 1 is lost between two large numbers of
    other portions.
    """
    counting = _probe(target, failures, _ROWS, 24)
    dtype, outputs = counting.dtype, _outputs_of(target, replace(counting, grad_output="ones"))
    if outputs is None or outputs.dbias is None:
        return
    counted = float(outputs.dbias.double().max())
    if counted < 0.9 * _ROWS:
        name = f"narrow_sums_in_{dtype}"
        how = f"over the rows in {dtype} itself: {_ROWS} ones came to {counted:g}"
    elif dtype in {"float16", "bfloat16"} and _portions_lose_a_one(target, counting):
        name = "portions_added_in_parameter_dtype"
        how = f"in portions of the rows, and rounds to {dtype} after each"
    else:
        return
    yield _suspect(name, f"adds up dweight and dbias {how}", dtype, ("dweight", "dbias"))


def _portions_lose_a_one(target: Implementation, case: Case) -> bool:
    """Sum a large number, 1 and minus the large number, in the first, middle and last row."""
    inputs, _ = exact_of(case)
    assert inputs.dy is not None  # of a backward case
    # 1 is a quarter of its spacing: it is rounded away beside it, above and below
    large = 2 / unit_roundoff(inputs.dy.dtype) * 2
    dy = torch.zeros_like(inputs.dy)
    dy[0], dy[case.rows // 2], dy[-1] = large, 1, -large
    found = _outputs_of(target, case, replace(inputs, dy=dy))
    return found is not None and found.dbias is not None and bool((found.dbias == 0).all())


def _narrow_statistics(target: Implementation, failures: Sequence[Judged]) -> Iterator[Suspect]:
    """Compare with a mean and rstd kept in a narrow dtype, on rows far from 0.

    Only there does the rounding of the mean exceed that of the gradients themselves.
    """
    dtype = failures[0].case.dtype
    name = f"statistics_kept_in_{dtype}"
    kept = next((mutant for mutant in WRONG if mutant.name == name), None)
    if kept is None:
        return
    probe = _probe(target, failures, 16, 64, distribution="offset_1e2")
    outputs = _outputs_of(target, probe)
    if outputs is None:
        return
    left = {name: _unexplained_by(outputs, kept, probe, (name,)) for name in ("dx", "dweight")}
    explained = {
        name: ratio for name, ratio in left.items() if ratio is not None and ratio < _MATCH_RATIO
    }
    if explained:
        ratio = max(explained.values())
        yield _suspect(kept.name, kept.mistake, dtype, tuple(explained), ratio)
