"""The cases of a sweep as tests of pytest: which, the outcome of each, and its timing."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from shutil import copy
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from factories import failing_targets
from factories.commanding import call
from factories.fake_device import FakeDevice
from factories.python_process import pytest_in
from factories.small_cases import CASE

from harness.cases import make_inputs
from harness.cli.pytest_sweep import time_with
from harness.records import Direction, Status
from harness.store import read
from implementations import native

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
TIMED = {name for name, (kind, _) in OUTCOMES.items() if kind == "passed" and "4x8" in name}


def pytest_beside(folder: Path, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run pytest in ``folder`` beside another test, with warnings as errors."""
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    (folder / "test_others.py").write_text(
        "import sys\ndef test_other(pytestconfig):\n"
        "    assert pytestconfig.pluginmanager.hasplugin('layernorm_bench')\n"
        "    assert not {'torch', 'harness.cli.pytest_sweep'} & set(sys.modules)\n"
    )
    return pytest_in(folder, *arguments, **more)


# --- the outcome of a case -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """The files and the output of one run of pytest on a sweep with every kind of outcome."""
    folder = tmp_path_factory.mktemp("sweep")
    copy(failing_targets.__file__, folder / "subjects.py")
    (folder / "tiny.toml").write_text(SWEEP)
    options = (
        "--layernorm-sweep", "tiny.toml", "--benchmark-max-time=0.01", "--benchmark-min-rounds=2",
        "-v", "--junitxml=found.xml", "--benchmark-json=found.json",
    )  # fmt: skip
    done = pytest_beside(folder, *options)
    return SimpleNamespace(folder=folder, text=done.stdout + done.stderr)


def test_the_tests_are_the_cases_and_the_status_of_a_case_is_the_outcome(
    session: SimpleNamespace,
) -> None:
    outcomes = {}
    for test in ElementTree.parse(session.folder / "found.xml").iter("testcase"):
        ((kind, message),) = [(i.tag, i.get("message", "")) for i in test] or [("passed", "")]
        name = test.get("name", "")
        outcomes[name] = kind, message[: len(OUTCOMES[name][1])]
    assert outcomes == OUTCOMES
    assert f"{len(OUTCOMES)} cases of tiny.toml; no other tests" in session.text
    assert "UserWarning: this is slow" in session.text


def test_the_file_holds_the_right_cases_that_were_timed(session: SimpleNamespace) -> None:
    call("import", str(session.folder / "found.json"), "--out", "found.parquet")
    records = {record.case.id: record for record in read(Path("found.parquet")).records}
    assert {id_ for id_, record in records.items() if record.status is Status.OK} == TIMED
    record = records["native/forward+backward/4x8/float32/normal"]
    assert record.latency.timer == "pytest-benchmark:perf_counter"
    # x twice, dy, y and dx of 128 bytes; weight twice, bias, dweight and dbias of 32
    assert record.latency.model_bytes == 5 * 128 + 5 * 32


def test_a_call_on_a_gpu_ends_when_the_gpu_has_done_its_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device, waited = FakeDevice(), list[None]()
    monkeypatch.setattr(device, "synchronize", lambda: waited.append(None))
    given: Any = (native.function, replace(CASE, device="cuda"), make_inputs(CASE), device)
    time_with(lambda call: call(), *given)
    assert len(waited) == 1


# --- which cases, and which other tests ----------------------------------------------------------


ONE_CASE = "ci::native/forward/32x128/float32/normal"


def test_cases_are_selected_by_node_id_and_k_like_any_test(tmp_path: Path) -> None:
    options = ("--layernorm-sweep", "ci", "--layernorm-implementation", "native", "-v")
    others = (ONE_CASE.replace("/forward/", "/backward/"), "-k", "forward/32x128/float32")
    names = (ONE_CASE, *others, "test_others.py")
    done = pytest_beside(tmp_path, *options, *names, "--benchmark-disable")
    assert f"{ONE_CASE} PASSED" in done.stdout
    assert "1 passed, 2 deselected" in done.stdout  # of them one of another file


def test_without_the_option_nothing_is_added_and_nothing_imported(tmp_path: Path) -> None:
    assert "1 passed" in pytest_beside(tmp_path).stdout


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        ("--layernorm-sweep cii", "no preset named 'cii'"),
        ("--layernorm-implementation native", "--layernorm-sweep quick"),
        ("--layernorm-sweep ci -p no:benchmark", "needs pytest-benchmark"),
        ("--layernorm-sweep ci ci::native/x", "no case ci::native/x"),
    ],
)
def test_wrong_use_is_one_line_and_no_test(tmp_path: Path, arguments: str, fact: str) -> None:
    done = pytest_beside(tmp_path, *arguments.split(), code=pytest.ExitCode.USAGE_ERROR)
    assert fact in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
