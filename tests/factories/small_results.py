"""Results without a figure, whose page is quickly made, and the blocks of a section as text."""

from __future__ import annotations

from dataclasses import replace

from factories.results_factory import make_run
from harness.records import Case, Record, Status
from harness.report.document import Section
from harness.report.frame import gather
from harness.store import Results

CASE = Case(implementation="native", shape=(4, 8))
FAILED = Record(case=CASE, environment="elsewhere", status=Status.TIMEOUT, reason="too slow")

SMALL = Results(records=(FAILED,), runs=(make_run(),), environments={})


def shown(section: Section, results: Results, *records: Record) -> str:
    """Return the blocks of a section for ``records``, by default those of the results, as text."""
    return repr(section(gather([replace(results, records=records) if records else results])))
