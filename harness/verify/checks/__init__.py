"""The contract checks, by topic; :mod:`harness.verify.checks.contract_checks` runs them."""

from __future__ import annotations

# isort: off
# in the order in which they are run
from harness.verify.checks import (
    memory, arguments, surroundings, modules, protocol, constructors, honesty, extremes, gradients,
    transforms, huge,
)  # fmt: skip

# isort: on
from harness.verify.checks.calls import Call
from harness.verify.checks.contract_checks import CHECKS, contract_findings

__all__ = [
    "CHECKS",
    "Call",
    "arguments",
    "constructors",
    "contract_findings",
    "extremes",
    "gradients",
    "honesty",
    "huge",
    "memory",
    "modules",
    "protocol",
    "surroundings",
    "transforms",
]
