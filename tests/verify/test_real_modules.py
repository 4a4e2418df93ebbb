"""Published modules and functions get the verdict that a reader of their code would give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from factories import known_modules as real
from factories import published_functions
from factories.small_catalogue import use_small_catalogue
from torch import nn

from harness.records import Affine, RemarkKind, Severity
from harness.records.finding import OF_NATIVE
from harness.verify import Outcome, diagnosis, verification, verify

BOTH, WEIGHT, NONE = Affine.BOTH, Affine.WEIGHT, Affine.NONE
EVERY = (Affine.BOTH, Affine.WEIGHT, Affine.NONE, Affine.BIAS)
LAST, CHANNELS = "the last axis", "the channel axis (axis 1) of x"
TRAILING = "any number of trailing axes"

pytestmark = [
    # torch warns of a variance over one element
    pytest.mark.filterwarnings(r"ignore:var.*degrees of freedom is <= 0:UserWarning"),
]


@dataclass(frozen=True, kw_only=True)
class Right:
    """The scope and remarks expected of a true LayerNorm."""

    target: Any
    axes: str = LAST
    eps: float | None = None
    """The fixed eps; None if the caller chooses."""
    affines: tuple[Affine, ...] = (BOTH,)
    ranks: tuple[int, ...] | None = None
    remarks: tuple[RemarkKind, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    in_full: bool = False
    """Whether the contract checks are run too."""


DEFAULT_EPS = (RemarkKind.DEFAULT_EPS,)
MALFORMED = RemarkKind.MALFORMED_ARGUMENTS

RIGHT = {
    "nanoGPT": Right(target=real.NanoGPT, eps=1e-5, affines=(BOTH, WEIGHT)),
    "OLMo": Right(target=real.OLMo, eps=1e-5, affines=(NONE,)),
    "ConvNeXt": Right(target=real.ConvNeXt, remarks=DEFAULT_EPS),
    "ConvNeXt, channels first": Right(
        target=real.ConvNeXt,
        axes=CHANNELS,
        remarks=DEFAULT_EPS,
        options={"init": {"data_format": "channels_first"}},
    ),
    "Segment Anything": Right(target=real.SamLayerNorm2d, axes=CHANNELS, remarks=DEFAULT_EPS),
    "LayerNorm2d": Right(target=real.LayerNorm2d, axes=CHANNELS, remarks=DEFAULT_EPS),
    "VITS": Right(target=real.Vits, axes=CHANNELS, in_full=True),
    "DeBERTa": Right(target=real.DeBERTa, remarks=DEFAULT_EPS),
    "Cohere": Right(target=real.Cohere, affines=(WEIGHT,)),
    "ESMFold": Right(target=real.ESMFold),
    "x-transformers": Right(target=real.XTransformers, eps=1e-5, affines=(WEIGHT,)),
    "labml in two passes": Right(target=real.Labml, axes=TRAILING, affines=(BOTH, NONE)),
    "eps named e": Right(target=real.ShortEps),
    "n_embed": Right(target=real.NumberOfEmbeddings, eps=1e-5),
    "normalized_shape: int": Right(target=real.ShapeThatIsAnInt),
    "a trained instance": Right(target=real.trained(), eps=1e-6, remarks=DEFAULT_EPS, in_full=True),
    "torch.nn.LayerNorm": Right(target=nn.LayerNorm, axes=TRAILING, affines=(BOTH, WEIGHT, NONE)),
    "(B, T, C) alone": Right(
        target=published_functions.batch_time_channels, affines=EVERY, ranks=(3,)
    ),
    "(N, D) alone": Right(target=published_functions.rows_alone, affines=EVERY, ranks=(2,)),
    "weight required": Right(
        target=published_functions.weight_required,
        affines=(WEIGHT,),
        remarks=DEFAULT_EPS,
    ),
    "a plain function": Right(
        target=published_functions.broadcasts,
        axes=TRAILING,
        affines=EVERY,
        remarks=(MALFORMED,),
        in_full=True,
    ),
    "raw pointers": Right(
        target=published_functions.RawPointers,
        remarks=(
            RemarkKind.DECLINES_EMPTY,
            RemarkKind.DECLINES_LAYOUT,
            MALFORMED,
            RemarkKind.SECOND_DERIVATIVE_MISSING,
        ),
        in_full=True,
    ),
    "statistics kept as constants": Right(
        target=published_functions.SavesItsStatistics,
        remarks=(MALFORMED, RemarkKind.SECOND_DERIVATIVE_WRONG),
        in_full=True,
    ),
}

INSTEAD = {
    "T5": (real.T5LayerNorm, "RMSNorm"),
    "torch.nn.RMSNorm": (nn.RMSNorm, "RMSNorm"),
    "Nemotron": (real.Nemotron, "LayerNorm with 1 + weight"),
    "a scale alone": (real.ScaleAlone, "scale and shift without normalisation"),
    "GroupNorm": (real.group_norm(), "GroupNorm with 8 groups"),
    "BatchNorm1d": (nn.BatchNorm1d, "BatchNorm"),
    "BatchNorm2d": (nn.BatchNorm2d, "BatchNorm"),
    "InstanceNorm2d": (nn.InstanceNorm2d, "InstanceNorm"),
    "Identity": (nn.Identity, "Identity"),
}


@pytest.mark.parametrize("right", RIGHT.values(), ids=RIGHT)
def test_a_true_layer_norm_passes_within_its_scope(
    right: Right, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_small_catalogue(monkeypatch, largest=4100, one_in=10)
    if not right.in_full:
        monkeypatch.setattr(verification, "contract_findings", lambda *arguments: ())
    verdict = verify(right.target, quick=True, dtypes=("float32",), fail_fast=True, **right.options)
    assert [each.reason for each in verdict.failures] == []
    assert verdict.violations == ()
    assert verdict.outcome is Outcome.RIGHT
    assert verdict.scope is not None
    assert (verdict.scope.axes, verdict.scope.eps) == (right.axes, right.eps)
    assert verdict.scope.taken("affine") == right.affines
    assert right.ranks in {None, verdict.scope.taken("ndim")}
    remarks = dict.fromkeys(own.kind for own in verdict.remarks if own.kind not in OF_NATIVE)
    assert tuple(remarks) == right.remarks


@pytest.mark.parametrize(("target", "name"), INSTEAD.values(), ids=INSTEAD)
def test_another_normalisation_is_named(
    target: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_small_catalogue(monkeypatch, largest=4100)
    verdict = verify(target, quick=True, dtypes=("float32",), fail_fast=True)
    assert verdict.outcome is Outcome.WRONG
    assert verdict.instead == name


def test_statistics_that_cancel_are_wrong_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_catalogue(monkeypatch, largest=4100)
    monkeypatch.setattr(verification, "contract_findings", lambda *arguments: ())
    monkeypatch.setattr(diagnosis, "conditions_of_failures", lambda *arguments: ())
    verdict = verify(real.LabmlOnePass, quick=True, dtypes=("float32",))
    assert verdict.outcome is Outcome.WRONG
    assert verdict.instead is None
    failed = {failure.evidence.case.distribution for failure in verdict.failures}
    assert failed >= {"mixed_conditions", "tiny_variance_offset"}
    assert "E[x^2] - E[x]^2" in verdict.of(Severity.CAUSE)[0].text


def test_a_required_constructor_argument_is_named() -> None:
    verdict = verify(nn.GroupNorm, quick=True, dtypes=("float32",))
    assert verdict.outcome is Outcome.NOT_VERIFIED
    assert "--init 'num_groups=...'" in verdict.declined[0].text
