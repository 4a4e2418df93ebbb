"""Find the fastest layouts of the fused kernels on this GPU: compile in parallel, then time.

    python experiments/triton_tuning/tune_triton.py --budget-s 1200
    python experiments/triton_tuning/tune_triton.py --target 100 --columns 4096    only compile

For each length of a row, the layout in use and its neighbours are compiled in processes of their
own, then timed in another one, in turn with the layout in use. When each length has had its turn,
the neighbours of the best layouts follow, until there are none left or the budget is spent. Each
result is appended to a file at once. It is not measured again with the same kernels and versions.
The table printed after each length, and at the end, has the best layouts so far.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, replace
from hashlib import sha256
from itertools import product
from pathlib import Path
from time import monotonic
from typing import Any

import click
import torch
from compiling import DIRECTIONS, SHARED_BYTES, Candidate, Compiled, compile_for, present
from timing import Refused, Timed, describe_gpu, time_on_gpu, why

from implementations.triton import layout as layouts
from implementations.triton.layout import Layout

COLUMNS = (4096, 8192, 1024, 2048, 16384, 512, 256)
DTYPES = ("bfloat16", "float16", "float32")
STATISTICS = ("one_pass", "two_pass", "welford", "recentred")
PROGRAMS = (1, 2, 3, 4, 5, 6, 8, 12, 16)  # per multiprocessor
WARPS = 64  # a multiprocessor holds no more
COMPILE_S, TIME_S = 120.0, 120.0  # a process that says nothing for longer is ended

Result = Compiled | Timed | Refused
KINDS = {kind.__name__: kind for kind in (Compiled, Timed, Refused)}


# --- candidates ----------------------------------------------------------------------------------


def neighbours(candidate: Candidate) -> list[Candidate]:
    """Return layouts that differ from one in a single choice: rows, warps, stages or programs."""
    own, hidden = candidate.layout, candidate.hidden
    most = 16 if hidden <= 256 else 8
    changes: list[dict[str, int]] = [
        *({"warps": warps} for warps in (own.warps // 2, own.warps * 2)),
        *({"rows": rows} for rows in (own.rows // 2, own.rows * 2)),
    ]
    if own.programs:
        fewer = [number for number in PROGRAMS if number < own.programs]
        more = [number for number in PROGRAMS if own.programs < number <= most]
        changes += [{"programs": number} for number in (*fewer[-1:], *more)]
        changes += [{"stages": own.stages - 1}, {"stages": own.stages + 1}]
    else:  # a program per tile prefetches nothing
        changes += [{"programs": number, "stages": 2} for number in PROGRAMS if number <= most]
    found = (replace(candidate, layout=replace(own, **change)) for change in changes)
    return [one for one in found if is_sensible(one)]


def is_sensible(candidate: Candidate) -> bool:
    """Whether a thread has 4 to 64 elements (32 with their gradients), and the warps exist."""
    layout = candidate.layout
    if not (layout.rows and 1 <= layout.warps <= 32 and layout.stages):
        return False
    each = layout.rows * layout.columns / (32 * layout.warps)
    largest = 64 if candidate.direction == "forward" else 32
    return 4 <= each <= largest and layout.warps * layout.programs <= WARPS


# --- results on disk -----------------------------------------------------------------------------


class Results:
    """Results of candidates, each appended to a file of JSON lines before the next is begun."""

    def __init__(self, path: Path, machine: str) -> None:
        self.path, self.machine = path, machine
        self.found: dict[Candidate, Result] = {}
        text = path.read_text() if path.exists() else ""
        for line in text.splitlines():
            try:
                row = json.loads(line)
            except ValueError:  # cut off when the process was killed
                continue
            if row["machine"] == machine:
                layout = Layout(**row["candidate"].pop("layout"))
                candidate = Candidate(layout=layout, **row["candidate"])
                self.found[candidate] = KINDS[row["kind"]](**row["result"])
        self.begins = "\n" if text and not text.endswith("\n") else ""

    def add(self, candidate: Candidate, result: Result) -> None:
        """Write a result."""
        self.found[candidate] = result
        row = {
            "machine": self.machine,
            "candidate": asdict(candidate),
            "kind": type(result).__name__,
            "result": asdict(result),
        }
        with self.path.open("a") as file:
            file.write(f"{self.begins}{json.dumps(row)}\n")
            file.flush()
            os.fsync(file.fileno())
        self.begins = ""

    def wrong(self) -> list[str]:
        """Return what is to be said about layouts with wrong results."""
        return [
            f"{one}: {found.reason}"
            for one, found in self.found.items()
            if isinstance(found, Refused) and found.is_wrong
        ]

    def best(self, kind: Candidate) -> tuple[Candidate, Timed] | None:
        """Return the layout whose upper quartile is least, if that is less than that in use."""
        timed = [
            (one, result)
            for one, result in self.found.items()
            if isinstance(result, Timed) and replace(one, layout=kind.layout) == kind
        ]
        faster = [pair for pair in timed if pair[1].high < 1 or pair[0] == kind]
        return min(faster, key=lambda pair: 1.0 if pair[0] == kind else pair[1].high, default=None)


def table(results: Results, kinds: Sequence[Candidate]) -> str:
    """Return the best layouts so far, and how many have been tried."""
    heads = (
        "pass", "dtype", "N", "best rows, warps, stages, programs", "of a copy",
        "ratio to the present (quartiles)", "timed", "refused", "only compiled",
    )  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for kind in kinds:
        own = [
            found
            for one, found in results.found.items()
            if replace(one, layout=kind.layout) == kind
        ]
        counts = [
            sum(isinstance(found, form) for found in own) for form in (Timed, Refused, Compiled)
        ]
        shown = ["not timed", "", ""]
        if (best := results.best(kind)) is not None:
            layout, found = best[0].layout, best[1]
            shown = [
                f"{layout.rows}, {layout.warps}, {layout.stages}, {layout.programs}",
                f"{found.of_copy:.1%}",
                f"{found.ratio:.3f} ({found.low:.3f} to {found.high:.3f})",
            ]
        cells = (kind.direction, kind.dtype, kind.hidden, *shown, *counts)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


# --- processes -----------------------------------------------------------------------------------


class EndedError(Exception):
    """A process ended without saying that it was done."""


def answers(limit_s: float, work: Callable[..., Iterator[Any]], *arguments: Any) -> Iterator[Any]:
    """Yield what ``work`` yields in a process of its own.

    Raises:
        EndedError: the process died, or said nothing for ``limit_s`` seconds.
    """
    # a process that has imported torch, but not started CUDA, is forked
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "triton"])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, work, *arguments), daemon=True)
    process.start()
    sender.close()
    try:
        while receiver.poll(limit_s):
            try:
                answer = receiver.recv()
            except EOFError:
                process.join()
                raise EndedError(f"the process ended with exit code {process.exitcode}") from None
            if isinstance(answer, EndedError):
                raise answer
            if answer is None:
                return
            yield answer
        raise EndedError(f"the process said nothing for {limit_s:.0f} s")
    finally:
        process.kill()
        process.join()


def _answer(sender: Any, work: Callable[..., Iterator[Any]], *arguments: Any) -> None:
    try:
        for answer in work(*arguments):
            sender.send(answer)
        sender.send(None)
    except Exception as error:  # noqa: BLE001 - whatever a compiler or a driver raises
        sender.send(EndedError(why(error)))


def _compile(candidate: Candidate, capability: int, shared_bytes: int) -> Iterator[Result]:
    made = compile_for(candidate, capability)
    if made.shared_bytes > shared_bytes:
        yield Refused(f"needs {made.shared_bytes} bytes of shared memory of {shared_bytes}")
    else:
        yield made


def compile_all(
    results: Results,
    tried: Sequence[Candidate],
    capability: int,
    shared_bytes: int,
    processes: int,
    until: float,
) -> None:
    """Compile candidates in processes of their own, until a time of :func:`time.monotonic`."""

    def compiled(candidate: Candidate) -> Result | None:
        if monotonic() > until:
            return None
        try:
            (made,) = answers(COMPILE_S, _compile, candidate, capability, shared_bytes)
        except EndedError as error:
            return Refused(str(error))
        return made

    with ThreadPoolExecutor(processes) as pool:
        begun = {pool.submit(compiled, candidate): candidate for candidate in tried}
        for future in as_completed(begun):
            if (result := future.result()) is not None:
                results.add(begun[future], result)


def time_all(
    results: Results,
    tried: Sequence[Candidate],
    until: float,
    work: Callable[..., Iterator[float | Timed | Refused]] = time_on_gpu,
) -> str:
    """Time candidates of one kind in a process, and in another one if that is lost.

    A candidate during which the process dies is refused. Returns why none could be timed, or "".
    """
    left = list(tried)
    while left:
        is_ready = False
        try:
            for answer in answers(TIME_S, work, left[0], [one.layout for one in left]):
                if is_ready:
                    results.add(left.pop(0), answer)
                is_ready = True
                if monotonic() > until:
                    return ""
        except EndedError as error:
            if not is_ready:  # not a fault of the candidate
                return str(error)
            if left:
                results.add(left.pop(0), Refused(str(error)))
    return ""


# --- the command ---------------------------------------------------------------------------------


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--direction", "directions", type=click.Choice(DIRECTIONS), multiple=True)
@click.option("--dtype", "dtypes", type=click.Choice(DTYPES), multiple=True)
@click.option("--columns", "lengths", type=click.IntRange(1), multiple=True)
@click.option("--statistic", type=click.Choice(STATISTICS), default="recentred", show_default=True)
@click.option(
    "--as-is", is_flag=True, help="only the layouts in use, timed in turn with themselves"
)
@click.option("--budget-s", default=1200.0, show_default=True, help="stop after so many seconds")
@click.option("--target", type=click.Choice([*SHARED_BYTES]), help="only compile, for a capability")
@click.option("--processes", type=click.IntRange(1), default=len(os.sched_getaffinity(0)))
@click.option("--out", type=click.Path(path_type=Path), default=Path("triton_tuning.jsonl"))
def main(
    directions: tuple[str, ...],
    dtypes: tuple[str, ...],
    lengths: tuple[int, ...],
    statistic: str,
    as_is: bool,
    budget_s: float,
    target: int | None,
    processes: int,
    out: Path,
) -> None:
    until = monotonic() + budget_s
    if target is None:
        gpus = list(answers(TIME_S, describe_gpu))
        if not gpus:
            click.echo("needs a CUDA device; --target 90 compiles without one", err=True)
            sys.exit(3)
        ((name, capability, shared_bytes),) = gpus
    else:
        name, capability, shared_bytes = f"sm_{target}", target, SHARED_BYTES[target]
    results = Results(out, f"{name}; {versions()}")
    click.echo(f"{results.machine}; {len(results.found)} results in {out}")
    kinds = [
        Candidate(direction, dtype, hidden, own, statistic)
        for hidden, dtype, direction in product(
            lengths or COLUMNS, dtypes or DTYPES[::2], directions or DIRECTIONS
        )
        if (own := present(direction, dtype, hidden)) is not None
    ]
    open_kinds = list(kinds)
    while open_kinds:
        for kind in list(open_kinds):
            best = results.best(kind)
            tried = [kind] if as_is else [kind, *neighbours(kind if best is None else best[0])]
            done = (Timed, Refused) if target is None else (Compiled, Refused)
            left = [one for one in tried if not isinstance(results.found.get(one), done)]
            if not left:
                open_kinds.remove(kind)
                continue
            if monotonic() > until:
                click.echo("the budget is spent")
                open_kinds.clear()
                break
            new = [one for one in left if one not in results.found]
            compile_all(results, new, capability, shared_bytes, processes, until)
            if target is None:
                ready = [one for one in left if isinstance(results.found.get(one), Compiled)]
                if reason := time_all(results, ready, until):
                    click.echo(f"{kind.direction} {kind.dtype} {kind.hidden}: {reason}", err=True)
                    open_kinds.remove(kind)
            click.echo(table(results, kinds))
    click.echo(table(results, kinds))
    for kind in kinds:
        if (best := results.best(kind)) is not None and best[0] != kind:
            click.echo(f"for {kind.direction}, {kind.itemsize} bytes: {best[0].layout}")
    if wrong := results.wrong():
        raise click.ClickException("\n".join(wrong))


def versions() -> str:
    """Return the versions of what makes the kernels: torch, Triton and the package's own code."""
    import triton

    code = sorted(Path(layouts.__file__).parent.glob("*.py"))
    digest = sha256(b"".join(path.read_bytes() for path in code)).hexdigest()[:12]
    return f"torch {torch.__version__}; triton {triton.__version__}; kernels {digest}"


if __name__ == "__main__":
    main()
