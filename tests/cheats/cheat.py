"""One cheat, and the file of its target."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent, indent

RIGHT = "return real(x, normalized_shape, weight, bias, eps)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cheat:
    """One cheat."""

    name: str
    """What it does, for the table."""
    before: str = ""
    """What its file runs on import."""
    body: str = RIGHT
    """What its function ``norm`` does; in it ``real`` is torch's own LayerNorm."""
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
        return f"""\
import torch
from torch.nn import functional

real = functional.layer_norm
{dedent(self.before)}

def norm(x, normalized_shape, weight=None, bias=None, eps=1e-5):
{indent(dedent(self.body).strip(), "    ")}
"""
