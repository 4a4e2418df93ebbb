"""What pytest loads: ``--layernorm-sweep`` makes the cases of a sweep tests of pytest-benchmark.

Every run of pytest in an environment that has this package imports this file. So it imports
nothing that pytest has not, and without the option it does nothing.
"""

from __future__ import annotations

import pytest

__all__ = ["OPTION", "pytest_addoption", "pytest_configure"]

OPTION = "--layernorm-sweep"
_IMPLEMENTATION, _DEVICE = "--layernorm-implementation", "--layernorm-device"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, which cost nothing until they are used."""
    group = parser.getgroup("layernorm-bench", "LayerNorm sweeps, timed by pytest-benchmark")
    group.addoption(
        OPTION,
        metavar="PRESET|FILE.toml",
        help="add the cases of a sweep as tests, each verified before it is timed; without paths "
        "on the command line there are no others",
    )
    for option, metavar, what in (
        (_IMPLEMENTATION, "NAME", "names, module:function or file.py:function"),
        (_DEVICE, "DEVICE", "cpu, cuda"),
    ):
        group.addoption(
            option,
            metavar=f"{metavar}[,{metavar}...]",
            action="append",
            default=[],
            help=f"{what}, in the place of the sweep's",
        )


def pytest_configure(config: pytest.Config) -> None:
    """Plan the sweep that was asked for, if any.

    Raises:
        pytest.UsageError: it cannot be run, or not here; says why and what to do.
    """
    sweep = config.getoption(OPTION)
    options = {"implementations": _IMPLEMENTATION, "devices": _DEVICE}
    axes = {
        axis: tuple(name.strip() for each in config.getoption(option) for name in each.split(","))
        for axis, option in options.items()
    }
    if sweep is None:
        if any(axes.values()):
            raise pytest.UsageError(
                f"{_IMPLEMENTATION} and {_DEVICE} change a sweep: say which, such as {OPTION} quick"
            )
        return
    if not config.pluginmanager.hasplugin("benchmark"):
        raise pytest.UsageError(
            f"{OPTION} needs pytest-benchmark, which is not installed, or switched off: "
            "pip install 'layernorm-bench[pytest]'"
        )
    from harness.pytest_sweep import SweepTests
    from harness.refusal import Refusal

    # from an ini file it adds to what is run: it must not hide other tests
    typed = any(str(each).startswith(OPTION) for each in config.invocation_params.args)
    try:
        tests = SweepTests.plan(config, sweep, axes, options=options, alone=typed)
    except Refusal as refusal:
        raise pytest.UsageError(str(refusal)) from refusal
    config.pluginmanager.register(tests, "layernorm_bench_sweep")
