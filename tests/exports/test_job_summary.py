"""GitHub's job summary: the worst first, within the limit, and text that stays text."""

from __future__ import annotations

import re

import pytest
from compared_runs import STEADY, failed, make_case, make_latency, make_record, results_of
from exported import RATIO, change_of, comparison_of, one_of_each

from harness.exports.job_summary import (
    LIMIT_BYTES,
    summary_of_comparison,
    summary_of_refusal,
    summary_of_run,
)
from harness.records import Status
from harness.regression.changes import ChangeKind


def rows(summary: str) -> list[str]:
    """The rows of all tables, without their heads."""
    lines = [each for each in summary.splitlines() if each.startswith("| ")]
    return [each for each in lines if not each.startswith("| case |")]


def cells(row: str) -> list[str]:
    """Split a row as GitHub does: at every pipe without a backslash before it."""
    return [each.strip() for each in re.split(r"(?<!\\)\|", row)[1:-1]]


def test_the_verdict_is_the_heading() -> None:
    bad = summary_of_comparison(one_of_each())
    assert bad.startswith("## layernorm-bench: ❌ 2 cases got worse\n")
    good = summary_of_comparison(comparison_of(change_of(ChangeKind.UNCHANGED)))
    assert good.startswith("## layernorm-bench: ✅ no case got worse\n")
    assert "new.parquet against old.parquet: 1 unchanged" in good
    unsure = summary_of_comparison(comparison_of(change_of(ChangeKind.INCONCLUSIVE)))
    assert unsure.startswith("## layernorm-bench: ⚠️ no case could be judged in full\n")


def test_failures_are_open_and_first_the_others_folded_and_the_same_counted() -> None:
    found = summary_of_comparison(one_of_each())
    headings = re.findall(r"^(?:### |<details><summary>)([^(<\n]+)", found, re.MULTILINE)
    kinds = ["regressed", "slower", "inconclusive", "not comparable", "gone", "new"]
    kinds += ["improved", "faster"]
    assert headings == [f"1 {kind}" for kind in kinds]
    assert found.index("### 1 slower") < found.index("<details><summary>1 inconclusive")
    assert found.count("<details>") == found.count("</details>") == 6
    assert "- it rains" in found


def test_a_ratio_is_told_with_its_interval() -> None:
    (row,) = rows(summary_of_comparison(comparison_of(change_of(ChangeKind.SLOWER, ratio=RATIO))))
    assert cells(row)[1] == "1.250 (1.200 to 1.300)"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a|b", "a\\|b"),
        ("`code`", "\\`code\\`"),
        ("a\\|b", "a\\\\\\|b"),
        ("<img src=x>", "\\<img src=x\\>"),
        ("*bold* _it_ two_pass", "\\*bold\\* \\_it\\_ two_pass"),
        ("two\nlines\r\nand\ttabs", "two lines and tabs"),
        ("[a](b) #1 ~~x~~ &amp;", "\\[a\\](b) \\#1 \\~\\~x\\~\\~ \\&amp;"),
        ("lost \udcff", "lost \\\\udcff"),
    ],
)
def test_text_stays_text_and_in_its_cell(text: str, shown: str) -> None:
    summary = summary_of_comparison(comparison_of(change_of(ChangeKind.REGRESSED, text)))
    (row,) = rows(summary)
    assert row == f"| {make_case(rows=0).id} | – | {shown} |"
    assert summary.encode()


def test_it_keeps_within_the_limit_and_says_what_was_left_out() -> None:
    count = 9000
    changes = [change_of(ChangeKind.REGRESSED, "µ" * 100, number) for number in range(count)]
    found = summary_of_comparison(comparison_of(*changes), rest="all are in junit.xml")
    assert LIMIT_BYTES * 0.99 < len(found.encode()) <= LIMIT_BYTES
    (left,) = re.findall(r"^(\d+) cases more for which there is no room here; (.+)$", found, re.M)
    assert left[1] == "all are in junit.xml"
    assert len(rows(found)) + int(left[0]) == count
    assert rows(found)[0] == f"| {make_case(rows=0).id} | – | {'µ' * 100} |"


def test_what_is_cut_is_the_least_bad() -> None:
    changes = [change_of(ChangeKind.REGRESSED), change_of(ChangeKind.NEW, "n" * 2000, 1)]
    found = summary_of_comparison(comparison_of(*changes), limit_bytes=2500)
    assert len(found.encode()) <= 2500
    assert "### 1 regressed" in found
    assert "1 new</summary>" not in found
    assert "1 case more for which there is no room here\n" in found


def test_where_there_is_no_room_for_the_verdict_there_is_none() -> None:
    assert summary_of_comparison(one_of_each(), limit_bytes=100) == ""


def test_a_refusal_is_a_failure_in_words() -> None:
    found = summary_of_refusal("base_.parquet: no such file")
    assert found.startswith("## layernorm-bench: ❌ nothing was compared")
    assert "base\\_.parquet: no such file" in found


def test_a_run_tells_its_figures_and_its_bad_cases_first() -> None:
    fine, wrong = make_record(make_case(rows=1), STEADY), failed(status=Status.WRONG)
    found = summary_of_run(results_of(fine, wrong), "run.parquet")
    assert found.startswith("## layernorm-bench: ❌ 1 wrong, 1 ok\n\nrun.parquet\n")
    assert found.index("### 1 wrong") < found.index("<details><summary>1 ok</summary>")
    first, second = rows(found)
    assert cells(first) == [wrong.case.id, "–", "–", "–", "why"]
    assert cells(second)[0] == fine.case.id
    assert cells(second)[1].endswith(" ulp in y")
    assert cells(second)[2:4] == ["100 µs", "1.000 (0.997 to 1.003)"]


def test_a_time_that_is_not_believed_is_said_not_to_be() -> None:
    record = make_record(latency=make_latency(is_valid=False))
    (row,) = rows(summary_of_run(results_of(record), "run.parquet"))
    assert cells(row)[2] == "100 µs (not believed)"


@pytest.mark.parametrize("status", [Status.UNSUPPORTED, Status.TIMEOUT])
def test_a_run_in_which_nothing_was_measured_is_no_success(status: Status) -> None:
    found = summary_of_run(results_of(failed(status=status)), "run")
    assert found.startswith(f"## layernorm-bench: ❌ 1 {status}")


def test_a_run_that_was_cut_short_is_no_success() -> None:
    found = summary_of_run(results_of(make_record(), planned=2), "run")
    assert found.startswith("## layernorm-bench: ❌ 1 ok")
    assert "- the run was cut short: 1 of its 2 cases are there" in found


def test_a_run_of_right_cases_is_a_success() -> None:
    assert summary_of_run(results_of(make_record()), "run").startswith(
        "## layernorm-bench: ✅ 1 ok"
    )
