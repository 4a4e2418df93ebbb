"""The contract checks, by topic; :mod:`harness.verify.checks.contract_checks` runs them."""

from __future__ import annotations

# isort: off
# in the order in which they are run
from harness.verify.checks import memory, arguments, surroundings, honesty, extremes, gradients

__all__ = ["arguments", "extremes", "gradients", "honesty", "memory", "surroundings"]
