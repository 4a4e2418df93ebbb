"""The contract checks, by topic; :mod:`harness.verify.checks.contract_checks` runs them."""

from __future__ import annotations

# isort: off
# in the order in which they are run
from harness.verify.checks import memory, arguments, surroundings, honesty, gradients, huge

# isort: on
from harness.verify.checks.calls import Call
from harness.verify.checks.contract_checks import CHECKS, contract_findings

__all__ = [
    "CHECKS",
    "Call",
    "arguments",
    "contract_findings",
    "gradients",
    "honesty",
    "huge",
    "memory",
    "surroundings",
]
