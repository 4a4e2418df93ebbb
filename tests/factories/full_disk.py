"""A disk that is full after so many bytes: the files that Python opens are limited."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import Any

import pytest


class _Limited(io.FileIO):
    """A file that takes ``room`` bytes in all, and then as much of a write as fits."""

    room = 0

    def write(self, data: Any, /) -> int:
        left = self.room - os.fstat(self.fileno()).st_size
        if left <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(bytes(data)[:left])


def full_disk_after(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """Let no file that is opened for appending from now on grow beyond ``room`` bytes."""
    real = Path.open

    def limited(path: Path, mode: str = "r", *arguments: Any, **more: Any) -> Any:
        if mode != "ab":
            return real(path, mode, *arguments, **more)
        file = _Limited(path, "a")
        file.room = room
        return io.BufferedWriter(file)

    monkeypatch.setattr(Path, "open", limited)
