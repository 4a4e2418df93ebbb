"""How a command ends: an exit code and, where something is wrong, one line on standard error."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from io import TextIOWrapper
from threading import current_thread, main_thread
from typing import Any, NoReturn

import click

from harness.records.refusal import Refusal

# click 8.2 and later raise this for a command without arguments; earlier versions exit
_HELP_SHOWN: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())


class ExitCode(IntEnum):
    """The exit codes of all commands; 0 is a pass."""

    FAILED = 1
    """A verification or a gate failed."""
    WRONG_USE = 2
    """The command was used wrongly, or a file cannot be read or written."""
    NOT_MEASURED = 3
    """Nothing was measured, or a case has no result: it crashed, timed out or raised."""
    NOT_COMPARABLE = 4
    """The runs have nothing in common that can be compared."""
    INTERRUPTED = 130
    """128 + SIGINT, as shells report Ctrl-C."""
    PIPE_CLOSED = 141
    """128 + SIGPIPE, as shells report a command whose output is not read to its end."""


class CommandGroup(click.Group):
    """The commands; a refusal or wrong use is one line on standard error and an exit code."""

    def make_context(self, *arguments: Any, **more: Any) -> click.Context:
        _prepare_streams()
        with _stream_errors_handled(), _errors_printed():  # --help is printed here
            return super().make_context(*arguments, **more)

    def invoke(self, ctx: click.Context) -> Any:
        with _stream_errors_handled(), _sigterm_as_interrupt(), _errors_printed():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


def announce(text: str) -> None:
    """Print on a terminal what a command is about to do, before torch is imported for seconds."""
    if sys.stderr.isatty():
        click.echo(text, err=True)


def print_error(message: str) -> None:
    """Print a message on standard error, with the name of the program before each line."""
    for line in message.splitlines():
        click.echo(f"layernorm-bench: {line}", err=True)


def exit_with_error(message: str, code: int) -> NoReturn:
    """Print a message on standard error, and exit."""
    print_error(message)
    raise SystemExit(code)


@contextmanager
def _errors_printed() -> Iterator[None]:
    try:
        yield
    except Refusal as refusal:
        exit_with_error(str(refusal), refusal.exit_code)
    except _HELP_SHOWN:
        raise
    except click.UsageError as error:
        message = " ".join(error.format_message().split()).removesuffix(".")  # one line
        message = re.sub(r"'\[(\w+)\]'", r"'\1'", message)  # an optional argument
        # the message of a bad value says how to write it
        if error.ctx and type(error) is not click.BadParameter:
            see = " See" if message.endswith("?") else "; see"
            message += f"{see} `{error.ctx.command_path} --help`"
        exit_with_error(message, ExitCode.WRONG_USE)
    except KeyboardInterrupt:
        exit_with_error("interrupted before anything was measured", ExitCode.INTERRUPTED)


def _prepare_streams() -> None:
    """Make standard output and error accept any text, even if they are closed."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller: the next file opened would get its descriptor
            descriptor = os.open(os.devnull, os.O_WRONLY)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, "w", encoding="utf-8"))
        elif isinstance(stream, TextIOWrapper):  # an ASCII terminal has no micro sign
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Treat SIGTERM, which batch systems send before they kill, as Ctrl-C."""
    if current_thread() is not main_thread():  # only the main thread can set signal handlers
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _stream_errors_handled() -> Iterator[None]:
    """Exit if a stream cannot be written: silently if its reader is gone, else with the reason."""
    try:
        yield
    except SystemExit as system_exit:
        if not isinstance(system_exit.__context__, BrokenPipeError):
            raise
        raise SystemExit(ExitCode.PIPE_CLOSED) from None  # rich exits with 1
    except BrokenPipeError as error:
        _exit_if_unwritable()
        # click would exit silently, as if standard output were closed
        raise RuntimeError("a pipe within the harness is broken") from error
    except OSError:
        _exit_if_unwritable()
        raise


def _exit_if_unwritable() -> None:
    """Exit if standard output or standard error cannot be written any more."""
    for name, stream in (("standard output", sys.stdout), ("standard error", sys.stderr)):
        try:
            click.echo(file=stream)
        except OSError as error:
            # when Python exits, it flushes the stream, and would fail again
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            if isinstance(error, BrokenPipeError):
                raise SystemExit(ExitCode.PIPE_CLOSED) from None
            exit_with_error(f"{name}: cannot be written: {error.strerror}", ExitCode.WRONG_USE)
