"""From cases to records: one case in a worker process, all of them from the parent.

A module is imported when one of its names is used: the parent of a run never imports torch, and a
worker needs neither sweeps nor files. :func:`harness.run.attempt.attempt` has the name of its
module, so it is imported from there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.records.lazy import names_in

if TYPE_CHECKING:
    from harness.run.attempt import ExactResults, Judged, exact_of, threads
    from harness.run.call import (
        ContractViolationError,
        ImplementationError,
        bind,
        checked,
        function_of,
        grad_mode,
        guarded,
        refuses,
        run_once,
    )
    from harness.run.case import CaseRunner
    from harness.run.fleet import (
        ENOUGH_PROCESSES,
        START_S,
        TIMINGS,
        EndedError,
        Fleet,
        HarnessError,
        Job,
        WorkerInfo,
        is_enough,
        merged,
        run_case,
        usable_gpus,
        why_unresolved,
        worker_info,
    )
    from harness.run.instructions import count_instructions
    from harness.run.integrity import TamperingError, Trusted, observed
    from harness.run.recheck import Draws, Timed, reuse, run_again
    from harness.run.session import (
        JobQueue,
        Session,
        SessionOutcome,
        cases_on,
        missing_jobs,
        plan,
        refuse_unresolved,
        run_session,
    )
    from harness.run.state import (
        process_state,
        process_state_restored,
        set_caller_state,
        set_other_state,
        set_usual_state,
        settings_restored,
    )
    from harness.run.timing import model_bytes, refusal, result_bytes, time_case, timed_calls_of

__all__ = [
    "ENOUGH_PROCESSES",
    "START_S",
    "TIMINGS",
    "CaseRunner",
    "ContractViolationError",
    "Draws",
    "EndedError",
    "ExactResults",
    "Fleet",
    "HarnessError",
    "ImplementationError",
    "Job",
    "JobQueue",
    "Judged",
    "Session",
    "SessionOutcome",
    "TamperingError",
    "Timed",
    "Trusted",
    "WorkerInfo",
    "bind",
    "cases_on",
    "checked",
    "count_instructions",
    "exact_of",
    "function_of",
    "grad_mode",
    "guarded",
    "is_enough",
    "merged",
    "missing_jobs",
    "model_bytes",
    "observed",
    "plan",
    "process_state",
    "process_state_restored",
    "refusal",
    "refuse_unresolved",
    "refuses",
    "result_bytes",
    "reuse",
    "run_again",
    "run_case",
    "run_once",
    "run_session",
    "set_caller_state",
    "set_other_state",
    "set_usual_state",
    "settings_restored",
    "threads",
    "time_case",
    "timed_calls_of",
    "usable_gpus",
    "why_unresolved",
    "worker_info",
]

__getattr__ = names_in(__name__, __file__)
