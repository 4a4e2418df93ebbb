"""Run one case to its record: verify it on the timed inputs, then time it and count its memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

import implementations
from harness.inputs import UnrepresentableError
from harness.measure.allocator import use_steady_allocation
from harness.numerics.computed import ContractViolationError, ImplementationError, grad_mode
from harness.records import Allocation, Budget, Case, Errors, Measurement, Record, Status
from harness.run.case_steps import CaseRun
from harness.run.integrity import Trusted
from harness.run.resources import Resources
from implementations.contract import Implementation

__all__ = ["CaseRunner"]


class CaseRunner:
    """Runs cases one after the other in this process.

    Args:
        environment: fingerprint, for the records.
        allocation: how the process gets memory; None has the allocator reuse pages.
        trusted: taken before any target was imported; None for one per case, which shows only what
            changes during the case.
    """

    def __init__(
        self,
        environment: str,
        allocation: Allocation | None = None,
        trusted: Trusted | None = None,
    ) -> None:
        self.environment, self._trusted = environment, trusted
        self._resources = Resources(allocation or use_steady_allocation())

    @property
    def trusted(self) -> Trusted:
        """What measures and judges the targets of this process."""
        return self._trusted or Trusted()

    @property
    def measured_errors(self) -> Mapping[bytes, Errors]:
        """The errors that were measured for the last case, for :meth:`learn` of another process."""
        return self._resources.measured

    def learn(self, errors: Mapping[bytes, Errors]) -> None:
        """Take errors that another process has measured: equal outputs are not judged again."""
        self._resources.learn(errors)

    def run(
        self,
        case: Case,
        measurements: Collection[Measurement],
        budget: Budget,
        find: Callable[[str], Implementation] = implementations.find,
    ) -> Record:
        """Run ``case`` to its record; errors are always measured, the rest only if asked for.

        An exception of the implementation becomes the record's status; an exception in the harness
        is a bug and propagates.
        """
        with self.begin(case) as run:
            run.verify(run.trusted.imported(case.implementation, find))
            for measurement in (Measurement.LATENCY, Measurement.COLD):
                if measurement in measurements:
                    run.time(budget, measurement)
            if Measurement.MEMORY in measurements:
                run.count_memory()
        return run.record

    @contextmanager
    def begin(self, case: Case) -> Iterator[CaseRun]:
        """Return a context in which the steps of a case run; it completes the record on exit.

        An exception of the implementation ends the steps and becomes the status of the record.
        """
        self._resources.measured.clear()
        run = CaseRun(case, self.environment, self._resources, self.trusted)
        try:
            with grad_mode(case):
                yield run
        except UnrepresentableError as error:
            run.end(Status.UNSUPPORTED, str(error))
        except implementations.TargetError as error:
            run.end(Status.ERROR, str(error))
        except ImplementationError as error:
            run.end(error.status, error.reason)
        except ContractViolationError as error:
            run.end(Status.WRONG, str(error))
        else:
            run.end()
