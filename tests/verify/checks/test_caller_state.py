"""A call that changes the caller's state, or depends on its modes, is found."""

from __future__ import annotations

import gc
import os
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from factories.verify_targets import CASE, case_in, layer_norm, target, then
from torch import Tensor

from harness.run.integrity import process_state_restored
from harness.verify.checks.surroundings import (
    keeps_accuracy_under_autocast,
    records_no_unwanted_graph,
    restores_process_state,
)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda: torch.manual_seed(3), "torch's random"),
        (lambda: torch.rand(1), "torch's random"),
        (lambda: random.seed(3), "Python's random"),
        (lambda: np.random.seed(3), "NumPy's random"),
        (lambda: torch.set_default_dtype(torch.float64), "dtype"),
        (lambda: torch.set_num_threads(1), "threads"),
        (lambda: torch.set_flush_denormal(True), "subnormal"),
        (lambda: torch.use_deterministic_algorithms(True), "deterministic"),
        (lambda: torch.set_grad_enabled(False), "gradient recording"),
        (lambda: torch.set_default_device("meta"), "default device"),
        (lambda: torch.set_float32_matmul_precision("highest"), "float32 matrix products"),
        (lambda: torch.set_float32_matmul_precision("medium"), "float32 matrix products"),
        (lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True), "matrix products"),
        (lambda: setattr(torch.backends.cudnn, "allow_tf32", False), "TF32 in convolutions"),
        (lambda: setattr(torch.backends.cudnn, "deterministic", True), "deterministic mode"),
        (lambda: torch.set_autocast_enabled("cpu", True), "autocast on the CPU"),
        (lambda: torch.set_autocast_dtype("cuda", torch.bfloat16), "autocast on CUDA"),
        (lambda: torch.autograd.set_detect_anomaly(True), "anomaly mode"),
        (lambda: warnings.filterwarnings("ignore"), "filters of warnings"),
        (lambda: np.seterr(divide="raise"), "NumPy's error state"),
        (lambda: os.environ.pop("PATH", None), "environment variables"),
        (lambda: sys.path.append("/tmp"), "search path"),
        (lambda: sys.setrecursionlimit(5000), "recursion limit"),
        (gc.disable, "garbage collector"),
    ],
)
def test_a_changed_state_is_found_and_restored(change: Callable[[], object], name: str) -> None:
    def changing(*arguments: Any) -> Tensor:
        y = layer_norm(*arguments)
        change()
        return y

    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    environment, filters = dict(os.environ), list(warnings.filters)
    with process_state_restored():
        assert name in str(restores_process_state(target(changing, forward_only=True), CASE))
    assert (dict(os.environ), list(warnings.filters)) == (environment, filters)
    assert (torch.get_num_threads(), torch.get_default_dtype()) == (threads, dtype)
    assert torch.is_grad_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
    assert float(torch.tensor(1e-40) * 1)


def test_a_state_that_the_target_restores_is_not_changed() -> None:
    def careful(*arguments: Any) -> Tensor:
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(0)
        return layer_norm(*arguments)

    assert restores_process_state(target(careful), CASE) is None


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        (lambda y: y.detach().requires_grad_(), "torch.no_grad()"),
        (lambda y: y.requires_grad_() if torch.is_grad_enabled() else y, "no input does"),
    ],
)
def test_an_unwanted_gradient_is_found(change: Callable[[Tensor], Tensor], fact: str) -> None:
    assert fact in str(records_no_unwanted_graph(target(then(change)), CASE))


def test_accuracy_lost_under_autocast_is_found_in_float32() -> None:
    def multiplying(x: Tensor, shape: Any, *others: Any) -> Tensor:
        return layer_norm((x @ torch.eye(x.shape[-1], dtype=x.dtype)).to(x.dtype), shape, *others)

    assert keeps_accuracy_under_autocast(target(multiplying), CASE) is not None
    assert keeps_accuracy_under_autocast(target(multiplying), case_in("float16")) is None
