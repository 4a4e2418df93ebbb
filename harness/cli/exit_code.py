"""How a command ends: whatever becomes of it, in a line on standard error and an exit code."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from threading import current_thread, main_thread
from typing import Any, NoReturn

import click

from harness.records.refusal import Refusal

__all__ = ["INTERRUPTED", "Commands", "fail", "say"]

INTERRUPTED = 130
_NOBODY_READS = (
    141  # 128 and SIGPIPE: what a shell makes of any command that is not read to its end
)


class Commands(click.Group):
    """Ends every refusal in its line on standard error and its exit code."""

    def make_context(self, *arguments: Any, **more: Any) -> click.Context:
        _prepare_streams()
        with _told_streams():  # --help is printed here
            return super().make_context(*arguments, **more)

    def invoke(self, ctx: click.Context) -> Any:
        with _told_streams(), _interrupted_by_batch_systems():
            try:
                return super().invoke(ctx)
            except Refusal as refusal:
                fail(str(refusal), refusal.exit_code)
            except KeyboardInterrupt:
                fail("interrupted before anything was measured", INTERRUPTED)


def say(message: str) -> None:
    """Say what is wrong on standard error."""
    for line in message.splitlines():
        click.echo(f"layernorm-bench: {line}", err=True)


def fail(message: str, code: int) -> NoReturn:
    """Say what is wrong, and exit."""
    say(message)
    raise SystemExit(code)


def _prepare_streams() -> None:
    """Make standard output and error take whatever is said."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller: its descriptor would be the next file's
            descriptor = os.open(os.devnull, os.O_WRONLY)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, "w", encoding="utf-8"))
        elif isinstance(stream, TextIOWrapper):  # no terminal need know the micro sign
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def _interrupted_by_batch_systems() -> Iterator[None]:
    """Take SIGTERM, which they send before they kill, for Ctrl-C."""
    if current_thread() is not main_thread():  # none but the main thread hears of signals
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _told_streams() -> Iterator[None]:
    """End what can be said no more: quietly if nobody reads, else with the reason."""
    try:
        yield
    except SystemExit as ended:
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        raise SystemExit(_NOBODY_READS) from None  # rich ends so, and with the code of a gate
    except BrokenPipeError as error:
        _end_for_streams()
        raise RuntimeError("a pipe of our own is broken") from error  # click would say nothing
    except OSError:
        _end_for_streams()
        raise


def _end_for_streams() -> None:
    """End if a stream cannot be written any more."""
    for name, stream in (("standard output", sys.stdout), ("standard error", sys.stderr)):
        if (why := _why_unwritable(stream)) is not None:
            _to_nowhere(stream)
            if isinstance(why, BrokenPipeError):
                raise SystemExit(_NOBODY_READS) from None
            fail(f"{name}: cannot be written: {why.strerror}", Refusal.exit_code)


def _why_unwritable(stream: Any) -> OSError | None:
    try:
        click.echo(file=stream)
    except OSError as error:
        return error
    return None


def _to_nowhere(stream: Any) -> None:
    """Let what is still to be written go nowhere: on leaving, Python writes it, and would fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
