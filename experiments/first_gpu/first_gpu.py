"""What a first GPU tells, in at most 25 minutes: probe, tests, times, tuning, gates and blame.

    python experiments/first_gpu/first_gpu.py                   on a GPU; needs no network
    python experiments/first_gpu/first_gpu.py --budget-s 580    the same, in calls of ten minutes
    python experiments/first_gpu/first_gpu.py --rehearse        on a CPU, with small sizes

Each step is a process of its own with a time limit. It leaves NAME.json in the folder --out (how it
ended), NAME.out and NAME.err (what it printed), and its own files. A step whose NAME.json exists is
skipped, so the command continues where it was ended. To repeat a step, delete its NAME.json. The
last step writes differences.md: what differs from what the tests on a CPU assume.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import click
import torch

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))  # where the project is not installed

from assumptions import page  # noqa: E402 - found by the path above
from steps import STEPS, Setting, Step  # noqa: E402

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>
SAID = 5  # last lines of a step that failed


def end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def perform(step: Step, at: Setting) -> dict[str, Any]:
    """Run one step and return how it ended."""
    command = step.command(at)
    if isinstance(command, str):
        return {"state": "left out", "rc": None, "why": command, "wall_s": 0.0}
    printed, told = (at.out / f"{step.name}{end}" for end in (".out", ".err"))
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    began = monotonic()
    with printed.open("w") as out, told.open("w") as err:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
        try:
            rc = process.wait(step.limit_s)
        except subprocess.TimeoutExpired:
            rc = None
        finally:  # also of an interruption, and of what the step left behind
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    last = f"{printed.read_text()}\n{told.read_text()}".strip().splitlines()[-SAID:]
    return {
        "state": "timed out" if rc is None else "done" if rc in step.rcs else "failed",
        "rc": rc,
        "why": "" if rc in step.rcs else "\n".join(last),
        "wall_s": round(monotonic() - began, 1),
        "command": command,
    }


def keep(path: Path, result: dict[str, Any]) -> None:
    """Write a result in one step: a file that exists is complete."""
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(result, indent=1))
    draft.replace(path)


def settle(step: Step, at: Setting, left_s: float) -> str:
    """Perform a step unless it has a result or there is no time; say what happened."""
    path = at.out / f"{step.name}.json"
    if path.exists():
        return f"{json.loads(path.read_text())['state']} earlier, skipped"
    if left_s < step.limit_s:
        return f"not begun: may take {step.limit_s:.0f} s, {max(left_s, 0):.0f} s are left"
    result = perform(step, at)
    keep(path, result)
    why = f": {result['why'].splitlines()[-1]}" if result["why"] else ""
    return f"{result['state']} in {result['wall_s']:.0f} s{why}"


@click.command()
@click.option("--out", type=click.Path(path_type=Path), help="folder  [default: results/first_gpu]")
@click.option("--budget-s", default=1500.0, show_default=True, help="begin no step that may exceed")
@click.option("--only", "names", multiple=True, type=click.Choice([step.name for step in STEPS]))
@click.option("--rehearse", is_flag=True, help="without a GPU: on the CPU, with small sizes")
@click.option("--list", "lists", is_flag=True, help="print the steps, and do nothing")
def main(
    out: Path | None, budget_s: float, names: tuple[str, ...], rehearse: bool, lists: bool
) -> None:
    """Perform the steps that have no result yet, and list what differs from the assumptions."""
    if lists:
        for step in STEPS:
            click.echo(f"{step.name:10} {step.limit_s:4.0f} s  {step.question}")
        return
    if not rehearse and not torch.cuda.is_available():
        raise click.ClickException("torch sees no GPU; --rehearse does what needs none")
    # a rehearsal has a folder of its own: its results would be taken for those of the GPU
    own = ROOT / "results" / ("first_gpu_rehearsal" if rehearse else "first_gpu")
    began, at = monotonic(), Setting((out or own).resolve(), rehearse)
    at.out.mkdir(parents=True, exist_ok=True)
    for step in STEPS:
        if not names or step.name in names:
            told = settle(step, at, budget_s - (monotonic() - began))
            click.echo(f"{step.name:10} {told}")
    differences = page(at.out)
    (at.out / "differences.md").write_text(differences)
    click.echo(f"\n{differences}\n{at.out / 'differences.md'}")


if __name__ == "__main__":
    main()
