"""The cases of a sweep as tests of pytest: which, the outcome of each, and its timing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import torch
from factories.fake_device import FakeDevice
from factories.known_functions import CASE
from factories.pytest_runs import pytest_in

import implementations
from harness.cases import make_inputs
from harness.cli.pytest_sweep import SweepTests, run_case, time_with
from harness.records import Allocation, Case, Direction, Refusal, Status
from harness.report.pytest_benchmark import KEY, MODEL_BYTES, record_from
from harness.run.case import CaseRunner

SUBJECTS = """
import warnings
from torch.nn.functional import layer_norm
from implementations import Implementation

def wrong(x, shape, weight=None, bias=None, eps=1e-5):
    return layer_norm(x, shape, weight, bias, eps) * 1.01

def warns(x, shape, weight=None, bias=None, eps=1e-5):
    warnings.warn("this is slow")
    return layer_norm(x, shape, weight, bias, eps)

def raises(*arguments):
    raise RuntimeError("not today")

KEPT = {}
def remembers(x, shape, weight=None, bias=None, eps=1e-5):
    return KEPT.setdefault(x.data_ptr(), layer_norm(x, shape, weight, bias, eps))

forward_only = Implementation(name="f", function=layer_norm, source="", forward_only=True)
"""

SWEEP = """
[[grids]]
implementations = [
  "native", "subjects.py:wrong", "subjects.py:warns", "subjects.py:raises", "subjects.py:remembers"
]
shapes = ["4x8"]
[[grids]]
implementations = ["native", "subjects.py:forward_only"]
shapes = ["4x8"]
directions = ["backward", "forward+backward"]
[[grids]] # torch sums its dweight over the rows in bfloat16
implementations = ["native"]
shapes = ["512x768"]
dtypes = ["bfloat16"]
directions = ["backward"]
[[grids]] # its errors alone
implementations = ["one_pass"]
shapes = ["8x64"]
distributions = ["normal", "offset_1e4"]
measure = ["errors"]
"""

QUICKLY = ("--benchmark-max-time=0.01", "--benchmark-min-rounds=2")


@dataclass(frozen=True, slots=True)
class Session:
    """The result of a run of pytest."""

    outcomes: dict[str, tuple[str, str]]
    """Outcome and message of each test."""
    benchmarks: dict[str, dict[str, Any]]
    """For each timed test, its entry in pytest-benchmark's file."""
    machine_info: dict[str, Any]
    text: str


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """One run of pytest on a sweep with every kind of outcome."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "subjects.py").write_text(SUBJECTS)
    (folder / "tiny.toml").write_text(SWEEP)
    (folder / "test_others.py").write_text("def test_other():\n    pass\n")
    files = ("-v", "--junitxml=found.xml", "--benchmark-json=found.json")
    done = pytest_in(folder, "--layernorm-sweep", "tiny.toml", *QUICKLY, *files)
    outcomes = {}
    for each in ET.parse(folder / "found.xml").iter("testcase"):
        ((kind, message),) = [(i.tag, i.get("message", "")) for i in each] or [("passed", "")]
        outcomes[each.get("name", "")] = kind, message
    found = json.loads((folder / "found.json").read_text())
    benchmarks = {each["fullname"]: each for each in found["benchmarks"]}
    return Session(outcomes, benchmarks, found["machine_info"], done.stdout + done.stderr)


# --- the outcome of a case -----------------------------------------------------------------------


FORWARD = "forward/4x8/float32/normal"
OUTCOMES = {
    **{f"native/{direction}/4x8/float32/normal": ("passed", "") for direction in Direction},
    # warnings are errors in this pytest, but not for a case
    f"subjects.py:warns/{FORWARD}": ("passed", ""),
    f"subjects.py:wrong/{FORWARD}": ("failure", "Failed: wrong: y is "),
    f"subjects.py:raises/{FORWARD}": ("failure", "Failed: error: RuntimeError: not today"),
    "native/backward/512x768/bfloat16/normal": ("failure", "Failed: inaccurate: dweight is "),
    # its results were right before the timing
    f"subjects.py:remembers/{FORWARD}": ("failure", "Failed: wrong: right before the timing"),
    "subjects.py:forward_only/backward/4x8/float32/normal": ("skipped", "unsupported: "),
    "subjects.py:forward_only/forward+backward/4x8/float32/normal": ("skipped", "unsupported: "),
    "one_pass/forward/8x64/float32/normal": ("passed", ""),
    # JUnit XML has no expected failure
    "one_pass/forward/8x64/float32/offset_1e4": ("skipped", "out_of_guarantee: "),
}

TIMED = {*(f"native/{each}/4x8/float32/normal" for each in Direction),
         f"subjects.py:warns/{FORWARD}"}  # fmt: skip


def test_the_tests_are_the_cases_and_no_others(session: Session) -> None:
    assert set(session.outcomes) == set(OUTCOMES)
    assert f"{len(OUTCOMES)} cases of tiny.toml; no other tests" in session.text


@pytest.mark.parametrize("name", OUTCOMES)
def test_the_status_of_a_case_is_the_outcome_of_its_test(session: Session, name: str) -> None:
    outcome, message = session.outcomes[name]
    expected, beginning = OUTCOMES[name]
    assert outcome == expected
    assert message.startswith(beginning)


def test_only_right_cases_are_timed(session: Session) -> None:
    timed = {name.removeprefix("tiny.toml::") for name in session.benchmarks}
    assert timed >= TIMED
    assert {name for name in timed if session.outcomes[name][0] == "passed"} == TIMED
    assert f"subjects.py:wrong/{FORWARD}" not in timed
    stats = session.benchmarks[f"tiny.toml::native/{FORWARD}"]["stats"]
    assert 0 < stats["min"] <= stats["median"]


def test_warnings_are_shown_and_a_failure_is_reported_once(session: Session) -> None:
    assert "UserWarning: this is slow" in session.text
    assert f"tiny.toml::subjects.py:wrong/{FORWARD} FAILED" in session.text
    assert "ERROR at" not in session.text  # of the unused fixture


def test_the_file_holds_the_record_and_the_machine(session: Session) -> None:
    found = session.benchmarks["tiny.toml::native/forward+backward/4x8/float32/normal"]
    record = record_from(found["extra_info"][KEY])
    assert record.case == Case(
        implementation="native", shape=(4, 8), direction=Direction.FORWARD_BACKWARD
    )
    assert record.status is Status.OK
    assert record.errors is not None
    assert [each.output for each in record.errors.outputs] == ["y", "dx", "dweight", "dbias"]
    assert found["group"] == "forward+backward/4x8/float32/normal"
    # x twice, dy, y and dx of 128 bytes; weight twice, bias, dweight and dbias of 32
    assert found["extra_info"][KEY][MODEL_BYTES] == 5 * 128 + 5 * 32
    where = session.machine_info[KEY]
    assert where["packages"]
    assert (where["load_average"], where["git_commit"]) == (None, None)


# --- refusals, and what the plugin must not do ---------------------------------------------------


def test_other_tests_keep_their_number_of_threads() -> None:
    before = torch.get_num_threads()
    case = Case(implementation="native", shape=(4, 8), threads=before + 1)
    run_case(CaseRunner("here", Allocation.DEFAULT), case, None)
    assert torch.get_num_threads() == before


# --- on another device ---------------------------------------------------------------------------


class Rounds:
    """A stand-in for pytest-benchmark that calls three times."""

    group: str | None = None

    def __call__(self, call: Any) -> None:
        for _ in range(3):
            call()


@pytest.mark.parametrize(("kind", "waits"), [("cuda", 3), ("cpu", 0)])
def test_a_call_ends_when_the_device_has_done_its_work(
    kind: str, waits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = FakeDevice()
    waited: list[None] = []
    monkeypatch.setattr(device, "synchronize", lambda: waited.append(None))
    native = implementations.find("native").function
    inputs = make_inputs(CASE)
    benchmark: Any = Rounds()
    case = Case(implementation="native", shape=CASE.shape, device=kind)
    sampled = time_with(benchmark, native, case, inputs, device)
    assert len(waited) == waits
    for copy, original in zip(sampled.tensors, inputs.tensors, strict=True):
        assert torch.equal(copy, original)
        assert copy.data_ptr() != original.data_ptr()


# === Which cases of a sweep and which other tests pytest runs, and what it refuses


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
