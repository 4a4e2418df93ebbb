"""Judge the cases of results files again, after a change of the judging or of a scale of errors.

    python experiments/publish/judge_again.py results/published/cpu.parquet ...

Each case is run once; nothing is timed. If its absolute errors equal the stored ones, up to the
digits in which exact references of two machines differ, the record gets the status, reason, errors
and error bounds as they are now, and keeps its times and memory. Otherwise the record stays as it
is, and its case is printed. The command of the file's last run names this script.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import isclose
from pathlib import Path

import click

from harness.numerics.error_measurement import measure_errors
from harness.records import OutputErrors, Record, WarningKind
from harness.run.attempt import attempt
from harness.store import read, write
from implementations import find

# trade-off: exact float64 references of two CPUs differ a little, most near zero
_SAME = 1e-8


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
def main(paths: tuple[Path, ...]) -> None:
    """Judge the cases in PATHS again, and store their statuses and errors."""
    for path in paths:
        results = read(path)
        counts: Counter[str] = Counter()
        records = []
        for record in results.records:
            again = judged_again(record) if record.errors else record
            if again is None:
                click.echo(
                    f"{record.case.id}: other errors than those that are stored; not changed"
                )
            elif again != record:
                counts[f"{record.status} to {again.status}"] += 1
            records.append(again or record)
        click.echo(f"{path}: {dict(counts)}")
        if counts:
            run = results.runs[-1]
            command = f"{run.command.partition(' && ')[0]} && experiments/publish/judge_again.py"
            runs = (*results.runs[:-1], replace(run, command=command))
            write(replace(results, records=tuple(records), runs=runs), path)


def judged_again(record: Record) -> Record | None:
    """Return a record as its case is judged now; None if it does not have the same errors."""
    if any(warning.kind is WarningKind.CACHED_RESULT for warning in record.warnings):
        return record  # wrong in another call than the first
    now = attempt(find(record.case.implementation), record.case, measure=measure_errors)
    if now.errors is None or record.errors is None:
        return None
    pairs = zip(now.errors.outputs, record.errors.outputs, strict=True)
    if not all(are_equal(new, old) for new, old in pairs):
        return None
    return replace(record, status=now.status, reason=now.reason, errors=now.errors)


def are_equal(new: OutputErrors, old: OutputErrors) -> bool:
    """Whether two errors agree, whatever their bounds and scales are."""
    figures = ((own.max_abs, own.raw_max_ulp, own.normwise_ratio) for own in (new, old))
    is_same = (new.elements, new.unexpected_nonfinite) == (old.elements, old.unexpected_nonfinite)
    return is_same and all(
        one == other or isclose(one, other, rel_tol=_SAME)
        for one, other in zip(*figures, strict=True)
    )


if __name__ == "__main__":
    main()
