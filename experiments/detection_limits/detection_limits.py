"""By how much can a result be wrong and still pass?

    python experiments/detection_limits/detection_limits.py     prints the tables
    ... --report                                                prints the tables of the stored rows

The detection limit of an output is its error bound, in ulp at the scale of its row or column. Every
input distribution, dtype and algorithm class is tried with rows of 1000 elements, and every output
gradient with many short rows. Slack is the bound over the largest error of a right implementation
of the class, at the element where that is largest: what could be gained by a sharper bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from statistics import median

import click
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import implementations
from harness.cases.inputs import DISTRIBUTIONS, GRAD_OUTPUTS
from harness.numerics.bounds import error_bound_of, spacing
from harness.numerics.error_measurement import compared, measure_errors
from harness.records import Case, Direction
from harness.run.attempt import attempt, exact_of
from harness.verify.result import DTYPES

PUBLISHED = Path(__file__).parents[2] / "results" / "published" / "detection_limits.parquet"
# one right implementation of each class, with tree sums. PyTorch's own is what a target without a
# declaration is held to; in halves its gradients are inaccurate on the CPU, and have no slack
CLASSES = {
    "recentred": "recentred",
    "two_pass": "two_pass",
    "welford": "native",
    "one_pass": "one_pass",
    "shifted": "shifted",
}
INACCURATE_GRADIENTS = {("native", "float16"), ("native", "bfloat16")}
LONG, MANY = (64, 1000), (4096, 16)  # rows and hidden; at most 2^16 elements
OUTPUTS = ("y", "dx", "dweight", "dbias")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The detection limit of one output."""

    distribution: str
    grad_output: str
    rows: int
    hidden: int
    dtype: str
    algorithm: str
    output: str
    limit_ulp: float | None
    """Median over the elements with a bound; None if there is none."""
    worst_ulp: float | None
    """Largest of the same."""
    unbounded: float
    """Share of the finite elements without a bound."""
    error_ulp: float | None
    """Largest error of a right implementation; None if it is not right in this dtype."""
    slack: float | None
    """Bound over error where that is smallest; infinite if all are exact."""


def limits() -> Iterator[Row]:
    """Yield the detection limits of every condition."""
    conditions = [(LONG, name, "shifted_normal") for name in DISTRIBUTIONS]
    conditions += [(MANY, "normal", name) for name in GRAD_OUTPUTS]
    for shape, distribution, grad_output in conditions:
        for dtype in DTYPES:
            case = Case(
                implementation="",
                shape=shape,
                dtype=dtype,
                param_dtype=dtype,
                distribution=distribution,
                grad_output=grad_output,
                direction=Direction.BACKWARD,
            )
            for algorithm in CLASSES:
                yield from _limits_of(case, algorithm)


def _limits_of(case: Case, algorithm: str) -> Iterator[Row]:
    """Yield a row for each output; none if the dtype cannot represent the inputs."""
    right = implementations.find(CLASSES[algorithm])
    trial = attempt(right, case, measure=measure_errors)
    if trial.errors is None:
        return
    errors = {
        errors_of_output.output: errors_of_output for errors_of_output in trial.errors.outputs
    }
    assert trial.outputs is not None  # it has errors
    inputs, reference = exact_of(case)
    bounds = error_bound_of(right, case)
    for part in compared(trial.outputs, inputs, case, bounds, reference, scaled=True):
        assert part.scale is not None  # as asked for
        output, bound, exact = part.output, part.bound, part.exact[0]
        in_ulp = bound / spacing(inputs.x.dtype, part.scale)
        defined, bounded = torch.isfinite(exact), torch.isfinite(exact) & torch.isfinite(bound)
        known = in_ulp[bounded].tolist()
        is_right = output == "y" or (right.name, case.dtype) not in INACCURATE_GRADIENTS
        ratio = errors[output].bound_ratio
        yield Row(
            distribution=case.distribution,
            grad_output=case.grad_output,
            rows=case.rows,
            hidden=case.hidden,
            dtype=case.dtype,
            algorithm=algorithm,
            output=output,
            limit_ulp=median(known) if known else None,
            worst_ulp=max(known, default=None),
            unbounded=1 - int(bounded.sum()) / max(int(defined.sum()), 1),
            error_ulp=errors[output].scaled_max_ulp if is_right else None,
            slack=(1 / ratio if ratio else inf) if is_right and ratio is not None else None,
        )


def report(rows: Sequence[Row]) -> str:
    """Return all tables as Markdown."""
    held = [row for row in rows if row.algorithm == "welford" and row.dtype == "float32"]
    by_distribution = [row for row in held if row.hidden == LONG[1]]
    by_gradient = [row for row in held if row.hidden == MANY[1]]
    normal = [row for row in rows if row.distribution == "normal" and row.hidden == LONG[1]]
    return "\n\n".join([
        f"**By algorithm and dtype**, normal rows, {LONG[0]} x {LONG[1]}:",
        _table(normal, "algorithm, dtype", lambda row: f"{row.algorithm}, {row.dtype}"),
        f"**By input distribution**, welford in float32, {LONG[0]} x {LONG[1]}:",
        _table(by_distribution, "distribution", lambda row: row.distribution),
        f"**By output gradient**, welford in float32, normal rows, {MANY[0]} x {MANY[1]}:",
        _table(by_gradient, "output gradient", lambda row: row.grad_output),
    ])


def _table(rows: Sequence[Row], heading: str, name_of: Callable[[Row], str]) -> str:
    """Return one line per name: the limit of each output, and the slack in brackets."""
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        cells.setdefault(name_of(row), {})[row.output] = _cell(row)
    lines = [(heading, *OUTPUTS), ("---",) * (1 + len(OUTPUTS))]
    lines += [(name, *(found[output] for output in OUTPUTS)) for name, found in cells.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(row: Row) -> str:
    if row.limit_ulp is None:
        return "none"
    part = f", {row.unbounded:.0%} none" if row.unbounded else ""
    slack = ""
    if row.slack is not None:
        slack = " (exact)" if row.slack == inf else f" ({_number(row.slack)})"
    return f"{_number(row.limit_ulp)}{slack}{part}"


def _number(value: float) -> str:
    """Return two significant digits: 190 and 1.9e+06."""
    return f"{float(f'{value:.2g}'):g}"


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), default=PUBLISHED)
@click.option(
    "--report", "report_only", is_flag=True, help="Print the tables of --out; compute nothing."
)
def main(out: Path, report_only: bool) -> None:
    if not report_only:
        torch.set_num_threads(1)
        pq.write_table(pa.Table.from_pylist([asdict(row) for row in limits()]), out)
    click.echo(report([Row(**row) for row in pq.read_table(out).to_pylist()]))


if __name__ == "__main__":
    main()
