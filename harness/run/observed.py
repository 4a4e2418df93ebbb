"""Observe what a call does besides computing, such as opening files or reading its callers' frames.

A profile function (``sys.setprofile``) sees each function that Python code calls. Calls that
compiled code makes by itself are not seen.
"""

from __future__ import annotations

import gc
import inspect
import os
import sys
import sysconfig
import traceback
from types import FrameType

import torch

from harness.numerics.computed import ContractViolationError

__all__ = ["observed"]

_LIBRARIES = (sysconfig.get_path("stdlib"), "<frozen ")
_INSPECTORS = (inspect.__file__, traceback.__file__)
# mutants are part of the harness, but here they are targets
_OWN_TARGETS = "harness.verify.mutants"
_FRAMES = "reads the frames of its callers"
_PROCESS = "starts a process"
_FILE = "opens a file"
_MEMORY = "searches the objects of the process"


def _c_functions() -> dict[object, str]:
    found: dict[object, str] = {
        open: _FILE,
        os.open: _FILE,
        torch.set_num_threads: "sets the number of threads",
        gc.get_objects: _MEMORY,
        gc.get_referrers: _MEMORY,
        sys._getframe: _FRAMES,
        sys._current_frames: _FRAMES,
    }
    for name in ("fork", "forkpty", "posix_spawn", "posix_spawnp"):
        if (function := getattr(os, name, None)) is not None:  # not on every system
            found[function] = _PROCESS
    return found


_C_FUNCTIONS = _c_functions()


class observed:  # noqa: N801 - used as a function
    """A context around one call of a target, in which nothing else of the harness runs.

    Raises:
        ContractViolationError: at its end, if the target did what no LayerNorm needs.
    """

    def __enter__(self) -> None:
        self._seen: dict[str, None] = {}
        if sys.getprofile() is None:  # otherwise this process is being profiled
            sys.setprofile(self._see)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if sys.getprofile() == self._see:
            sys.setprofile(None)
        if self._seen and kind is None:
            raise ContractViolationError(
                f"in a call it {' and '.join(self._seen)}, which no LayerNorm needs"
            )

    def _see(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "c_call":
            what = _C_FUNCTIONS.get(argument)
            if what is not None and not (what is _FRAMES and _is_library(frame)):
                self._seen[f"{what} ({getattr(argument, '__qualname__', argument)})"] = None
        elif event == "call" and _is_harness(frame) and not _may_call(frame.f_back):
            self._seen[f"calls {frame.f_globals['__name__']}.{frame.f_code.co_qualname}"] = None


def _is_harness(frame: FrameType) -> bool:
    """Whether a frame is of the harness, but not of one of its own mutants."""
    name = str(frame.f_globals.get("__name__", ""))
    return name.startswith("harness.") and not name.startswith(_OWN_TARGETS)


def _may_call(caller: FrameType | None) -> bool:
    """Whether a frame may call the harness: one of the harness, or of Python's library."""
    return caller is None or _is_harness(caller) or _is_library(caller)


def _is_library(frame: FrameType) -> bool:
    """Whether a frame is of Python's own library, except where that inspects frames."""
    file = frame.f_code.co_filename
    # without a virtual environment, site-packages lies in the folder of the standard library
    is_installed = "-packages" in file
    return file.startswith(_LIBRARIES) and not is_installed and file not in _INSPECTORS
