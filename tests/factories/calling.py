"""Functions that change y or raise, and small cases of each direction to call them on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from torch import Tensor

from factories.known_functions import good
from harness.records import Case, Direction

FORWARD = Case(implementation="implementation", shape=(4, 6))
BACKWARD = Case(implementation="implementation", shape=(4, 6), direction=Direction.BACKWARD)
TRAINING = Case(implementation="implementation", shape=(4, 6), direction=Direction.FORWARD_BACKWARD)
Function = Callable[..., Any]


def changed(change: Callable[[Tensor], object]) -> Function:
    """Return an implementation that changes y before returning it."""
    return lambda *arguments: change(good(*arguments))


def raising(error: BaseException) -> Function:
    def function(*arguments: object) -> NoReturn:
        raise error

    return function
