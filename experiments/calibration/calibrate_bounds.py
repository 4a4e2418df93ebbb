"""Are the error bounds right? Every LayerNorm known to be right, on every input distribution.

A bound that is too tight calls right code wrong; a bound that is too loose catches nothing. This
script counts the first (``verify --self-test`` counts the second). It also shows the largest share
of its bound that each implementation uses. ``tox run -e calibrate`` exits with 1 if right code was
called wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import product
from time import perf_counter

import click
import torch

import implementations
from harness.cases.inputs import DISTRIBUTIONS, GRAD_OUTPUTS
from harness.mutants import RIGHT
from harness.numerics.error_measurement import measure_errors
from harness.records import Case, Direction, Status
from harness.run.attempt import attempt
from harness.verify.result import DTYPES
from implementations.contract import Implementation, Reduction

LENGTHS = (1, 2, 7, 64, 1000, 4097)
COLUMNS = ((67, 33), (4100, 24))  # few and many rows: dy decides how their sums are bounded
SLOW_FROM = 1000  # sequential implementations run one step per element in Python: minutes
# native's float16 and bfloat16 gradients are inaccurate on the CPU, so they calibrate nothing
KNOWN_WRONG = {("native", "float16"), ("native", "bfloat16")}


def main() -> int:
    torch.set_num_threads(1)
    began, checks, wrong = perf_counter(), 0, 0
    on_cpu = [
        implementation for implementation in implementations.ALL if "cpu" in implementation.devices
    ]
    subjects = [*on_cpu, *RIGHT]
    click.echo(f"{'':<28}{'checks':>8}{'wrong':>8}   share of the bound: y, gradients")
    for subject in subjects:
        used = {"y": 0.0, "gradients": 0.0}
        tried = failed = 0
        for case in cases_of(subject):
            trial = attempt(subject, case, measure=measure_errors)
            if trial.errors is None or trial.status is Status.OUT_OF_GUARANTEE:
                continue
            tried += 1
            failed += trial.status is Status.WRONG
            if trial.status is Status.WRONG:
                click.echo(f"  wrong: {case.id}: {trial.reason}")
            for errors_of_output in trial.errors.outputs:
                kind = "y" if errors_of_output.output == "y" else "gradients"
                # in halves, rounding the result is most of the error
                if case.dtype in {"float32", "float64"}:
                    used[kind] = max(used[kind], errors_of_output.bound_ratio or 0.0)
        checks, wrong = checks + tried, wrong + failed
        figures = f"{used['y']:.2f} {used['gradients']:.2f}"
        click.echo(f"{subject.name:<28}{tried:>8}{failed:>8}   {figures}")
    spent_s = perf_counter() - began
    click.echo(f"{checks} checks, {wrong} of right code called wrong, {spent_s:.0f} s")
    return 1 if wrong or not checks else 0


def cases_of(subject: Implementation) -> Iterator[Case]:
    """Yield every distribution, dtype and row length, with gradients where they must be right.

    Then every output gradient.
    """
    for dtype, hidden, distribution in product(DTYPES, LENGTHS, DISTRIBUTIONS):
        if subject.reduction is Reduction.SEQUENTIAL and hidden >= SLOW_FROM:
            continue
        directions = [Direction.FORWARD]
        if not subject.forward_only and (subject.name, dtype) not in KNOWN_WRONG:
            directions.append(Direction.BACKWARD)
        for direction in directions:
            yield Case(
                implementation=subject.name,
                shape=(8, hidden),
                dtype=dtype,
                param_dtype=dtype,
                distribution=distribution,
                direction=direction,
            )
    for dtype, shape, grad_output in product(DTYPES, COLUMNS, GRAD_OUTPUTS):
        if not subject.forward_only and (subject.name, dtype) not in KNOWN_WRONG:
            yield Case(
                implementation=subject.name,
                shape=shape,
                dtype=dtype,
                param_dtype=dtype,
                grad_output=grad_output,
                direction=Direction.BACKWARD,
            )


if __name__ == "__main__":
    sys.exit(main())
