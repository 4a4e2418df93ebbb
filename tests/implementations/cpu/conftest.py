"""The operator as it is built for other processors than this one."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from implementations import Implementation, cpu_recentred
from implementations.cpu import build, operators

# without AVX, and with AVX2 but without AVX-512; -O1 takes half as long to compile, and the vectors
# are written out in the source
MACHINES = ("-march=x86-64-v2 -O1", "-march=x86-64-v3 -O1")


@pytest.fixture
def unloaded() -> None:
    """Let the next call load the operator, as the first one does."""
    operators.load_operator.cache_clear()


@pytest.fixture(scope="session")
def machines() -> Iterator[dict[str, Implementation]]:
    """Yield the implementation built for each machine whose instructions this processor has."""
    is_x86 = platform.machine() == "x86_64"
    has_avx2 = is_x86 and torch.backends.cpu.get_cpu_capability() != "DEFAULT"
    built, kept = {"": cpu_recentred}, []
    with pytest.MonkeyPatch.context() as patch:
        for number, flags in enumerate(MACHINES if has_avx2 else MACHINES[:1] if is_x86 else ()):
            patch.setenv(build.FLAGS_VARIABLE, flags)
            build._built.cache_clear()
            kept.append(operators.define(f"layernorm_bench_test_{number}"))
            operator = operators.load_operator(f"layernorm_bench_test_{number}")
            built[flags] = replace(cpu_recentred, function=operator)
        build._built.cache_clear()
        yield built
