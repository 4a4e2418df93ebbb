"""Which cases of a sweep and which other tests pytest runs, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from factories.pytest_runs import pytest_in

from harness.cli.pytest_sweep import SweepTests
from harness.records.refusal import Refusal

# --- which cases ---------------------------------------------------------------------------------


ONE_CASE = "ci::native/forward/32x128/float32/normal"
FROM_INI = pytest.Config.ArgsSource.TESTPATHS


def config_of(folder: Path, *arguments: str, source: Any = pytest.Config.ArgsSource.ARGS) -> Any:
    return SimpleNamespace(
        args=[*arguments], args_source=source, invocation_params=SimpleNamespace(dir=folder)
    )


def header_of(config: Any, sweep: str, alone: bool = True) -> str:
    return SweepTests(config, sweep, {}, options={}, alone=alone).pytest_report_header()


@pytest.mark.parametrize(
    ("arguments", "source", "alone", "left"),
    [
        (("tests", ONE_CASE), pytest.Config.ArgsSource.ARGS, True, ["tests"]),
        ((ONE_CASE,), pytest.Config.ArgsSource.ARGS, True, []),
        (("tests",), FROM_INI, True, []),
        (("tests",), FROM_INI, False, ["tests"]),  # the option in an ini file hides no tests
    ],
)
def test_other_tests_are_run_if_paths_are_given(
    tmp_path: Path, arguments: tuple[str, ...], source: Any, alone: bool, left: list[str]
) -> None:
    config = config_of(tmp_path, *arguments, source=source)
    header = header_of(config, "ci", alone)
    assert config.args == left
    assert ("no other tests" in header) == (left == [])
    assert (" 1 case of ci" in header) == (ONE_CASE in arguments)


def test_cases_are_selected_by_node_id_and_k_like_any_test(tmp_path: Path) -> None:
    other = ONE_CASE.replace("/forward/", "/backward/")
    options = ("--layernorm-sweep", "ci", "--layernorm-implementation", "native", "-v")
    chosen = (ONE_CASE, other, "-k", "forward/32x128/float32", "--benchmark-disable")
    done = pytest_in(tmp_path, *options, *chosen)
    assert f"{ONE_CASE} PASSED" in done.stdout
    assert "1 passed, 1 deselected" in done.stdout


def test_the_option_in_an_ini_file_adds_the_cases_to_other_tests(tmp_path: Path) -> None:
    (tmp_path / "test_others.py").write_text("def test_other():\n    pass\n")
    one = '[[grids]]\nimplementations = ["native"]\nshapes = ["4x8"]\n'
    (tmp_path / "one.toml").write_text(one)
    ini = ("-o", "addopts=--layernorm-sweep=one.toml")
    done = pytest_in(tmp_path, *ini, "--collect-only", "-q")
    assert done.stdout.splitlines()[:2] == [
        "test_others.py::test_other",
        "one.toml::native/forward/4x8/float32/normal",
    ]


# --- refusals, and what the plugin must not do ---------------------------------------------------


@pytest.mark.parametrize("without", [(), ("-p", "no:benchmark")], ids=str)
def test_without_the_option_nothing_is_added_and_nothing_imported(
    tmp_path: Path, without: tuple[str, ...]
) -> None:
    (tmp_path / "test_others.py").write_text(
        "import sys\ndef test_other(pytestconfig):\n"
        "    assert pytestconfig.pluginmanager.hasplugin('layernorm_bench')\n"
        "    assert not {'torch', 'harness.cli.pytest_sweep'} & set(sys.modules)\n"
    )
    done = pytest_in(tmp_path, *without)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (("--layernorm-sweep", "cii"), "no preset named 'cii'"),
        (("--layernorm-implementation", "native"), "--layernorm-sweep quick"),
        (("--layernorm-sweep", "ci", "-p", "no:benchmark"), "needs pytest-benchmark"),
    ],
    ids=["no such preset", "no sweep", "no pytest-benchmark"],
)
def test_wrong_use_is_one_line_and_no_test(
    tmp_path: Path, arguments: tuple[str, ...], fact: str
) -> None:
    done = pytest_in(tmp_path, *arguments)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert fact in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


@pytest.mark.parametrize(
    ("axes", "node_ids", "fact"),
    [
        ({"implementations": ("nativ",)}, [], "no implementation named 'nativ'"),
        ({"devices": ("tpu",)}, [], "--layernorm-device: no device named 'tpu'"),
        ({}, ["ci::native/x"], "no case ci::native/x"),
    ],
)
def test_a_sweep_that_cannot_be_planned_is_refused(
    tmp_path: Path, axes: dict[str, tuple[str, ...]], node_ids: list[str], fact: str
) -> None:
    config, options = config_of(tmp_path, *node_ids), {"devices": "--layernorm-device"}
    with pytest.raises(Refusal, match=fact):
        SweepTests(config, "ci", axes, options=options, alone=True)
