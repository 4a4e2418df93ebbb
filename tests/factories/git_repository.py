"""Small git repositories with a LayerNorm in them."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

LAYER_NORM = """
import torch


def layer_norm(x, normalized_shape, weight=None, bias=None, eps=1e-5):
    axes = tuple(range(-len(normalized_shape), 0))
    wide = x.float()
    mean = wide.mean(axes, keepdim=True)
    variance = (wide - mean).square().mean(axes, keepdim=True)
    y = (wide - mean) * torch.rsqrt(variance + eps)
    y = y if weight is None else y * weight
    y = y if bias is None else y + bias
    return y.to(x.dtype)
"""

AUTHOR = ("-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")


@dataclass(frozen=True)
class Repository:
    """A git repository whose files a test writes and commits."""

    path: Path

    @classmethod
    def at(cls, path: Path, files: dict[str, str]) -> Repository:
        """Make a repository whose first commit holds ``files``."""
        path.mkdir(parents=True, exist_ok=True)
        made = cls(path)
        made.git("init", "--quiet", "--initial-branch=main")
        made.write(files)
        made.commit()
        return made

    def git(self, *arguments: str) -> str:
        done = subprocess.run(
            ("git", *AUTHOR, *arguments), cwd=self.path, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def write(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            (self.path / name).parent.mkdir(parents=True, exist_ok=True)
            (self.path / name).write_text(text)

    def change(self, name: str, old: str, new: str) -> None:
        """Replace ``old`` by ``new`` in a file that contains ``old``."""
        text = (self.path / name).read_text()
        assert old in text
        (self.path / name).write_text(text.replace(old, new))

    def commit(self) -> str:
        """Commit all changes; return the hash of the commit."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "a change")
        return self.git("rev-parse", "HEAD")
