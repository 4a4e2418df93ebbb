"""The steps of the first contact with a GPU, in the order of what each call should buy first."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PYTHON = sys.executable
BENCH = (PYTHON, "-c", "from harness.cli import main; main()")
# bfloat16: of a decoder's step, two small ones, and three with at least 64 MiB of x
SHAPES = "8x4096,512x768,4096x1024,32768x1024,8192x4096,2048x16384"
TUNING_S = 180
RUN_S = 300
ONCE = """
import torch
from implementations import find
x = torch.randn(64, 1000, device="cuda", requires_grad=True)
weight = torch.ones(1000, device="cuda", requires_grad=True)
find("triton_recentred")(x, (1000,), weight, weight).sum().backward()
torch.cuda.synchronize()
"""


@dataclass(frozen=True, slots=True)
class Setting:
    """What the commands of all steps depend on."""

    out: Path
    is_rehearsal: bool = False

    @property
    def device(self) -> str:
        return "cpu" if self.is_rehearsal else "cuda"


Command = list[str]


@dataclass(frozen=True, slots=True)
class Step:
    """One process. ``command`` returns its command line, or why it is left out."""

    name: str
    question: str
    limit_s: float
    command: Callable[[Setting], Command | str]
    rcs: tuple[int, ...] = (0,)
    """Exit codes of a step that did its work."""


def probe(at: Setting) -> Command:
    return [PYTHON, str(HERE / "probe.py"), "--device", at.device]


def tests(at: Setting) -> Command:
    where = ("measure/test_cuda.py",) if at.is_rehearsal else ("implementations/triton", "measure")
    several = ("-n", "2" if at.is_rehearsal else "8") if find_spec("xdist") else ()
    report = f"--junitxml={at.out / 'tests.xml'}"
    folders = [f"tests/{name}" for name in where]
    return [PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", *several, report, *folders]


def sanitizer(at: Setting) -> Command | str:
    if at.is_rehearsal:
        return "needs a GPU"
    if shutil.which("compute-sanitizer") is None:
        return "compute-sanitizer is not installed"
    return ["compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9", PYTHON, "-c", ONCE]


def tuning(at: Setting) -> Command:
    script, out = ROOT / "experiments/triton_tuning/tune_triton.py", at.out / "tuning.jsonl"
    few = ("--target", "90", "--columns", "512", "--direction", "forward", "--as-is")
    budget = ("--budget-s", "20" if at.is_rehearsal else str(TUNING_S))
    return [PYTHON, str(script), *budget, "--out", str(out), *(few if at.is_rehearsal else ())]


def installed_peers() -> list[str]:
    from implementations import PEERS

    peers = [peer for peer in PEERS if "cuda" in peer.devices]
    return [peer.name for peer in peers if all(map(find_spec, peer.requires))]


def run(at: Setting) -> Command:
    ours = ["native", "two_pass"] if at.is_rehearsal else ["native", "triton_recentred"]
    names = ours if at.is_rehearsal else [*ours, *installed_peers()]
    # QuACK takes its parameters in float32 only
    parameters = "same,float32" if "quack" in names else "same"
    return [
        *(*BENCH, "run", "--device", at.device, "-i", ",".join(names), "--dtype", "bfloat16"),
        *("--shape", "8x64,64x96" if at.is_rehearsal else SHAPES, "--param-dtype", parameters),
        *("--direction", "forward,backward", "--processes", "2" if at.is_rehearsal else "5"),
        *("--time-budget", f"{RUN_S}s", "--out", str(at.out / "run.parquet"), "--resume"),
    ]


def ab(at: Setting) -> Command:
    name, shape = ("two_pass", "8x64") if at.is_rehearsal else ("triton_recentred", "4096x1024")
    chosen = ("--device", at.device, "-i", f"native,{name}", "--shape", shape)
    return [*BENCH, "ab", "--base", "HEAD", *chosen, "--dtype", "bfloat16", "--json"]


def blame(at: Setting) -> Command:
    faulty = f"{HERE / 'kernels.py'}:out_of_bounds"
    return [
        *(*BENCH, "run", "--device", at.device, "-i", faulty, "-i", "native", "--shape", "64x768"),
        *("--measure", "errors", "--out", str(at.out / "blame.parquet"), "--resume"),
    ]


STEPS = (
    Step("probe", "what does the device tell, and do the timer's assumptions hold?", 120, probe),
    Step("tests", "do the kernels and the timer pass their tests?", 360, tests),
    Step("run", "how right and how fast, beside native and other packages?", RUN_S + 60, run),
    Step("tuning", "which launch layouts are fastest?", TUNING_S + 40, tuning),
    Step("ab", "does `ab` call unchanged code unchanged?", 120, ab, (0, 1)),
    Step("ab-again", "and once more?", 120, ab, (0, 1)),
    Step("blame", "is the case that writes out of bounds blamed, or the next?", 60, blame, (3,)),
    Step("sanitizer", "does the memory checker find anything?", 90, sanitizer),
)
