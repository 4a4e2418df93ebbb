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


def lock(file: BinaryIO | int, path: Path) -> bool:
    """Lock an open file or folder until it is closed or its process ends.

    Returns:
        Whether locks work on its file system.

    Raises:
        StoreError: another process holds the lock, or ``path`` has been removed or replaced.
    """
    descriptor = file if isinstance(file, int) else file.fileno()
    works = fcntl is not None
    if fcntl is not None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _in_use(path) from None
        except OSError:  # the file system does not support locks
            works = False
    try:
        is_same = os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:  # removed by a process that has just ended
        is_same = False
    if not is_same:
        raise _in_use(path)
    return works


def _in_use(path: Path) -> StoreError:
    return StoreError(
        f"{path}: another run is writing it; wait for its end, or choose another --out"
    )
