"""The public Python API of layernorm-bench, and the module that pytest loads as its plugin.

    from layernorm_bench import LayerNorm, assert_layer_norm, replace_layer_norms, verify

Each name is imported on first use: ``import layernorm_bench`` imports neither torch nor the
packages ``harness`` and ``implementations``. Every pytest run in an environment with
layernorm-bench imports this module, so it must work in a directory that has a package of its own
with one of those names.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

    from harness.report.assertion import assert_layer_norm
    from harness.store import read
    from harness.verify import verify, verify_case
    from implementations import (
        Algorithm,
        CallOptions,
        Dispatch,
        LayerNorm,
        Reduction,
        TargetError,
        UnsupportedError,
        find,
        implementation,
        replace_layer_norms,
    )

__all__ = [
    "Algorithm",
    "CallOptions",
    "Dispatch",
    "LayerNorm",
    "Reduction",
    "TargetError",
    "UnsupportedError",
    "assert_layer_norm",
    "find",
    "implementation",
    "read",
    "replace_layer_norms",
    "verify",
    "verify_case",
]

_PACKAGES = ("harness", "implementations")
_OF_HARNESS = {
    "assert_layer_norm": "harness.report.assertion",
    "read": "harness.store",
    "verify": "harness.verify",
    "verify_case": "harness.verify",
}
_PACKAGE_OF = {name: _OF_HARNESS.get(name, "implementations") for name in __all__}

if not TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name: str) -> object:
        """Import a name of the API on first use.

        Raises:
            ImportError: another package hides ``harness`` or ``implementations``.
        """
        if name not in _PACKAGE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        _check_packages()
        value = getattr(import_module(_PACKAGE_OF[name]), name)
        globals()[name] = value
        return value

    # no __dir__: pytest reads every attribute that dir() lists of a plugin, to find fixtures


def _check_packages() -> None:
    """Check that ``harness`` and ``implementations`` are the packages installed with this one.

    Nothing is imported, so that no code of another package runs.

    Raises:
        ImportError: one of them is missing or another package; the message says what to do.
    """
    for name in _PACKAGES:
        own = Path(__file__).parents[1] / name / "__init__.py"
        try:
            spec = find_spec(name)
        except ValueError:  # sys.modules holds a module without a spec
            spec = None
        if spec is None:
            raise ImportError(
                f"found no package {name!r}, expected {own}: reinstall layernorm-bench"
            )
        found = spec.origin or str(next(iter(spec.submodule_search_locations or ()), "unknown"))
        if Path(found).resolve() != own.resolve():
            raise ImportError(
                f"{found} is imported as {name!r} instead of {own}, which layernorm-bench needs: "
                "run from another directory, or rename the former"
            )


# --- the plugin of pytest ------------------------------------------------------------------------

_SWEEP = "--layernorm-sweep"
_IMPLEMENTATION, _DEVICE = "--layernorm-implementation", "--layernorm-device"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("layernorm-bench", "LayerNorm sweeps, timed by pytest-benchmark")
    group.addoption(
        _SWEEP,
        metavar="PRESET|FILE.toml",
        help="add the cases of a sweep as tests, each verified before it is timed; if the command "
        "line has no paths, only these tests are run",
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
            help=f"{what}, instead of those of the sweep",
        )


def pytest_configure(config: pytest.Config) -> None:
    """Plan the sweep of the options, if there is one.

    Raises:
        pytest.UsageError: the options cannot be used, or not here; the message says what to do.
    """
    import pytest

    sweep = config.getoption(_SWEEP)
    options = {"implementations": _IMPLEMENTATION, "devices": _DEVICE}
    axes = {
        axis: tuple(name.strip() for value in config.getoption(option) for name in value.split(","))
        for axis, option in options.items()
    }
    if sweep is None:
        if any(axes.values()):
            raise pytest.UsageError(
                f"{_IMPLEMENTATION} and {_DEVICE} need a sweep: add one, such as {_SWEEP} quick"
            )
        return
    try:
        _check_packages()
    except ImportError as error:
        raise pytest.UsageError(str(error)) from error
    from harness.records.refusal import Refusal
    from harness.records.text import install_extra

    if not config.pluginmanager.hasplugin("benchmark"):
        raise pytest.UsageError(
            f"{_SWEEP} needs pytest-benchmark, which is not installed, or switched off: "
            f"{install_extra('pytest')}"
        )
    from harness.cli.pytest_sweep import SweepTests

    # an option in an ini file must not hide the other tests
    typed = any(str(argument).startswith(_SWEEP) for argument in config.invocation_params.args)
    try:
        tests = SweepTests(config, sweep, axes, options=options, alone=typed)
    except Refusal as refusal:
        raise pytest.UsageError(str(refusal)) from refusal
    config.pluginmanager.register(tests, "layernorm_bench_sweep")
