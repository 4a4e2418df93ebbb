"""Peers: a missing package is reported with its install command; unsupported calls are refused.

Of the packages of peers, only numpy must be installed.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from factories.fake_device import LocalFleet
from factories.peering import (
    ON_CPU,
    every_package,
    every_peer,
    package_of,
)
from torch import Tensor

from harness.cases import Grid, Sweep
from harness.cli import main
from harness.measure.environment import read_environment
from harness.records import (
    Allocation,
    Budget,
    Case,
    Measurement,
    Mode,
    Status,
    WarningKind,
)
from harness.run.case import CaseRunner
from harness.run.integrity import Trusted
from harness.run.session import plan
from harness.run.timing import refusal
from implementations import PEERS, Implementation, UnsupportedError, find
from implementations.peers import PACKAGES
from implementations.peers.peer import Package, environment

# --- the list ------------------------------------------------------------------------------------


def test_the_list_shows_what_peers_need() -> None:
    output = CliRunner().invoke(main, ["list", "implementations", "--json"]).output
    listed = json.loads(output)["implementations"]
    assert "needs apex, not installed" in listed["apex"]
    assert listed["apex"].endswith("(CUDA only)")
    assert "needs numpy" in listed["numpy"]
    assert "not installed" not in listed["numpy"]


def test_the_versions_of_peers_are_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.measure import environment as module

    monkeypatch.setattr(module, "_version", lambda package: f"1 of {package}")
    found = dict(read_environment().packages)
    assert found["flash-attn"] == "1 of flash-attn"
    assert {name for package in PACKAGES for name in package.distributions} <= found.keys()


def test_a_sweep_includes_only_peers_that_run_on_the_device() -> None:
    fleet = LocalFleet()
    fleet.info = replace(
        fleet.info,
        peers={norm.name: norm.devices for norm in PEERS},
        unavailable={},
        device_counts={"cpu": 1, "cuda": 1},
    )
    grid = Grid(implementations=("native", "peers"), devices=("cpu", "cuda"), shapes=((4, 8),))
    cases = [case.case for case in plan(Sweep(grids=(grid,)), fleet)]
    of_device = {
        kind: [case.implementation for case in cases if case.device == kind]
        for kind in ("cpu", "cuda")
    }
    for kind, names in of_device.items():
        assert names == ["native", *(norm.name for norm in PEERS if kind in norm.devices)]
        assert len(names) > 4


# --- packages ------------------------------------------------------------------------------------


@every_package
def test_a_missing_package_is_reported_with_its_install_command(
    package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package.module, None)  # makes its import fail
    with pytest.raises(UnsupportedError) as caught:
        package.load()
    assert str(caught.value) == f"needs {package.distributions[0]}: {package.install}"
    assert "pip install" in package.install or "https://" in package.install


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("peer", ON_CPU, ids=lambda norm: norm.name)
def test_a_peer_whose_package_is_missing_is_unsupported(
    peer: Implementation, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = package_of(peer)
    runner = CaseRunner("here", Allocation.DEFAULT, Trusted())  # which itself imports NumPy
    # and its submodules, which an earlier test may have imported
    for name in [
        package.module,
        *(module for module in sys.modules if module.startswith(f"{package.module}.")),
    ]:
        monkeypatch.setitem(sys.modules, name, None)
    case = Case(implementation=peer.name, shape=(4, 8))
    record = runner.run(case, [], Budget())
    assert record.status is Status.UNSUPPORTED
    assert record.reason == f"needs {package.distributions[0]}: {package.install}"


def test_another_package_of_the_same_name_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "apex.py").write_text("")  # like the other apex on PyPI, without apex.normalization
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "apex", None)  # monkeypatch removes the import after the test
    monkeypatch.delitem(sys.modules, "apex")
    package = package_of(find("apex"))
    with pytest.raises(UnsupportedError, match=r"apex cannot be imported .*apex\.normalization"):
        package.load("apex.normalization")


def test_a_version_without_a_needed_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "quack.rmsnorm", ModuleType("quack.rmsnorm"))
    monkeypatch.setitem(sys.modules, "quack", ModuleType("quack"))
    package = package_of(find("quack"))
    with pytest.raises(UnsupportedError, match=r"no quack\.rmsnorm\.layernorm_bwd: pip install -U"):
        package.load("quack.rmsnorm", "layernorm_bwd")


def test_an_environment_variable_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LNB_SET", "old")
    monkeypatch.delenv("LNB_UNSET", raising=False)
    with environment("LNB_SET", "new"), environment("LNB_UNSET", "new"):
        assert os.environ["LNB_SET"] == os.environ["LNB_UNSET"] == "new"
    assert os.environ["LNB_SET"] == "old"
    assert "LNB_UNSET" not in os.environ


# --- support -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "given", "why"),
    [
        ("liger", {}, "liger-kernel runs on cuda, x is on cpu"),
        ("numpy", {"x": torch.zeros(2, 4, dtype=torch.bfloat16)}, "numpy does not take bfloat16"),
        ("onnxruntime", {"weight": None}, "onnxruntime needs a weight"),
        (
            "openvino",
            {"bias": torch.zeros(4, dtype=torch.float64)},
            "openvino takes a bias of float32, not float64",
        ),
        ("numba", {"x": torch.zeros(2, 4, requires_grad=True)}, "numba has no gradient"),
        ("numpy", {"weight": torch.ones(4, requires_grad=True)}, "numpy has no gradient"),
    ],
)
def test_an_unsupported_call_is_refused(
    name: str, given: dict[str, Tensor | None], why: str
) -> None:
    supported: dict[str, Any] = {"x": torch.zeros(2, 4), "weight": torch.ones(4), "bias": None}
    call = {**supported, **given}
    with pytest.raises(UnsupportedError, match=why):
        find(name)(call["x"], (4,), call["weight"], call["bias"])
    if "gradient" in why:
        with torch.no_grad():
            find("numpy")(call["x"], (4,), call["weight"], call["bias"])


@every_peer
def test_mismatched_shapes_are_reported_before_all_other_problems(peer: Implementation) -> None:
    with pytest.raises(ValueError, match="normalized_shape"):
        peer(torch.zeros(2, 4), (5,))
    with pytest.raises(ValueError, match=r"weight has shape \[1\]"):
        peer(torch.zeros(2, 4), (4,), torch.ones(1))


def test_a_peer_outside_torch_has_no_compiled_mode_and_no_memory_count() -> None:
    numpy = find("numpy")
    assert numpy.outside_torch
    compiled = Case(implementation="numpy", shape=(4, 8), mode=Mode.COMPILED)
    assert "compile" in str(refusal(numpy, compiled))
    case = Case(implementation="numpy", shape=(4, 8))
    record = CaseRunner("here", Allocation.DEFAULT).run(case, [Measurement.MEMORY], Budget())
    assert (record.status, record.memory) == (Status.OK, None)
    assert [warning.kind for warning in record.warnings] == [WarningKind.MEMORY_NOT_COUNTED]
