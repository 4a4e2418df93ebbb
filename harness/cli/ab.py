"""The command ``ab``: parse, have two revisions measured side by side, print, exit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import click

from harness.cli.arguments import AXIS_OPTIONS, Duration, axis_options
from harness.cli.ci_outputs import GateOutlets, gate_options
from harness.records.refusal import Refusal

__all__ = ["ab"]

FAILED, INTERRUPTED = 1, 130
_BEGAN = monotonic()


class InterruptedComparisonError(Refusal):
    """A comparison was interrupted; half of one says nothing."""

    exit_code = INTERRUPTED


@click.command()
@click.option("--base", "revision", required=True, metavar="REV", help="branch, tag or commit")
@click.option("--preset", help='a sweep that comes with the package ["ci"]; see `list presets`')
@click.option(
    "--sweep", "sweep_file", type=click.Path(path_type=Path), help="a sweep of your own, in TOML"
)
@axis_options
@click.option(
    "--time-budget", type=Duration(), metavar="10m", help="start no case after this, such as 10m"
)
@gate_options
@click.option("--json", "as_json", is_flag=True, help="print the comparison as JSON")
def ab(
    revision: str,
    preset: str | None,
    sweep_file: Path | None,
    time_budget: float | None,
    junit: Path | None,
    summary: Path | None,
    annotations: bool | None,
    as_json: bool,
    **axes: tuple[tuple[Any, ...], ...],
) -> None:
    """Did the working copy get worse than revision REV? The gate of a pull request.

    Both are imported side by side and measured in turn in the same processes, so that it works on
    any machine, however busy. Verdicts, errors and memory are compared exactly; what looks slower
    is timed again in five fresh processes, and fails only if all of them agree. The repository is
    that of the implementations: this package's, or yours if -i names functions in it.

    Exit code 0: no. 1: yes. 2: there is no such revision, or it cannot be imported. 3: nothing was
    measured. 4: nothing can be compared.
    """
    if preset and sweep_file:
        raise click.UsageError("give --preset or --sweep, not both")
    outlets = GateOutlets(junit=junit, summary=summary, annotations=annotations, to_stderr=as_json)
    with outlets.open(*([sweep_file] if sweep_file else [])), _interruptible():
        given = {axis: sum(values, ()) for axis, values in axes.items() if values}
        sweep = _sweep(preset, sweep_file, given)
        comparison = _compared(sweep, revision, time_budget)
    _show(comparison, as_json)
    outlets.tell(comparison)
    if comparison.failed:
        raise SystemExit(FAILED)


def _sweep(preset: str | None, sweep_file: Path | None, axes: dict[str, tuple[Any, ...]]) -> Any:
    from harness.sweep import Sweep, load_preset, load_sweep

    if sweep_file:
        found = load_sweep(sweep_file)
    else:
        found = load_preset(preset or "ci") if preset or not axes else Sweep()
    return found.with_axes(axes, AXIS_OPTIONS)


def _compared(sweep: Any, revision: str, time_budget: float | None) -> Any:
    from harness.regression.ab.revision import checked_out
    from harness.run.fleet import Fleet

    with Fleet() as fleet:  # its process imports torch while the files are had
        from harness.cli.terminal import RunProgress
        from harness.regression.ab.ab import Bench, ab
        from harness.regression.ab.pairing import notes_of, pair_up, repository_of_sweep

        with checked_out(repository_of_sweep(sweep), revision) as checkout:
            name = f"{revision} ({checkout.commit[:12]})"
            pairing = pair_up(sweep, fleet, checkout, name)
            with ExitStack() as bar:
                progress = bar.enter_context(RunProgress(len(pairing.pairs)))

                def say(line: str) -> None:
                    bar.close()  # a line of text would land in it
                    click.echo(line, err=True)

                bench = Bench(
                    fleet=fleet,
                    make_fleet=Fleet,
                    timeout_s=sweep.timeout_s,
                    stop_at=_BEGAN + (time_budget or float("inf")),
                    expect=progress.expect,
                    on_record=progress.show,
                    say=say,
                )
                return ab(
                    pairing.pairs,
                    bench,
                    baseline_name=name,
                    head_name="the working copy",
                    lone=pairing.lone,
                    checkout=checkout,
                    notes=notes_of(pairing, checkout),
                )


def _show(comparison: Any, as_json: bool) -> None:
    from harness.regression.text import comparison_as_plain, comparison_lines

    if as_json:
        click.echo(json.dumps(comparison_as_plain(comparison)))
    else:
        click.echo("\n".join(comparison_lines(comparison)))


@contextmanager
def _interruptible() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise InterruptedComparisonError(
            "interrupted; half a comparison says nothing, so none of it was kept"
        ) from None
