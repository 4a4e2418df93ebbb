"""The check of the current stream, on a fake of two streams that do not wait for each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from factories.known_functions import good
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from harness.cases import make_inputs
from harness.records import Case
from harness.verify.cases import first_case
from harness.verify.checks import calls, surroundings
from harness.verify.checks.surroundings import works_on_the_current_stream
from implementations import adopt, find

SIDE, DEFAULT = "side", "default"
ON_CPU = first_case("implementation", "float32", "cpu")
CASE = replace(ON_CPU, device="cuda")


class Streams(TorchDispatchMode):
    """Two streams; work on the default one sees no copy made on the other since the last wait."""

    def __init__(self) -> None:
        super().__init__()
        self.current = DEFAULT
        self.overwritten: list[tuple[Tensor, Tensor]] = []
        """Tensors that the side stream has written to, and what they held before."""

    def __torch_dispatch__(
        self, operator: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        if self.current == SIDE and operator is torch.ops.aten.copy_.default:
            self.overwritten.append((arguments[0], arguments[0].clone()))
        is_early = self.current == DEFAULT
        written = [(tensor, tensor.clone()) for tensor, _ in self.overwritten if is_early]
        for tensor, old in self.overwritten if is_early else ():
            tensor.copy_(old)
        try:
            return operator(*arguments, **(options or {}))
        finally:
            for tensor, new in written:
                tensor.copy_(new)

    @contextmanager
    def on(self, stream: str) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def wait(self) -> None:
        self.overwritten.clear()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Streams]:
    with Streams() as made:
        monkeypatch.setattr(torch.cuda, "Stream", lambda: SIDE)
        monkeypatch.setattr(torch.cuda, "default_stream", lambda: DEFAULT)
        monkeypatch.setattr(torch.cuda, "stream", made.on)
        monkeypatch.setattr(torch.cuda, "synchronize", made.wait)

        def on_cpu(case: Case) -> Any:
            return make_inputs(replace(case, device="cpu"))

        monkeypatch.setattr(calls, "make_inputs", on_cpu)
        monkeypatch.setattr(surroundings, "spin", lambda cycles: None)
        yield made


def on_default_stream(*arguments: Any) -> Tensor:
    with torch.cuda.stream(torch.cuda.default_stream()):
        return good(*arguments)


def on_default_stream_after_a_wait(*arguments: Any) -> Tensor:
    torch.cuda.synchronize()
    return on_default_stream(*arguments)


class _BackwardOnDefaultStream(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.save_for_backward(x, *parameters)
        return good(x, x.shape[-1:], *parameters)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        with torch.enable_grad(), torch.cuda.stream(torch.cuda.default_stream()):
            leaves = [each.detach().requires_grad_() for each in ctx.saved_tensors]
            y = good(leaves[0], dy.shape[-1:], *leaves[1:])
            return torch.autograd.grad(y, leaves, dy)


def backward_on_default_stream(x: Tensor, shape: Any, *rest: Any) -> Tensor:
    y: Tensor = _BackwardOnDefaultStream.apply(x, *rest[:2])
    return y


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (good, None),
        (find("two_pass").function, None),
        (on_default_stream_after_a_wait, None),
        (on_default_stream, "y"),
        (backward_on_default_stream, "dx"),
    ],
    ids=["native", "two_pass", "after a wait", "forward", "backward"],
)
def test_work_on_another_stream_than_the_current_one_is_found(
    fake: Streams, function: Callable[..., Tensor], name: str | None
) -> None:
    found = works_on_the_current_stream(adopt(function, "implementation"), CASE)
    assert (found is None) == (name is None)
    if name is not None:
        assert str(found).startswith(f"computes {name} before")
    assert fake.overwritten == []  # it has waited for everything


def test_a_cpu_has_no_streams() -> None:
    assert works_on_the_current_stream(adopt(on_default_stream, "implementation"), ON_CPU) is None
