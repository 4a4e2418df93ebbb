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

    from harness.verify import assert_layer_norm, verify
    from implementations import LayerNorm, replace_layer_norms

__all__ = ["LayerNorm", "assert_layer_norm", "replace_layer_norms", "verify"]

_PACKAGES = ("harness", "implementations")
_PACKAGE_OF = {
    "LayerNorm": "implementations",
    "assert_layer_norm": "harness.verify",
    "replace_layer_norms": "implementations",
    "verify": "harness.verify",
}

if not TYPE_CHECKING:  # a type checker would take every name for one of this module

    def __getattr__(name: str) -> object:
        """Import a name of the API on first use.

        Raises:
            ImportError: another package hides ``harness`` or ``implementations``.
        """
        if name not in _PACKAGE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        _check_packages()
        found = getattr(import_module(_PACKAGE_OF[name]), name)
        globals()[name] = found
        return found

    # no __dir__: pytest gets every name that dir() lists of a plugin, to look for fixtures


def _check_packages() -> None:
    """Check that ``harness`` and ``implementations`` are those installed beside this package.

    Nothing is imported, so that no code of another package runs.

    Raises:
        ImportError: one of them is another package, or missing; says which and what to do.
    """
    for name in _PACKAGES:
        own = Path(__file__).parents[1] / name / "__init__.py"
        try:
            spec = find_spec(name)
        except ValueError:  # a module without a spec, put into sys.modules by hand
            spec = None
        if spec is None:
            raise ImportError(
                f"found no package {name!r}, expected {own}: reinstall layernorm-bench"
            )
        found = spec.origin or str(next(iter(spec.submodule_search_locations or ()), "unknown"))
        if Path(found).resolve() != own.resolve():
            raise ImportError(
                f"{found} is imported as {name!r} in place of {own}, which layernorm-bench needs: "
                "run from another directory, or rename the former"
            )


# --- the plugin of pytest ------------------------------------------------------------------------

_SWEEP = "--layernorm-sweep"
_IMPLEMENTATION, _DEVICE = "--layernorm-implementation", "--layernorm-device"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, which cost nothing until they are used."""
    group = parser.getgroup("layernorm-bench", "LayerNorm sweeps, timed by pytest-benchmark")
    group.addoption(
        _SWEEP,
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
    import pytest

    sweep = config.getoption(_SWEEP)
    options = {"implementations": _IMPLEMENTATION, "devices": _DEVICE}
    axes = {
        axis: tuple(name.strip() for each in config.getoption(option) for name in each.split(","))
        for axis, option in options.items()
    }
    if sweep is None:
        if any(axes.values()):
            raise pytest.UsageError(
                f"{_IMPLEMENTATION} and {_DEVICE} change a sweep: say which, such as {_SWEEP} quick"
            )
        return
    if not config.pluginmanager.hasplugin("benchmark"):
        raise pytest.UsageError(
            f"{_SWEEP} needs pytest-benchmark, which is not installed, or switched off: "
            "pip install 'layernorm-bench[pytest]'"
        )
    try:
        _check_packages()
    except ImportError as error:
        raise pytest.UsageError(str(error)) from error
    from harness.cli.pytest_sweep import SweepTests
    from harness.records.refusal import Refusal

    # from an ini file it adds to what is run: it must not hide other tests
    typed = any(str(each).startswith(_SWEEP) for each in config.invocation_params.args)
    try:
        tests = SweepTests.plan(config, sweep, axes, options=options, alone=typed)
    except Refusal as refusal:
        raise pytest.UsageError(str(refusal)) from refusal
    config.pluginmanager.register(tests, "layernorm_bench_sweep")
