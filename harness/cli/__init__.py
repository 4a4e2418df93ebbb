"""The command line: parse, call, print, exit. It computes nothing and never imports torch itself.

The exit codes are those of :class:`harness.cli.exit_code.ExitCode`.
"""

from __future__ import annotations

import click

from harness.cli.ab import ab
from harness.cli.check import check
from harness.cli.choose import choose
from harness.cli.compare import compare
from harness.cli.exit_code import CommandGroup
from harness.cli.explain import explain
from harness.cli.export import export
from harness.cli.history import history
from harness.cli.import_results import import_results
from harness.cli.list import list_
from harness.cli.merge import merge
from harness.cli.report import report
from harness.cli.run import run
from harness.cli.verify import verify

__all__ = ["main"]


@click.group(
    name="layernorm-bench",
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="layernorm-bench")
def main() -> None:
    """Which LayerNorm should I run: how wrong, how fast and how memory-hungry is each?

    A first look: `layernorm-bench run --report`. Is my own function a LayerNorm?
    `layernorm-bench verify path/to/file.py:function`.
    """


# --help lists the commands in this order
_COMMANDS = (
    run, verify, explain, choose, report, list_, compare, history, check, ab, export,
    import_results, merge,
)  # fmt: skip
for _command in _COMMANDS:
    main.add_command(_command)
