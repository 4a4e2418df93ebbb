"""Verify and time the LayerNorms of other packages: every peer that is installed.

    python experiments/peers/peer_findings.py            writes the tables
    python experiments/peers/peer_findings.py --report   prints the tables of the stored results

Every peer for the device is verified as by ``layernorm-bench verify --quick``, one dtype at a time,
in both directions where it has a gradient. Then it is timed, interleaved with native, in one
process. ``tox run -e peers`` installs those that run on a CPU. Verdicts are kept in
results/published/peers.json, times in peers.parquet beside it; the tables come from these alone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

import click
from peer_tables import DIRECTIONS, DTYPES, SHAPES, TIMED_DTYPES, Finding, tables

from harness.cases import Grid, Sweep
from harness.records import Case, Direction, Measurement, Record, Status
from harness.records.finding import Finding as FailedCase
from harness.records.finding import Severity
from harness.run.fleet import EndedError, Fleet
from harness.run.session import Session, plan, run_session
from harness.store import Results, read, write
from harness.verify.result import Verdict, VerifyOptions
from harness.verify.workers import verify_in_worker
from implementations import PEERS, find
from implementations.peers import PACKAGES

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "results" / "published"
TABLES = ROOT / "reports" / "published" / "peers.md"
TIMEOUT_S = 900.0  # per dtype of a peer: three times what those take that compile most
WORKERS = 2  # nothing is timed during verification, so two may run at once


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--report",
    is_flag=True,
    help="Print the tables of the stored results; verify and time nothing.",
)
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda")
@click.option("--out", type=click.Path(path_type=Path), default=PUBLISHED, show_default=True)
def main(report: bool, device: str, out: Path) -> None:
    """Verify and time every installed peer, and print the tables as Markdown."""
    name = "peers" if device == "cpu" else f"peers-{device}"
    verdicts, times = out / f"{name}.json", out / f"{name}.parquet"
    if not report:
        installed = {package.module for package in PACKAGES if package.is_installed}
        names = [
            peer.name for peer in PEERS if device in peer.devices and {*peer.requires} <= installed
        ]
        click.echo(f"installed: {', '.join(names) or 'none'}", err=True)
        found = verified(["native", *names], device)
        timed = timed_with_native(names, device)
        out.mkdir(parents=True, exist_ok=True)
        verdicts.write_text(json.dumps([asdict(group) for group in found], indent=1) + "\n")
        write(timed, times)
    try:
        kept = [Finding(**finding) for finding in json.loads(verdicts.read_text())]
    except FileNotFoundError:
        raise click.ClickException(f"no {verdicts}; run without --report to make it") from None
    text = tables(kept, read(times))
    if device == "cpu" and out == PUBLISHED:
        TABLES.write_text(text)
    click.echo(text, nl=False)


# --- verification --------------------------------------------------------------------------------


def verified(names: Sequence[str], device: str) -> list[Finding]:
    """Verify each dtype of each implementation, in processes of their own."""
    with ThreadPoolExecutor(min(WORKERS, os.cpu_count() or 1)) as pool:
        found = pool.map(lambda name: _verified(name, device), names)
        return [finding for group in found for finding in group]


def _verified(name: str, device: str) -> list[Finding]:
    found = []
    with Fleet() as fleet:
        for dtype in DTYPES:
            began = monotonic()
            options = VerifyOptions(
                quick=True, dtypes=(dtype,), directions=tuple(Direction), device=device
            )
            verdict: Verdict | str
            try:
                verdict = fleet.call(verify_in_worker, (name, options, {}), TIMEOUT_S)
            except EndedError as ended:
                verdict = str(ended)
            found.append(_finding(name, dtype, verdict))
            click.echo(f"{name}, {dtype}: {monotonic() - began:.0f} s", err=True)
    return found


def _finding(name: str, dtype: str, verdict: object) -> Finding:
    peer = find(name)
    known: dict[str, Any] = {
        "peer": name,
        "version": _version(name),
        "dtype": dtype,
        "forward_only": peer.forward_only,
    }
    if isinstance(verdict, str):
        return Finding(**known, failed=1, why=f"it {verdict}")
    assert isinstance(verdict, Verdict)
    grades = [grade.condition_limit for grade in verdict.grades]
    return Finding(
        **known,
        ok=verdict.ok,
        out_of_guarantee=verdict.out_of_guarantee,
        failed=verdict.failed,
        inaccurate=sum(of_dtype.inaccurate for of_dtype in verdict.counts),
        outputs=tuple(sorted(_outputs(verdict))),
        why=_why(verdict),
        condition_limit=grades[0] if grades else None,
    )


def _outputs(verdict: Verdict) -> set[str]:
    """Return the outputs that the reasons of wrong cases name."""
    wrong = [failure.text for failure in verdict.failures if failure.kind == Status.WRONG]
    return {part.split()[0].rstrip(":") for reason in wrong for part in reason.split("; ")}


def _why(verdict: Verdict) -> str:
    for cause in verdict.of(Severity.CAUSE):
        if cause.kind == "mistake":
            return f"it {cause.text}"
    if verdict.failures:
        shown = _telling(verdict.failures)
        shape = "×".join(map(str, shown.evidence.case.shape))
        return f"at {shape}, for one: {shown.text}"
    if verdict.violations:
        return verdict.violations[0].text
    if inaccurate := verdict.of(Severity.INACCURATE):
        return "; ".join(finding.text for finding in inaccurate)
    return "" if verdict.cases else next((finding.text for finding in verdict.declined), "")


def _telling(failures: Sequence[FailedCase]) -> FailedCase:
    """Return the largest wrong case with usual settings, or the first failure if there is none."""
    plain = [
        failure
        for failure in failures
        if failure.kind == Status.WRONG
        and (case := failure.evidence.case)
        == Case(
            implementation=case.implementation,
            shape=case.shape,
            dtype=case.dtype,
            param_dtype=case.dtype,
            device=case.device,
            direction=case.direction,
        )
    ]
    return plain[-1] if plain else failures[0]


def _version(name: str) -> str:
    """Return the name and version of the package that a peer needs; torch for native."""
    packages = {package.module: package.distributions[0] for package in PACKAGES}
    (needed,) = find(name).requires or ("torch",)
    try:
        return f"{packages.get(needed, needed)} {version(packages.get(needed, needed))}"
    except PackageNotFoundError:  # built from source, or of another name
        return needed


# --- time ----------------------------------------------------------------------------------------


def timed_with_native(names: Sequence[str], device: str) -> Results:
    """Time each implementation on a few shapes."""
    grid = Grid(
        implementations=(*names, "native"),
        shapes=SHAPES,
        dtypes=TIMED_DTYPES,
        directions=DIRECTIONS,
        devices=(device,),
        measure=(Measurement.ERRORS, Measurement.LATENCY),
    )
    sweep = Sweep(grids=(grid,))
    with TemporaryDirectory() as folder, Fleet() as fleet:
        session = Session(
            planned=plan(sweep, fleet),
            sweep=sweep,
            out=Path(folder) / "peers.parquet",
            command="python experiments/peers/peer_findings.py",
            began=monotonic(),
        )
        run_session(session, fleet, _say)
        return read(session.out)


def _say(record: Record) -> None:
    click.echo(f"{record.case.id}: {record.status} {record.reason}", err=True)


if __name__ == "__main__":
    main()
