"""Locks: a file is written by one process at a time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows has none
    fcntl = None  # type: ignore[assignment]

from harness.store.error import StoreError

__all__ = ["lock"]


def lock(file: BinaryIO, path: Path) -> bool:
    """Lock a file until it is closed or its process ends; return whether locks work here.

    Raises:
        StoreError: another process holds the lock, or ``path`` has been removed or replaced.
    """
    works = fcntl is not None
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _in_use(path) from None
        except OSError:  # the file system does not support locks
            works = False
    try:
        is_same = os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:  # removed by a process that has just ended
        is_same = False
    if not is_same:
        raise _in_use(path)
    return works


def _in_use(path: Path) -> StoreError:
    return StoreError(
        f"{path}: another run is writing it; wait for its end, or choose another --out"
    )
