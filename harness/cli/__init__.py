"""The command line: parse, call, print, exit. It computes nothing and never imports torch itself.

The exit codes are those of :class:`harness.cli.exit_code.ExitCode`.
"""

from __future__ import annotations

import sys

try:
    import click

    from harness.cli.exit_code import CommandGroup
    from harness.cli.gates import ab, check, compare
    from harness.cli.list import list_
    from harness.cli.results import choose, export, history, import_results, merge, report
    from harness.cli.run import run
    from harness.cli.verify import explain, verify
except KeyboardInterrupt:  # as CommandGroup ends a command
    sys.stderr.write("layernorm-bench: interrupted before anything was measured\n")
    raise SystemExit(130) from None

__all__ = ["main"]


# --help lists the commands in this order
_COMMANDS = (
    run, verify, explain, choose, report, list_, compare, history, check, ab, export,
    import_results, merge,
)  # fmt: skip


@click.group(
    name="layernorm-bench",
    cls=CommandGroup,
    commands=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="layernorm-bench")
def main() -> None:
    """Which LayerNorm should I run: how wrong, how fast and how memory-hungry is each?

    A first look: `layernorm-bench run --report`. Is my own function a LayerNorm?
    `layernorm-bench verify path/to/file.py:function`.
    """
