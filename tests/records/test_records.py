"""Cases and environments: stable ids, derived shapes, fingerprints that tell machines apart."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.records import Affine, Case, Direction, Environment, Gpu, Mode, Status

CASE = Case(implementation="native", shape=(8, 64))

ENVIRONMENT = Environment(
    cpu="Some CPU",
    cpu_count=2,
    cpu_capability="AVX2",
    memory_bytes=1 << 33,
    platform="Linux",
    python="3.11.7",
    packages=(("numpy", "2.4.6"), ("torch", "2.13.0")),
    compiler="g++ 12",
    gpus=(),
    nvml="NVML unavailable: no driver",
    git_commit="1" * 40,
    git_dirty=False,
    load_average=0.1,
)


@pytest.mark.parametrize(
    ("case", "golden"),
    [
        (CASE, "native/forward/8x64/float32/normal"),
        (
            Case(
                implementation="welford",
                shape=(4, 3, 5),
                normalized_dims=2,
                dtype="bfloat16",
                param_dtype="bfloat16",
                device="cuda",
                distribution="offset_1e3",
                direction=Direction.FORWARD_BACKWARD,
                mode=Mode.COMPILED,
            ),
            "welford/forward+backward/4x3x5/bfloat16/offset_1e3/compiled/cuda/dims=2",
        ),
        (
            Case(
                implementation="pkg.module:norm",
                shape=(7,),
                dtype="float16",
                param_dtype="float32",
                layout="padded_rows",
                direction=Direction.BACKWARD,
                affine=Affine.NONE,
                eps=1e-12,
                threads=2,
                seed=3,
            ),
            "pkg.module:norm/backward/7/float16/normal/params=float32/layout=padded_rows"
            "/affine=none/eps=1e-12/threads=2/seed=3",
        ),
    ],
)
def test_an_id_never_changes(case: Case, golden: str) -> None:
    assert case.id == golden


@pytest.mark.parametrize(
    "change",
    [
        {"implementation": "welford"},
        {"mode": Mode.COMPILED},
        {"shape": (64, 8)},
        {"shape": (8, 8, 8)},
        {"normalized_dims": 2},
        {"dtype": "float64"},
        {"param_dtype": "float64"},
        {"device": "cuda"},
        {"distribution": "constant"},
        {"layout": "transposed"},
        {"direction": Direction.BACKWARD},
        {"affine": Affine.WEIGHT},
        {"affine": Affine.BIAS},
        {"eps": 0.0},
        {"threads": 2},
        {"seed": 1},
    ],
    ids=str,
)
def test_every_field_of_a_case_shows_in_its_id(change: dict[str, object]) -> None:
    assert replace(CASE, **change).id != CASE.id


cases = st.builds(
    Case,
    implementation=st.sampled_from(["a", "b"]),
    mode=st.sampled_from(Mode),
    shape=st.lists(st.integers(1, 12), min_size=1, max_size=3).map(tuple),
    normalized_dims=st.integers(1, 3),
    dtype=st.sampled_from(["float32", "float64"]),
    param_dtype=st.sampled_from(["float32", "float64"]),
    device=st.sampled_from(["cpu", "cuda"]),
    distribution=st.sampled_from(["normal", "constant"]),
    layout=st.sampled_from(["contiguous", "transposed"]),
    direction=st.sampled_from(Direction),
    affine=st.sampled_from(Affine),
    eps=st.sampled_from([0.0, 1e-5, 1e-6]),
    threads=st.integers(1, 3),
    seed=st.integers(0, 3),
)


@given(cases, cases)
def test_ids_are_equal_exactly_when_cases_are(one: Case, other: Case) -> None:
    assert (one.id == other.id) == (one == other)


@pytest.mark.parametrize(
    ("shape", "dims", "normalized", "rows", "hidden"),
    [
        ((8, 64), 1, (64,), 8, 64),
        ((2, 3, 5), 1, (5,), 6, 5),
        ((2, 3, 5), 2, (3, 5), 2, 15),
        ((2, 3, 5), 3, (2, 3, 5), 1, 30),
        ((7,), 1, (7,), 1, 7),
        ((0, 4), 1, (4,), 0, 4),
        ((3, 0), 1, (0,), 3, 0),
    ],
)
def test_rows_share_a_mean_over_the_normalised_axes(
    shape: tuple[int, ...], dims: int, normalized: tuple[int, ...], rows: int, hidden: int
) -> None:
    case = Case(implementation="native", shape=shape, normalized_dims=dims)
    assert (case.normalized_shape, case.rows, case.hidden) == (normalized, rows, hidden)


def test_a_status_is_measured_or_a_failure_or_neither() -> None:
    assert {each for each in Status if each.is_failure} == {
        Status.TIMEOUT,
        Status.CRASHED,
        Status.ERROR,
    }
    assert {each for each in Status if each.is_measured} == {
        Status.OK,
        Status.WRONG,
        Status.OUT_OF_GUARANTEE,
    }


@pytest.mark.parametrize(
    "change",
    [
        {"git_commit": None},
        {"git_dirty": True},
        {"load_average": 17.0},
        {"load_average": None},
        {"memory_bytes": None},
    ],
    ids=str,
)
def test_the_fingerprint_ignores_what_does_not_change_speed(change: dict[str, object]) -> None:
    assert replace(ENVIRONMENT, **change).fingerprint == ENVIRONMENT.fingerprint


GPU = Gpu(name="GPU", uuid="GPU-1", memory_bytes=1, power_limit_w=300.0, compute_capability="9.0")


@pytest.mark.parametrize(
    "change",
    [
        {"cpu": "Another CPU"},
        {"cpu_count": 4},
        {"cpu_capability": "AVX512"},
        {"platform": "Darwin"},
        {"python": "3.12.1"},
        {"packages": (("numpy", "2.4.6"), ("torch", "2.13.1"))},
        {"compiler": None},
        {"gpus": (GPU,)},
        {"nvml": "580.1"},
    ],
    ids=lambda each: next(iter(each)),
)
def test_the_fingerprint_tells_machines_and_software_apart(change: dict[str, object]) -> None:
    assert replace(ENVIRONMENT, **change).fingerprint != ENVIRONMENT.fingerprint


def test_the_fingerprint_tells_a_throttled_gpu_apart() -> None:
    one, other = (
        replace(ENVIRONMENT, gpus=(replace(GPU, power_limit_w=each),)) for each in (300.0, 200.0)
    )
    assert one.fingerprint != other.fingerprint


def test_the_fingerprint_is_the_same_in_every_process() -> None:
    # a golden value: files written by different processes are joined by it
    assert ENVIRONMENT.fingerprint == "5f83516b5499"
