"""How experiments/real_modules sorts classes and verdicts; tox -e real-modules runs it."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import pytest

RMS_NORM = """
class {name}(nn.Module):
    {docstring}
    def __init__(self, dim{annotation}, eps=1e-6):
        super({super}).__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps
    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
    def extra_repr(self):
        return "{name}"
"""


def load(module: str) -> ModuleType:
    return importlib.import_module(f"real_modules.{module}")


def keys(source: str) -> list[str]:
    classes = load("classes")
    return [classes._key(node) for node in classes._norm_classes(source)]


def rms_norm(name: str, docstring: str = "", annotation: str = "", super_: str = "") -> str:
    return RMS_NORM.format(name=name, docstring=docstring, annotation=annotation, super=super_)


def test_copies_under_other_names_are_one_source_and_another_eps_is_another() -> None:
    documented = rms_norm("TheirRMSNorm", '"""T5."""', ": int", "TheirRMSNorm, self")
    assert keys(rms_norm("OurRMSNorm")) == keys(documented)
    assert keys(documented) != keys(documented.replace("1e-6", "1e-5"))
    assert keys("class TextNormalizer(Normalizer):\n    def forward(self, text): ...") == []


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        (rms_norm("RMSNorm"), "layer"),
        ("class NormFunction(autograd.Function):\n    def forward(ctx, x): ...", "function"),
        ("class PreNorm(nn.Module):\n    def __init__(self, dim, fn): ...", "block"),
        ("class AdaNorm(nn.Module):\n    def __init__(self): self.a = nn.Linear(1, 1)", "block"),
    ],
)
def test_layers_functions_and_blocks_are_told_apart(source: str, kind: str) -> None:
    classes = load("classes")
    (node,) = classes._norm_classes(source)
    assert classes._kind(node) == kind


def verdict(outcome: str, **more: Any) -> dict[str, Any]:
    found = {"outcome": outcome, "headline": "", "instead": None, "axes": "the last axis"}
    found |= {"default_eps": 1e-5, "affines": ["both"]}
    return found | {"remarks": [], "suspects": [], "violations": []} | more


@pytest.mark.parametrize(
    ("computes", "found", "agrees"),
    [
        ("LayerNorm", verdict("right"), True),
        ("LayerNorm", verdict("wrong"), False),
        ("LayerNorm", verdict("right", default_eps=1e-6), False),
        ("LayerNorm", verdict("right", axes="the channel axis (axis 1) of x"), False),
        ("RMSNorm", verdict("wrong", instead="RMSNorm with 1 + weight"), True),
        ("RMSNorm", verdict("wrong", instead="BatchNorm"), False),
        ("RMSNorm", verdict("right"), False),
        ("EvoNorm", verdict("wrong"), True),
    ],
)
def test_a_verdict_has_to_agree_with_the_reading(
    computes: str, found: dict[str, Any], agrees: bool
) -> None:
    readings = load("readings")
    reading = readings.Reading(target="package:Norm", computes=computes, eps=1e-5)
    assert (readings.agreement(reading, found) == "") is agrees
