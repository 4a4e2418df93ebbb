"""The cases of a sweep as tests of pytest, each run by a pytest of its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import torch
from fake_device import FakeDevice
from known_functions import CASE

import implementations
from harness.cli.pytest_sweep import SweepTests, run_case, time_with
from harness.exports.benchmark_json import KEY, MODEL_BYTES, record_from
from harness.inputs import make_inputs
from harness.records import Allocation, Case, Direction, Status
from harness.run.case import CaseRunner
from harness.sweep import SweepError

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
[[grids]] # its errors alone
implementations = ["one_pass"]
shapes = ["8x64"]
distributions = ["normal", "offset_1e4"]
measure = ["errors"]
"""
QUICKLY = ("--benchmark-max-time=0.01", "--benchmark-min-rounds=2")


def pytest_in(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in ``folder``, with warnings as errors."""
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


@dataclass(frozen=True, slots=True)
class Session:
    """What a pytest found."""

    outcomes: dict[str, tuple[str, str]]
    """For each test how it ended, and in which words."""
    benchmarks: dict[str, dict[str, Any]]
    """For each test that was timed, its entry in pytest-benchmark's file."""
    machine_info: dict[str, Any]
    text: str


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """One pytest on a sweep in which every kind of thing happens."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "subjects.py").write_text(SUBJECTS)
    (folder / "tiny.toml").write_text(SWEEP)
    (folder / "test_others.py").write_text("def test_other():\n    pass\n")
    files = ("-v", "--junitxml=found.xml", "--benchmark-json=found.json")
    done = pytest_in(folder, "--layernorm-sweep", "tiny.toml", *QUICKLY, *files)
    outcomes = {}
    for each in ET.parse(folder / "found.xml").iter("testcase"):
        ((kind, words),) = [(i.tag, i.get("message", "")) for i in each] or [("passed", "")]
        outcomes[each.get("name", "")] = kind, words
    found = json.loads((folder / "found.json").read_text())
    benchmarks = {each["fullname"]: each for each in found["benchmarks"]}
    return Session(outcomes, benchmarks, found["machine_info"], done.stdout + done.stderr)


# --- what becomes of a case ----------------------------------------------------------------------


def test_each_case_is_a_test_and_there_are_no_others(session: Session) -> None:
    assert set(session.outcomes) == {
        *(
            f"subjects.py:{each}/forward/4x8/float32/normal"
            for each in ("wrong", "warns", "raises")
        ),
        "subjects.py:remembers/forward/4x8/float32/normal",
        "native/forward/4x8/float32/normal",
        *(
            f"{each}/{direction}/4x8/float32/normal"
            for each in ("native", "subjects.py:forward_only")
            for direction in ("backward", "forward+backward")
        ),
        *(f"one_pass/forward/8x64/float32/{each}" for each in ("normal", "offset_1e4")),
    }
    assert "11 cases of tiny.toml; no other tests" in session.text
    assert "collected 11 items" in session.text


@pytest.mark.parametrize("direction", Direction)
def test_a_right_case_passes_and_is_timed(session: Session, direction: Direction) -> None:
    name = f"native/{direction}/4x8/float32/normal"
    assert session.outcomes[name] == ("passed", "")
    stats = session.benchmarks[f"tiny.toml::{name}"]["stats"]
    assert 0 < stats["min"] <= stats["median"]


def test_a_wrong_case_fails_once_in_the_words_of_its_verdict_and_has_no_time(
    session: Session,
) -> None:
    name = "subjects.py:wrong/forward/4x8/float32/normal"
    outcome, words = session.outcomes[name]
    assert outcome == "failure"
    assert words.startswith("Failed: wrong: y is ")
    assert "ulp off" in words
    assert f"tiny.toml::{name}" not in session.benchmarks
    assert f"tiny.toml::{name} FAILED" in session.text
    assert "ERROR at" not in session.text  # that the fixture was not used is no second failure


def test_what_the_implementation_raises_fails_in_one_line(session: Session) -> None:
    found = session.outcomes["subjects.py:raises/forward/4x8/float32/normal"]
    assert found == ("failure", "Failed: error: RuntimeError: not today")


def test_what_it_cannot_do_is_skipped_with_the_reason(session: Session) -> None:
    found = session.outcomes["subjects.py:forward_only/backward/4x8/float32/normal"]
    assert found == ("skipped", "unsupported: f has no gradient")


def test_what_nothing_is_promised_for_is_neither_a_pass_nor_a_failure(session: Session) -> None:
    outcome, words = session.outcomes["one_pass/forward/8x64/float32/offset_1e4"]
    assert outcome == "skipped"  # as JUnit has an expected failure
    assert words.startswith("out_of_guarantee: one_pass with float32 statistics guarantees nothing")


def test_a_case_that_is_not_to_be_timed_is_verified_alone(session: Session) -> None:
    name = "one_pass/forward/8x64/float32/normal"
    assert session.outcomes[name] == ("passed", "")
    assert f"tiny.toml::{name}" not in session.benchmarks


def test_results_that_were_remembered_fail_after_the_timing(session: Session) -> None:
    outcome, words = session.outcomes["subjects.py:remembers/forward/4x8/float32/normal"]
    assert outcome == "failure"
    assert words.startswith("Failed: wrong: right at first, and after the timing: ")


def test_a_warning_is_a_warning_even_where_warnings_are_errors(session: Session) -> None:
    assert session.outcomes["subjects.py:warns/forward/4x8/float32/normal"] == ("passed", "")
    assert "UserWarning: this is slow" in session.text


def test_the_file_holds_case_verdict_and_errors_and_says_where(session: Session) -> None:
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


# --- which cases ---------------------------------------------------------------------------------


def test_the_cases_of_a_preset_are_listed_by_id(tmp_path: Path) -> None:
    done = pytest_in(tmp_path, "--layernorm-sweep", "ci", "--collect-only", "-q")
    listed = [line for line in done.stdout.splitlines() if "::" in line]
    assert "ci::two_pass/backward/512x768/bfloat16/normal" in listed
    on_cpu = [each for each in implementations.ALL if "cpu" in each.devices]
    assert len(listed) == len(set(listed)) == 96 + 8 + 24 * len(on_cpu)


@pytest.mark.parametrize(
    "chosen",
    [
        ("ci::native/forward/32x128/float32/normal",),
        ("-k", "forward/32x128/float32", "--layernorm-implementation", "native"),
    ],
    ids=" ".join,
)
def test_one_case_is_chosen_as_any_test_is(tmp_path: Path, chosen: tuple[str, ...]) -> None:
    done = pytest_in(tmp_path, "--layernorm-sweep", "ci", "--benchmark-disable", "-v", *chosen)
    assert "ci::native/forward/32x128/float32/normal PASSED" in done.stdout
    assert "1 passed" in done.stdout


@pytest.mark.parametrize(
    "asked",
    [
        (".", "--layernorm-sweep", "one.toml"),
        # what is in an ini file hides no tests
        ("-o", "addopts=--layernorm-sweep=one.toml"),
    ],
    ids=" ".join,
)
def test_with_paths_or_from_an_ini_file_the_cases_are_added_to_other_tests(
    tmp_path: Path, asked: tuple[str, ...]
) -> None:
    (tmp_path / "test_others.py").write_text("def test_other():\n    pass\n")
    one = '[[grids]]\nimplementations = ["native"]\nshapes = ["4x8"]\n'
    (tmp_path / "one.toml").write_text(one)
    done = pytest_in(tmp_path, *asked, "--collect-only", "-q")
    both = "test_others.py::test_other\none.toml::native/forward/4x8/float32/normal\n"
    assert done.stdout.startswith(both)


# --- what it must not do -------------------------------------------------------------------------


def test_loading_the_plugin_loads_nothing_else_of_weight() -> None:
    script = (
        "import sys, pytest; before = set(sys.modules); import layernorm_bench; "
        "print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['layernorm_bench']"


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
    ("arguments", "said"),
    [
        (("--layernorm-sweep", "cii"), "no preset named 'cii'; presets: "),
        (("--layernorm-implementation", "native"), "say which, such as --layernorm-sweep quick"),
        (
            ("--layernorm-sweep", "ci", "-p", "no:benchmark"),
            "--layernorm-sweep needs pytest-benchmark, which is not installed, or switched off",
        ),
    ],
    ids=["no such preset", "no sweep", "no pytest-benchmark"],
)
def test_what_cannot_be_run_is_a_sentence_and_no_test(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    done = pytest_in(tmp_path, *arguments)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert said in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


@pytest.mark.parametrize(
    ("sweep", "axes", "node_ids", "said"),
    [
        ("no.toml", {}, [], "no.toml: cannot be read: No such file or directory"),
        ("bad.toml", {}, [], "bad.toml:2: grids[0].shape: unknown key; did you mean 'shapes'?"),
        ("ci", {"implementations": ("nativ",)}, [], "no implementation named 'nativ'; did you"),
        ("ci", {"devices": ("tpu",)}, [], "--layernorm-device: no device named 'tpu'"),
        ("ci", {}, ["ci::native/x"], "no case ci::native/x; --collect-only -q lists those"),
    ],
)
def test_a_sweep_that_cannot_be_planned_says_why(
    tmp_path: Path, sweep: str, axes: dict[str, tuple[str, ...]], node_ids: list[str], said: str
) -> None:
    (tmp_path / "bad.toml").write_text('[[grids]]\nshape = ["4x8"]\n')
    config: Any = SimpleNamespace(
        args=node_ids,
        args_source=pytest.Config.ArgsSource.ARGS,
        invocation_params=SimpleNamespace(dir=tmp_path),
    )
    options = {"devices": "--layernorm-device"}
    with pytest.raises(SweepError, match=re.escape(said)):
        SweepTests.plan(config, sweep, axes, options=options, alone=True)


def test_the_threads_of_other_tests_stay_theirs() -> None:
    before = torch.get_num_threads()
    case = Case(implementation="native", shape=(4, 8), threads=before + 1)
    run_case(CaseRunner("here", Allocation.DEFAULT), case, None)
    assert torch.get_num_threads() == before


# --- on another device ---------------------------------------------------------------------------


class Rounds:
    """Stands for pytest-benchmark: calls three times."""

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
