"""The verdicts against a baseline on the page."""

from dataclasses import replace

from factories.compared_runs import make_case, make_record, results_of

from harness.regression import compare_as_stored
from harness.report import build_page

STEADY = make_record(make_case("native"))
LEAKING = make_record(make_case("two_pass"))


def verdicts_of(head_bytes: int) -> str:
    """Return the section of a page of a run whose second case takes this much memory."""
    assert LEAKING.memory is not None
    memory = replace(LEAKING.memory, peak_extra_bytes=head_bytes)
    before, after = results_of(STEADY, LEAKING), results_of(STEADY, replace(LEAKING, memory=memory))
    comparison = compare_as_stored(before, after, ("base.parquet", "run.parquet"))
    page = build_page([after], comparison=comparison)
    return page.partition('<section id="gate_verdicts"')[2].partition("</section>")[0]


def test_a_regression_is_named_with_its_figures() -> None:
    assert LEAKING.memory is not None
    section = verdicts_of(2 * LEAKING.memory.peak_extra_bytes)
    assert "1 case got worse." in section
    assert "run.parquet against base.parquet" in section
    rows = section.partition("<tbody>")[2].replace("<wbr>", "")
    assert LEAKING.case.id in rows
    assert STEADY.case.id not in rows


def test_an_unchanged_run_says_so_without_a_table() -> None:
    assert LEAKING.memory is not None
    section = verdicts_of(LEAKING.memory.peak_extra_bytes)
    assert "No case got worse" in section
    assert "<table" not in section
