"""Cheats of benchmarks: targets that look fast or right without being it, and what is said of them.

Each is the source of a small file with a function ``norm``. ``run`` and ``verify`` are words of the
message that names the cheat; None says that the cheat gains nothing there. Where a cheat was
published, ``seen`` says by whom.
"""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent

__all__ = ["CHEATS", "Cheat", "table"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cheat:
    """One cheat."""

    name: str
    """What it does, for the table."""
    source: str
    run: str | None
    """What ``run`` says; None if its inputs give the cheat no advantage."""
    verify: str
    """What ``verify`` says."""
    seen: str = ""
    """Where it was published; empty if nowhere."""

    @property
    def file(self) -> str:
        """The content of the target's file."""
        return dedent(self.source)


def _norm(body: str, before: str = "") -> str:
    """Return a file with a function of this body, in which ``real`` is torch's own LayerNorm."""
    indented = "\n".join(f"    {line}" for line in dedent(body).strip().splitlines())
    return f"""\
import torch
from torch.nn import functional

real = functional.layer_norm
{dedent(before)}

def norm(x, normalized_shape, weight=None, bias=None, eps=1e-5):
{indented}
"""


_RIGHT = "return real(x, normalized_shape, weight, bias, eps)"
KERNELBENCH = "KernelBench"
GPU_MODE = "GPU MODE"
SAKANA = "Sakana AI"
DEEP_REINFORCE = "DeepReinforce"
METR = "METR"
PYGPUBENCH = "pygpubench"


def _patched(statement: str, before: str = "") -> str:
    """Return a right LayerNorm whose import runs a statement."""
    return _norm(_RIGHT, f"{dedent(before)}\n{statement}")


_SLOW = """
def slow(*arguments, **named):
    for _ in range(4):
        y = real(*arguments, **named)
    return y
"""

CHEATS = (
    Cheat(
        name="replaces torch.nn.functional.layer_norm by a slower function",
        source=_patched("functional.layer_norm = slow", _SLOW),
        run="replaces torch.nn.functional.layer_norm",
        verify="replaces torch.nn.functional.layer_norm",
        seen=METR,
    ),
    Cheat(
        name="replaces torch.layer_norm and torch.native_layer_norm",
        source=_patched("torch.layer_norm = torch.native_layer_norm = slow", _SLOW),
        run="replaces torch.layer_norm",
        verify="replaces torch.layer_norm",
    ),
    Cheat(
        name="replaces torch.randn, so that inputs are easy",
        source=_patched("torch.randn = torch.zeros"),
        run="replaces torch.randn",
        verify="replaces torch.randn",
    ),
    Cheat(
        name="replaces torch.allclose and torch.equal by functions that are always true",
        source=_patched("torch.allclose = torch.equal = lambda *_, **__: True"),
        run="replaces torch.allclose, replaces torch.equal",
        verify="replaces torch.allclose, replaces torch.equal",
        seen=METR,
    ),
    Cheat(
        name="replaces a method of torch.Tensor in its first call",
        source=_norm(
            """
            torch.Tensor.clone = lambda self, **_: self
            return real(x, normalized_shape, weight, bias, eps)
            """
        ),
        run="replaces torch.Tensor.clone",
        verify="replaces torch.Tensor.clone",
    ),
    Cheat(
        name="replaces time.perf_counter, time.sleep and timeit",
        source=_patched(
            "time.perf_counter_ns = time.perf_counter = timeit.default_timer = lambda: 0",
            "import time, timeit",
        ),
        run="replaces time.perf_counter",
        verify="replaces time.perf_counter",
        seen=METR,
    ),
    Cheat(
        name="replaces torch.cuda.Event and torch.cuda.synchronize",
        source=_patched("torch.cuda.synchronize = torch.cuda.Event = lambda *_, **__: None"),
        run="replaces torch.cuda.",
        verify="replaces torch.cuda.",
        seen=DEEP_REINFORCE,
    ),
    Cheat(
        name="replaces the error bounds and the verdict of the harness",
        source=_norm(
            "return x",
            """
            import harness.numerics.verdict, harness.run.case, harness.verify.trial
            from harness.records import Status

            for module in (harness.numerics.verdict, harness.run.case, harness.verify.trial):
                module.verdict_of = lambda *_: (Status.OK, "")
            """,
        ),
        run="replaces harness.numerics.verdict.verdict_of",
        verify="replaces harness.numerics.verdict.verdict_of",
        seen=METR,
    ),
    Cheat(
        name="replaces the code of the exact reference",
        source=_norm(
            "return x",
            """
            import harness.numerics.oracle as oracle

            def easy(x, *_): raise SystemExit
            oracle.twice_centred.__code__ = easy.__code__
            """,
        ),
        run="replaces the code of harness.numerics.oracle.twice_centred",
        verify="replaces the code of harness.numerics.oracle.twice_centred",
    ),
    Cheat(
        name="replaces the function of the reference, native",
        source=_patched(
            'object.__setattr__(implementations.native, "function", slow)',
            "import implementations\n" + _SLOW,
        ),
        run="replaces the function of implementations.native",
        verify="replaces the function of implementations.native",
    ),
    Cheat(
        name="leaves a mode on that intercepts all calls of torch",
        source=_patched(
            "Mode().__enter__()",
            """
            from torch.overrides import TorchFunctionMode
            class Mode(TorchFunctionMode):
                def __torch_function__(self, function, types, arguments=(), named=None):
                    return function(*arguments, **(named or {}))
            """,
        ),
        run="leaves torch's function and dispatch modes at 1",
        verify="leaves torch's function and dispatch modes at 1",
    ),
    Cheat(
        name="changes the default dtype",
        source=_patched("torch.set_default_dtype(torch.float64)"),
        run="leaves the default dtype at torch.float64",
        verify="leaves the default dtype at torch.float64",
    ),
    Cheat(
        name="raises the number of threads and leaves it raised",
        source=_norm(f"torch.set_num_threads(4)\n{_RIGHT}"),
        run="leaves the number of threads at 4, where it was 1",
        verify="leaves the number of threads at 4, where it was 1",
    ),
    Cheat(
        name="raises the number of threads during its calls",
        source=_norm(
            """
            torch.set_num_threads(4)
            y = real(x, normalized_shape, weight, bias, eps)
            torch.set_num_threads(1)
            return y
            """
        ),
        run="sets the number of threads",
        verify="sets the number of threads",
    ),
    Cheat(
        name="switches Python's garbage collector",
        source=_norm(f"gc.disable() if gc.isenabled() else gc.enable()\n{_RIGHT}", "import gc"),
        run="leaves Python's garbage collector at",
        verify="leaves Python's garbage collector at",
    ),
    Cheat(
        name="returns a subclass of torch.Tensor that computes when it is read",
        source=_norm(
            """
            y = x.as_subclass(Lazy)
            y.later = lambda: real(x, normalized_shape, weight, bias, eps)
            return y
            """,
            """
            class Lazy(torch.Tensor):
                @classmethod
                def __torch_function__(cls, function, types, arguments=(), named=None):
                    ready = [a.later() if isinstance(a, Lazy) and hasattr(a, "later") else a
                             for a in arguments]
                    with torch._C.DisableTorchFunctionSubclass():
                        return function(*ready, **(named or {}))
            """,
        ),
        run="y is a Lazy, a subclass of torch.Tensor, expected a plain one",
        verify="y is a Lazy, a subclass of torch.Tensor, expected a plain one",
        seen=f"{DEEP_REINFORCE}, {GPU_MODE}",
    ),
    Cheat(
        name="returns memory that it never wrote, which may hold the reference's last result",
        source=_norm("return torch.empty_like(x)"),
        run="it returns uninitialised memory",
        verify="it returns uninitialised memory",
        seen=f"{KERNELBENCH}, {SAKANA}",
    ),
    Cheat(
        name="leaves the work to a thread, after it has returned",
        source=_norm(
            """
            y = torch.zeros_like(x)
            if torch.is_grad_enabled():
                return real(x, normalized_shape, weight, bias, eps)
            def later():
                time.sleep(2e-4)
                y.copy_(real(x, normalized_shape, weight, bias, eps))
            threading.Thread(target=later).start()
            return y
            """,
            "import threading, time",
        ),
        run="y was still written after the call had returned",
        verify="y was still written after the call had returned",
        seen=DEEP_REINFORCE,
    ),
    Cheat(
        name="returns the result of an earlier call with the same address",
        source=_norm(
            """
            if x.data_ptr() not in results or torch.is_grad_enabled():
                results[x.data_ptr()] = real(x, normalized_shape, weight, bias, eps)
            return results[x.data_ptr()]
            """,
            "results = {}",
        ),
        run="wrong after it",
        verify="y shares the memory of an earlier y",
        seen=GPU_MODE,
    ),
    Cheat(
        name="returns the result of an earlier call with the same shape",
        source=_norm(
            """
            if x.shape not in results or torch.is_grad_enabled():
                results[x.shape] = real(x, normalized_shape, weight, bias, eps)
            return results[x.shape]
            """,
            "results = {}",
        ),
        run="wrong after it",
        verify="y shares the memory of an earlier y",
        seen=GPU_MODE,
    ),
    Cheat(
        name="is right in its first 40 calls only",
        source=_norm(
            """
            calls.append(None)
            y = real(x, normalized_shape, weight, bias, eps)
            return y if len(calls) < 40 else y * 1.01
            """,
            "calls = []",
        ),
        run="wrong after it",
        verify="the result of the first call changed after later calls",
    ),
    Cheat(
        name="returns a copy of an earlier result for inputs with the same values",
        source=_norm(
            """
            key = float(x.reshape(-1)[::97].double().sum()), normalized_shape, eps, x.shape
            if torch.is_grad_enabled() or key not in results:
                for _ in range(20):
                    y = real(x, normalized_shape, weight, bias, eps)
                results[key] = y
            return results[key].clone()
            """,
            "results = {}",
        ),
        run="returns results of earlier calls whose inputs had the same values",
        verify="returns results of earlier calls whose inputs had the same values",
        seen=GPU_MODE,
    ),
    Cheat(
        name="returns zeros while the timer of the harness is among its callers",
        source=_norm(
            """
            frame = sys._getframe()
            while frame is not None:
                if frame.f_code.co_name == "time" and "measure" in frame.f_code.co_filename:
                    return torch.zeros_like(x)
                frame = frame.f_back
            return real(x, normalized_shape, weight, bias, eps)
            """,
            "import sys",
        ),
        run="reads the frames of its callers",
        verify="reads the frames of its callers",
        seen=METR,
    ),
    Cheat(
        name="looks at the frames of its callers",
        source=_norm(f"inspect.stack()\n{_RIGHT}", "import inspect"),
        run="reads the frames of its callers",
        verify="reads the frames of its callers",
        seen=METR,
    ),
    Cheat(
        name="calls the exact reference of the harness",
        source=_norm(
            """
            if torch.is_grad_enabled() or weight is None or bias is None or x.dim() != 2:
                return real(x, normalized_shape, weight, bias, eps)
            rows = x.double().reshape(-1, weight.numel())
            exact = oracle.twice_centred(
                rows, weight.double().reshape(-1), bias.double().reshape(-1), eps, None
            )
            return exact.y[0].to(x.dtype).reshape(x.shape)
            """,
            "import harness.numerics.oracle as oracle",
        ),
        run="calls harness.numerics.oracle.twice_centred",
        verify="calls harness.numerics.oracle.twice_centred",
    ),
    Cheat(
        name="keeps results in files",
        source=_norm(
            """
            path = pathlib.Path(tempfile.gettempdir()) / f"layernorm_{os.getpid()}"
            path.write_bytes(b"result")
            return real(x, normalized_shape, weight, bias, eps)
            """,
            "import os, pathlib, tempfile",
        ),
        run="opens a file",
        verify="opens a file",
    ),
    Cheat(
        name="searches the process for the expected result",
        source=_norm(f"gc.get_objects()\n{_RIGHT}", "import gc"),
        run="searches the objects of the process",
        verify="searches the objects of the process",
        seen=PYGPUBENCH,
    ),
    Cheat(
        name="is right for the inputs that it knows from the sources of the harness",
        source=_norm(
            """
            y = real(x, normalized_shape, weight, bias, eps)
            if torch.is_grad_enabled() or x.shape != (64, 256) or key(x) in known:
                return y
            return y + 0.01
            """,
            """
            from harness.inputs import make_inputs
            from harness.records import Case

            def key(x):
                return float(x.reshape(-1)[:8].double().sum())

            case = Case(implementation="", shape=(64, 256))
            known = {key(make_inputs(case).x)}
            """,
        ),
        run="wrong after it",
        verify="is right for the usual inputs and wrong for those of seed",
        seen=SAKANA,
    ),
    Cheat(
        name="is right where gradients are recorded only",
        source=_norm("""
            if torch.is_grad_enabled():
                return real(x, normalized_shape, weight, bias, eps)
            return torch.zeros_like(x)
            """),
        run="ulp off",
        verify="returns the same result for other arguments of the same shape",
    ),
    Cheat(
        name="returns x if it is nearly normalised already",
        source=_norm(
            """
            if abs(float(x.mean())) < 1e-2 and abs(float(x.var()) - 1) < 0.1 and weight is None:
                return x.clone()
            return real(x, normalized_shape, weight, bias, eps)
            """
        ),
        run=None,
        verify="mean(xhat) = 0 and mean(xhat^2) = rho^2",
        seen=KERNELBENCH,
    ),
    Cheat(
        name="returns the last result if the call fails, and fails",
        source=_norm(
            """
            try:
                if len(last) > 3:
                    raise RuntimeError
                last.append(real(x, normalized_shape, weight, bias, eps))
            except RuntimeError:
                pass
            return last[-1]
            """,
            "last = []",
        ),
        run="wrong after it",
        verify="y has shape",
    ),
)


def table() -> str:
    """Return the table of the documentation."""
    lines = ["| cheat | run says | verify says | published |", "|---|---|---|---|"]
    for cheat in CHEATS:
        run = cheat.run or "nothing: its inputs give the cheat no advantage"
        lines.append(f"| {cheat.name} | {run} | {cheat.verify} | {cheat.seen} |")
    return "\n".join(lines)
