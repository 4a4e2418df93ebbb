"""Cases and environments: stable ids, derived shapes, one fingerprint per machine."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from harness.records import Affine, Autograd, Case, Direction, Environment, Gpu, Mode

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


def test_every_field_of_a_case_shows_in_its_id() -> None:
    changes: list[dict[str, object]] = [
        {"implementation": "welford"},
        {"mode": Mode.COMPILED},
        {"shape": (64, 8)},
        {"shape": (8, 8, 8)},
        {"normalized_dims": 2},
        {"dtype": "float64"},
        {"param_dtype": "float64"},
        {"dtype": "float64", "param_dtype": "float64"},
        {"device": "cuda"},
        {"distribution": "constant"},
        {"layout": "transposed"},
        {"direction": Direction.BACKWARD},
        {"autograd": Autograd.FROZEN_X},
        {"grad_output": "ones"},
        {"affine": Affine.WEIGHT},
        {"affine": Affine.BIAS},
        {"parameters": "nan_weight"},
        {"eps": 0.0},
        {"threads": 2},
        {"seed": 1},
    ]
    assert set().union(*changes) == {field.name for field in fields(Case)}
    ids = [CASE.id, *(replace(CASE, **change).id for change in changes)]
    assert len(set(ids)) == len(ids)


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


GPU = Gpu(name="GPU", uuid="GPU-1", memory_bytes=1, power_limit_w=300.0, compute_capability="9.0")


def test_the_fingerprint_changes_only_with_what_can_change_speed() -> None:
    ignored: list[dict[str, object]] = [
        {"git_commit": None},
        {"git_commit_utc": "2026-01-01T00:00:00Z"},
        {"git_dirty": True},
        {"repository_url": "https://example.org/owner/name"},
        {"load_average": 17.0},
        {"memory_bytes": None},
    ]
    seen: list[dict[str, object]] = [
        {"cpu": "Another CPU"},
        {"cpu_count": 4},
        {"cpu_capability": "AVX512"},
        {"platform": "Darwin"},
        {"python": "3.12.1"},
        {"packages": (("numpy", "2.4.6"), ("torch", "2.13.1"))},
        {"compiler": None},
        {"gpus": (GPU,)},
        {"gpus": (replace(GPU, power_limit_w=200.0),)},
        {"nvml": "580.1"},
    ]
    assert set().union(*ignored, *seen) == {field.name for field in fields(Environment)}
    assert {replace(ENVIRONMENT, **change).fingerprint for change in ignored} == {
        ENVIRONMENT.fingerprint
    }
    fingerprints = {replace(ENVIRONMENT, **change).fingerprint for change in seen}
    assert len(fingerprints - {ENVIRONMENT.fingerprint}) == len(seen)


def test_the_fingerprint_is_the_same_in_every_process() -> None:
    # a golden value: files written by different processes are joined by it
    assert ENVIRONMENT.fingerprint == "5f83516b5499"
