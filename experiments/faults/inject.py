"""What is lost or torn, and what is said, if one call on a file fails or the program dies there?

    python experiments/faults/inject.py      prints the table
    ... --report                             prints the table of the stored rows

strace traces each command once. Each call that it made on a file of its folder, or on a temporary
file, is then refused with EIO, ENOSPC and EACCES, and the process that makes it is killed before it
is made: a trial each, in a new copy of the folder. After a trial its files are read, and the
command is given again (``run`` with ``--resume``); it must end as if nothing had happened.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from shutil import copytree, rmtree, which
from tempfile import TemporaryDirectory

import click
import pyarrow as pa
import pyarrow.parquet as pq

from harness.records import Record, Run
from harness.store import Journal, Results, StoreError, read, read_journal, write

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "results" / "published" / "faults.parquet"
FAULTS = ("EIO", "ENOSPC", "EACCES", "KILL")
KINDS = {
    "openat": ("open", "openat"),
    "write": ("write", "pwrite64", "writev"),
    "fsync": ("fsync", "fdatasync"),
    "ftruncate": ("ftruncate",),
    "rename": ("rename", "renameat", "renameat2"),
    "unlink": ("unlink", "unlinkat"),
}
_KIND_OF = {name: kind for kind, names in KINDS.items() for name in names}
_TAKE_NAMES = ("openat", "rename", "unlink")  # the strings of a write are its data
# temporary names are random: these are counted, so that a trial has those of the trace
_COUNTED = """import itertools, tempfile
tempfile._RandomNameSequence.__next__ = lambda self, count=itertools.count(): str(next(count))
"""
_MAIN = ("-c", "from harness.cli import main; main()")
_CANNED = (str(Path(__file__).with_name("canned.py")),)


@dataclass(frozen=True, slots=True)
class Command:
    """A command, in a folder that is ``{0}``."""

    name: str
    words: str
    output: str
    """The file that it writes."""
    again: str = ""
    """What is added when it is given again."""
    main: tuple[str, ...] = _MAIN
    only: str = ""
    """What the paths of its calls begin with."""

    @property
    def journal(self) -> str:
        return Path(self.output).with_suffix(".jsonl").name


_RUN = "run -i native --shape 4x8,4x16 --dtype float32 --measure errors --out {0}/run.parquet"
_RECORD = "check {0}/timed.parquet --baseline {0}/base.parquet --record-baseline"
_ACCEPT = "check {0}/run.parquet --baseline {0}/base.parquet --accept --no-confirm"
COMMANDS = (
    Command("run", _RUN, "run.parquet", " --resume", _CANNED),
    Command("run, temporary files of workers", _RUN, "run.parquet", " --resume", _MAIN, "tmp"),
    Command("run --resume, of a torn journal", f"{_RUN} --resume", "run.parquet", "", _CANNED),
    Command("run --resume, of a results file", f"{_RUN} --resume", "run.parquet", "", _CANNED),
    Command("merge", "merge {0}/a.parquet {0}/b.jsonl --out {0}/all.parquet", "all.parquet"),
    Command("check --record-baseline", _RECORD, "base.parquet", "", _CANNED),
    Command("check --accept", _ACCEPT, "base.parquet"),
    Command("export", "export {0}/run.parquet --format csv --out {0}/run.csv", "run.csv"),
    Command("report", "report {0}/run.parquet --out {0}/run.html", "run.html"),
)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a command on a file."""

    name: str
    path: str
    """Under the folder of the command; ``.`` is the folder itself."""
    number: int
    """Among the calls of this name on this path in one thread."""

    @property
    def kind(self) -> str:
        return _KIND_OF[self.name]


@dataclass(frozen=True, slots=True)
class Row:
    """One trial."""

    command: str
    call: str
    path: str
    number: int
    fault: str
    exit_code: int
    lost: str
    """What had been acknowledged and is not there any more; empty if nothing."""
    torn: str
    """Files that are neither as before nor whole."""
    left: str
    """Temporary files that an error left, except one whose removal was refused."""
    said: str
    """Standard error without the lines of progress."""

    @property
    def is_killed(self) -> bool:
        return self.exit_code < 0

    @property
    def is_badly_told(self) -> bool:
        """Whether an error is not one line, or leaves temporary files."""
        lines = len(self.said.splitlines())
        is_one = lines == 1 or (not self.exit_code and not lines)
        return bool(self.left) or not (self.is_killed or is_one)


# --- commands under strace -----------------------------------------------------------------------


def can_trace() -> bool:
    """Whether strace is installed and may trace."""
    command = ("strace", "-o", os.devnull, "true")
    return which("strace") is not None and not subprocess.run(command, check=False).returncode


def execute(
    command: Command, folder: Path, strace: Sequence[str] = (), more: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, whose folder ``tmp`` takes its temporary files."""
    (folder / "tmp").mkdir(exist_ok=True)
    names = folder.with_name(f"{folder.name}.names")
    names.mkdir(exist_ok=True)
    (names / "sitecustomize.py").write_text(_COUNTED)
    environment = {"PYTHONPATH": f"{names}:{ROOT}", "TMPDIR": str(folder / "tmp")}
    tracer = ["strace", "-f", *strace, "--"] if strace else []
    return subprocess.run(
        [*tracer, sys.executable, *command.main, *(command.words + more).format(folder).split()],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=300,
        env={**os.environ, **environment},
    )


def calls_of(command: Command, folder: Path) -> list[Call]:
    """Run a command to its end, and return its calls on the files of its folder."""
    traces = folder.with_name(f"{folder.name}.traces")
    traces.mkdir()
    traced = f"trace={','.join(_KIND_OF)}"
    options = ("--seccomp-bpf", "-ff", "-y", "-s", "8", "-o", str(traces / "of"), "-e", traced)
    done = execute(command, folder, options)
    if done.returncode:
        raise RuntimeError(f"{command.name}: {done.stderr}")
    calls = [call for trace in sorted(traces.iterdir()) for call in _calls_in(trace, folder)]
    return [call for call in calls if call.path.startswith(command.only)]


def _calls_in(trace: Path, folder: Path) -> Iterator[Call]:
    """Yield the calls of one thread."""
    numbers: Counter[tuple[str, str]] = Counter()
    for line in trace.read_text(errors="replace").splitlines():
        name, _, arguments = line.partition("(")
        if name not in _KIND_OF:
            continue
        paths = re.findall(r"^\d+<([^>]*)>", arguments)
        if _KIND_OF[name] in _TAKE_NAMES:
            paths += re.findall(r'"([^"]*)"', arguments)
        numbers.update((name, path) for path in {*paths})
        if Path(paths[0]).is_relative_to(folder):
            relative = str(Path(paths[0]).relative_to(folder))
            yield Call(name, relative, numbers[name, paths[0]])


def inject(
    command: Command, folder: Path, call: Call, fault: str
) -> subprocess.CompletedProcess[str]:
    """Run a command with one fault."""
    what = "signal" if fault == "KILL" else "error"
    log = folder.with_name(f"{folder.name}.log")
    injected = f"inject={call.name}:{what}={fault}:when={call.number}"
    path = str((folder / call.path).resolve())
    options = ("-o", str(log), "-P", path, "-e", f"trace={call.name}", "-e", injected)
    fast = () if fault == "KILL" else ("--seccomp-bpf",)  # with which strace 6.1 sends no signal
    done = execute(command, folder, (*fast, *options))
    if ("killed by SIGKILL" if fault == "KILL" else "INJECTED") not in log.read_text():
        raise RuntimeError(f"{command.name}: {call} was not reached: {done.stderr}")
    return done


# --- what must hold after a trial ----------------------------------------------------------------


def records_in(folder: Path, command: Command) -> list[Record]:
    """Return what the files of a command hold: output, journal, and passes of a recording.

    Raises:
        StoreError: one of them is torn.
    """
    found: list[Record] = []
    passes = sorted(folder.glob("*.recording/*"))
    for path in (folder / command.output, folder / command.journal, *passes):
        if path.exists() and path.suffix in {".parquet", ".jsonl"}:
            results = (read if path.suffix == ".parquet" else read_journal)(path)
            found += results.records
    return found


def is_results(path: Path) -> bool:
    return path.suffix == ".parquet"


def recordings(folder: Path) -> list[Run]:
    path = folder / "base.parquet"
    return [*read(path).runs] if path.exists() else []


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder by name, without temporary ones."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".partial"
        if not path.is_relative_to(folder / "tmp")
    }


def torn_in(before: dict[str, bytes], folder: Path, whole: Path) -> str:
    """Return which files of a folder are neither as before nor whole."""
    torn = []
    for name, content in contents(folder).items():
        path = folder / name
        try:
            if content == before.get(name):
                continue
            if is_results(path):
                read(path)
            elif path.suffix == ".jsonl":
                read_journal(path)
            elif path.suffix == ".html" and content.rstrip().endswith(b"</html>"):
                continue
            elif content != (whole / name).read_bytes():
                torn.append(name)
        except (StoreError, OSError) as error:
            torn.append(str(error))
    return "; ".join(torn)


def lost_in(command: Command, before: Path, after: Path, said: str) -> str:
    """Return what was there before, or was said to be done, and is not there after a trial."""
    old, new = contents(before), contents(after)
    is_new = command.output in new and new[command.output] != old.get(command.output)
    lost = [
        name
        for name, content in old.items()
        if name not in {command.output, command.journal}
        # the passes of a recording are needed until the baseline is written
        if new.get(name) != content and not (is_new and ".recording/" in name)
    ]
    lost += [command.output] if command.output in old and command.output not in new else []
    found = records_in(after, command)
    printed = re.findall(r"^\[ *\d+/\d+\] \S+ +(\S+)", said, re.MULTILINE)
    lost += {*printed} - {record.case.id for record in found}
    if "record-baseline" in command.name:
        lost += [run.started_utc for run in recordings(before) if run not in recordings(after)]
    else:
        lost += missing(records_in(before, command), found)
    return "; ".join(lost)


def lost_at_end(command: Command, before: Path, after: Path, end: Path) -> str:
    """Return what is lost once the command has been given again."""
    found = records_in(end, command)
    if "record-baseline" in command.name:
        runs = recordings(end)
        twice = [run.started_utc for run, number in Counter(runs).items() if number > 1]
        lost = missing(recordings(after), runs) + [f"held twice: {run}" for run in twice]
        lost += [] if len(runs) > len(recordings(before)) else ["the new recording"]
    else:
        lost = missing(records_in(after, command), found)
        ids = [record.case.id for record in found]
        lost += [f"stored twice: {case}" for case, number in Counter(ids).items() if number > 1]
    return "; ".join(lost)


def missing(wanted: Iterable[Record | Run], found: Iterable[Record | Run]) -> list[str]:
    there = {*map(repr, found)}  # two measurements of a case differ in their cost
    return [repr(one)[:200] for one in wanted if repr(one) not in there]


def state_of(folder: Path) -> tuple[object, ...]:
    """Return what distinguishes the states of a folder for the command that is given again."""
    found: list[object] = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "tmp" not in path.parts[len(folder.parts) :]:
            content = path.read_bytes()
            lines = content.count(b"\n"), content.endswith(b"\n")
            whole = (len(read(path).runs), len(read(path).records)) if is_results(path) else content
            found.append((path.name, lines if path.suffix == ".jsonl" else whole))
    return tuple(found)


def trial(
    command: Command, prepared: Path, whole: Path, call: Call, fault: str, known: set[object]
) -> Row:
    """Run a command with one fault, check what it leaves, and give the command again.

    States of its files from which it ended well before are ``known``, and not tried again.
    """
    with TemporaryDirectory(prefix="trial-", dir=prepared.parent) as temporary:
        folder = Path(temporary).resolve() / "files"
        copytree(prepared, folder)
        before = contents(folder)
        done = inject(command, folder, call, fault)
        left = [*folder.rglob("*.partial"), *(folder / "tmp").iterdir()]
        # a temporary folder stays if its removal is what was refused
        left = [path for path in left if done.returncode >= 0 and path != folder / call.path]
        torn = torn_in(before, folder, whole)
        lost = "" if torn else lost_in(command, prepared, folder, done.stderr)
        if not torn and (state := state_of(folder)) not in known:
            after = copytree(folder, folder.with_name("after"))
            again = execute(command, folder, more=command.again)
            is_there = command.name == "merge" and (after / command.output).exists()
            if again.returncode and not is_there:
                lost += f"; given again: {again.stderr}"
            else:
                lost += lost_at_end(command, prepared, after, folder)
            if not lost:
                known.add(state)
        said = re.sub(r"^\[ *\d+/\d+\] .*\n", "", done.stderr, flags=re.MULTILINE)
        return Row(
            command=command.name,
            call=call.kind,
            path=call.path,
            number=call.number,
            fault=fault,
            exit_code=done.returncode,
            lost=lost.replace(str(folder), "FOLDER"),
            torn=torn.replace(str(folder), "FOLDER"),
            left=" ".join(str(path.relative_to(folder)) for path in left),
            said=said.replace(str(folder), "FOLDER"),
        )


# --- the files that the commands find ------------------------------------------------------------


def prepare(folder: Path) -> dict[str, Path]:
    """Make the folder that each command begins with."""
    folders = {command.name: folder / f"{i}" for i, command in enumerate(COMMANDS)}
    for path in folders.values():
        path.mkdir(parents=True)
    _, _, journal, file, merge, record, accept, export, report = folders.values()
    made = folder / "made"
    made.mkdir()
    os.environ["CANNED"] = str(made / "run.parquet")
    timed = _RUN.replace("errors", "errors,latency")
    _done(execute(replace(COMMANDS[0], words=timed, main=_MAIN), made))
    results = read(made / "run.parquet")
    first, second = (replace(results, records=(record,)) for record in results.records)
    write_journal(first, journal / "run.jsonl")
    with (journal / "run.jsonl").open("ab") as torn:
        torn.write(b'{"Record": {"case"')
    write(first, file / "run.parquet")
    write(first, merge / "a.parquet")
    write_journal(second, merge / "b.jsonl")
    for path in (accept, export, report):
        write(results, path / "run.parquet")
    write(replace(results, runs=(replace(results.runs[0], name="old"),)), accept / "base.parquet")
    (export / "run.csv").write_text("an earlier table\n")
    (report / "run.html").write_text("an earlier page\n")
    write(first, record / "timed.parquet")
    _prepare_recording(record)
    return folders


def _prepare_recording(folder: Path) -> None:
    """Make a baseline, and a second recording of which all passes but the first are done."""
    command = next(command for command in COMMANDS if "record-baseline" in command.name)
    inject(command, folder, Call("openat", "base.parquet.partial", 1), "KILL")
    passes = copytree(folder / "base.recording", folder.with_name("passes"))
    _done(execute(command, folder))
    (passes / "process1.parquet").unlink()
    passes.rename(folder / "base.recording")
    rmtree(folder / "tmp")


def write_journal(results: Results, path: Path) -> None:
    with Journal(path) as journal:
        for entry in (*results.runs, *results.environments.values(), *results.records):
            journal.add(entry)


def _done(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode:
        raise RuntimeError(done.stderr)


# --- all trials ----------------------------------------------------------------------------------


def trials(folder: Path, only: str) -> Iterator[Row]:
    """Yield a row per call and fault of each command whose name holds ``only``."""
    prepared = prepare(folder)
    with ThreadPoolExecutor(2 * (os.cpu_count() or 1)) as threads:
        for command in COMMANDS:
            if only in command.name:
                own = prepared[command.name]
                whole = copytree(own, own.with_name(f"{own.name}-whole"))
                pairs = [*product(calls_of(command, whole), FAULTS)]
                known: set[object] = {state_of(own)}
                yield from threads.map(
                    lambda pair, args=(command, own, whole), known=known: trial(
                        *args, *pair, known
                    ),
                    pairs,
                )


def table(rows: Sequence[Row]) -> str:
    """Return the table for the documentation."""
    counted = ("trials", "went on", "refused", "killed", "lost", "torn", "badly told")
    heads = ("command", "call", *counted)
    lines = [heads, ("---",) * len(heads)]
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in sorted(rows, key=lambda row: [*KINDS].index(row.call)):
        groups.setdefault((row.command, row.call), []).append(row)
    for command in dict.fromkeys(row.command for row in rows):
        own = {call: found for (name, call), found in groups.items() if name == command}
        lines += [(command, call, *_counts(found)) for call, found in own.items()]
    lines.append(("all", "", *_counts(rows)))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _counts(rows: Sequence[Row]) -> tuple[str, ...]:
    numbers = (
        len(rows),
        sum(not row.exit_code for row in rows),
        sum(row.exit_code > 0 for row in rows),
        sum(row.is_killed for row in rows),
        sum(bool(row.lost) for row in rows),
        sum(bool(row.torn) for row in rows),
        sum(row.is_badly_told for row in rows),
    )
    return tuple(map(str, numbers))


@click.command()
@click.option("--only", default="", help="only commands whose name holds this text")
@click.option("--out", type=click.Path(path_type=Path), default=PUBLISHED, show_default=True)
@click.option("--report", is_flag=True, help="print the table of the stored rows")
def main(only: str, out: Path, report: bool) -> None:
    """Make each call fail, and store a row per trial."""
    if report:
        click.echo(table([Row(**row) for row in pq.read_table(out).to_pylist()]))
        return
    rows = []
    with TemporaryDirectory() as temporary:
        for row in trials(Path(temporary).resolve(), only):
            rows.append(row)
            if row.lost or row.torn or row.is_badly_told:
                click.echo(f"\n{row}", err=True)
            click.echo(f"\r{len(rows)} {row.command:40}", nl=False, err=True)
            pq.write_table(pa.Table.from_pylist([asdict(row) for row in rows]), out)
    click.echo(err=True)
    click.echo(table(rows))


if __name__ == "__main__":
    main()
