"""The text of the report, and the reasons in it."""

from __future__ import annotations

from pathlib import Path

import torch
from factories.foreign_norms import (
    HIDDEN,
    LEFT,
    FormatNorm,
    GammaBetaNorm,
    PlainNorm,
    TrainingNorm,
    WiderNorm,
    built,
)
from factories.golden import assert_golden
from torch import nn
from torch.nn.utils import parametrizations

from implementations import LayerNorm, replace_layer_norms


def other_norms() -> nn.ModuleDict:
    """Return modules that are left, each for another reason."""
    parametrized, replaced = built(GammaBetaNorm), nn.LayerNorm(HIDDEN)
    parametrizations.weight_norm(parametrized, "gamma", dim=None)
    replaced.forward = replaced.forward
    torch.manual_seed(0)  # of the noise of TrainingNorm
    return nn.ModuleDict(
        {kind.__name__: built(kind) for kind in LEFT}
        | {
            "FormatNorm": FormatNorm(channels_first=True),
            "TrainingNorm": built(TrainingNorm).eval(),
            "WiderNorm": WiderNorm().bfloat16(),
            "RMSNorm": nn.RMSNorm(HIDDEN),
            "GroupNorm": nn.GroupNorm(2, HIDDEN),
            "parametrized": parametrized,
            "replaced_forward": replaced,
            "already": LayerNorm(HIDDEN, implementation="two_pass"),
        }
    )


def test_the_report_is_that_of_the_golden_file() -> None:
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(HIDDEN, 2, 16, batch_first=True), num_layers=1
    )
    shared = nn.LayerNorm(HIDDEN)
    models = {
        "a model": nn.ModuleDict({
            "encoder": encoder.eval(),
            "foreign": built(GammaBetaNorm),
            "shared": shared,
            "head": shared,
            "batches": nn.Sequential(*(nn.BatchNorm1d(HIDDEN) for _ in range(5))),
        }),
        "other norms": other_norms(),
        "one module": nn.LayerNorm(HIDDEN),
        "a module that stays": PlainNorm(),
        "no norm": nn.Linear(HIDDEN, HIDDEN),
    }
    texts = []
    for title, model in models.items():
        declined = {"a model": "head", "a module that stays": ""}.get(title)
        report = replace_layer_norms(
            model, "two_pass", only=lambda name, _, declined=declined: name != declined
        )
        texts.append(f"# {title}\n{report}")
    text = "\n\n".join(texts)
    assert_golden(text, Path(__file__).with_name("golden") / "replacement_report.txt")
