"""One cheat, and the source of its target."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent


@dataclass(frozen=True, slots=True, kw_only=True)
class Cheat:
    """One cheat."""

    name: str
    """What it does, for the table."""
    source: str
    run: str | None
    """What ``run`` says; None if its inputs give the cheat no advantage."""
    verify: str = ""
    """What ``verify`` says; empty if the same."""
    seen: str = ""
    """Where it was published; empty if nowhere."""

    @property
    def verified(self) -> str:
        """What ``verify`` says."""
        return self.verify or self.run or ""

    @property
    def file(self) -> str:
        """The content of the target's file."""
        return dedent(self.source)


def norm(body: str, before: str = "") -> str:
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


RIGHT = "return real(x, normalized_shape, weight, bias, eps)"
KERNELBENCH = "KernelBench"
GPU_MODE = "GPU MODE"
SAKANA = "Sakana AI"
DEEP_REINFORCE = "DeepReinforce"
METR = "METR"
PYGPUBENCH = "pygpubench"


def patched(statement: str, before: str = "") -> str:
    """Return a right LayerNorm whose import runs a statement."""
    return norm(RIGHT, f"{dedent(before)}\n{statement}")
