"""What the page's script is given: columns and commands; and the page's policy."""

from __future__ import annotations

import json
import re
import shlex
from base64 import b64encode
from dataclasses import replace
from functools import partial
from hashlib import sha256
from math import inf

import pytest
from factories.results_factory import make_record, make_results
from factories.small_results import CASE, SMALL

from harness.cases import expand
from harness.cases.axes import sweep_axes
from harness.cases.inputs import NAMED
from harness.cli.options import SweepChoice, given_axes
from harness.cli.run import run
from harness.records import Affine, Autograd, Case, Direction, Mode
from harness.report import build_page
from harness.report.document import script_json
from harness.report.frame import gather
from harness.report.provenance import case_data, command_rest
from harness.store import Results

PLAIN = Case(implementation="two_pass", shape=(64, 768))
ODD = Case(
    implementation="some/where.py:norm",
    mode=Mode.COMPILED,
    shape=(2, 3, 4),
    normalized_dims=2,
    dtype="bfloat16",
    param_dtype="float32",
    distribution="offset_1e3",
    layout="transposed",
    direction=Direction.BACKWARD,
    autograd=Autograd.FROZEN_X,
    grad_output="ones",
    affine=Affine.WEIGHT,
    parameters="ones_weight",
    eps=1e-12,
    threads=2,
    seed=7,
)


@pytest.mark.parametrize("case", [PLAIN, ODD], ids=["plain", "odd"])
def test_the_command_of_a_case_runs_this_case_alone(case: Case) -> None:
    record = make_record(case)
    command = (
        f"-i {case.implementation} --shape {'x'.join(map(str, case.shape))} --dtype {case.dtype} "
        f"--distribution {case.distribution} --direction {case.direction} {command_rest(record)}"
    )
    given = run.make_context("run", shlex.split(command)).params
    choice = SweepChoice(given_axes({axis.key: given[axis.key] for axis in sweep_axes()}))
    planned = expand(
        choice.load(),
        implementations={},
        names=NAMED,
        devices={"cpu": None},
    )
    assert [planned_case.case for planned_case in planned] == [case]


# --- more cases than a page can hold --------------------------------------------------------------


def test_of_too_many_cases_the_worst_are_shown_and_the_file_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many = make_results(2000, devices=["cpu"], dtypes=["float32"])
    found = gather([many])
    data = case_data(found, most=900)
    assert data["count"] <= 900
    assert set(data["texts"]["status"]["words"]) == set(found.cases["status"])
    few = partial(case_data, most=100)
    monkeypatch.setattr("harness.report.provenance.case_data", few)
    page = build_page([many], files=["results/many.parquet"])
    assert "cases are too many for a page" in page
    assert "results/many.parquet" in page


# --- policy -----------------------------------------------------------------------------------


def test_the_policy_allows_the_script_of_the_page_and_nothing_else(page: str) -> None:
    found = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert found
    policy = dict(word.split(" ", 1) for word in found[1].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["style-src"] == "'unsafe-inline'"
    assert "http" not in found[1]
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert (
        policy["script-src"] == f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"
    )
    assert not re.search(r"<[^>]* on\w+=", page)


def test_an_infinite_number_becomes_a_text_and_a_missing_one_null() -> None:
    record = make_record(CASE)
    assert record.errors is not None
    output = replace(record.errors.outputs[0], scaled_max_ulp=inf, bound_ratio=inf)
    errors = replace(record.errors, outputs=(output,), condition_max_ratio=inf)
    lost = replace(record, errors=errors, latency=None)
    data = case_data(gather([replace(SMALL, records=(lost,))]))
    assert data["numbers"]["error_ulp"] == ["inf"]
    assert data["numbers"].get("latency_s") is None
    json.loads(script_json(data), parse_constant=pytest.fail)


def test_ids_can_be_joined_again_from_the_columns(results: Results) -> None:
    odd = Case(
        implementation="some/where.py:norm",
        mode=Mode.COMPILED,
        shape=(2, 3, 4),
        normalized_dims=2,
        device="cuda",
        seed=7,
    )
    findings = gather([replace(results, records=(make_record(odd), *results.records))])
    texts = case_data(findings)["texts"]

    def word(name: str, row: int) -> str:
        return texts[name]["words"][texts[name]["codes"][row]]

    axes = ("implementation", "direction", "shape", "dtype", "distribution")
    for row, record in enumerate(findings.records):
        parts = [word(name, row).replace("×", "x") for name in axes]
        assert "/".join(parts) + word("id_rest", row) == record.case.id
