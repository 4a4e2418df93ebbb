"""Results of one case that failed, whose page is quickly made."""

from __future__ import annotations

from factories.results_factory import make_run
from harness.records import Case, Record, Status
from harness.store import Results

CASE = Case(implementation="native", shape=(4, 8))
FAILED = Record(case=CASE, environment="elsewhere", status=Status.TIMEOUT, reason="too slow")
SMALL = Results(records=(FAILED,), runs=(make_run(),), environments={})
