"""A module is judged however it is obtained: in every mode, copied, loaded, cast, with options."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from factories import published, right_modules, wrong_calls, wrong_constructors, wrong_copies
from factories.verify_targets import quick
from torch import nn

from harness.records import Severity
from harness.records.finding import Finding
from harness.report.verdict import headline
from harness.run.attempt import attempt
from harness.verify import Outcome
from harness.verify.checks import contract_checks, protocol
from harness.verify.checks.contract_checks import contract_findings
from harness.verify.find_scope import find_scope
from harness.verify.in_scope import first_case, within_scope
from implementations import CallOptions, LayerNorm, adopt

CALLS = {
    # modes
    "BiasLostInEvaluation": "gives no dbias in evaluation mode",
    "EpsOfEvaluation": "gives a wrong y in evaluation mode",
    "UnbiasedWithoutGradient": "gives a wrong y in evaluation mode under torch.no_grad()",
    "DetachedInEvaluation": "gives a wrong dx in evaluation mode",
    "BiasTwiceInTraining": "gives a wrong y in training mode",
    "InPlaceInEvaluation": "changes x in evaluation mode under torch.no_grad()",
    "RingInEvaluation": "overwrites a y that it has returned, in a later call in evaluation mode",
    "OneBufferInEvaluation": "while a second Python thread calls the same module",
    "StrideOfEvaluation": "gives a wrong y in evaluation mode, for an x of 66x40",
    "OnePassInEvaluation": "gives a wrong y in evaluation mode where rows are far from 0",
    "EvaluatesToNothing": "after module.train(): what it returns is NoneType, not the same",
    # what is kept from an earlier call
    "FoldedInEvaluation": "gives no dweight in evaluation mode",
    "FoldedByEval": "where an optimizer has changed its parameters",
    "FoldedWhileFrozen": "where its parameters are frozen and were changed",
    "DecaysItsWeight": "gives a wrong y in every mode where it was called before",
    "NewParametersInEveryCall": "gives no dweight in training mode",
    "ShowsACopy": "where values were written to its attributes weight and bias",
    "FixedMemory": "where its parameters were given other memory through .data",
    "ComparesTheEnds": "where some elements of its weight were set to 0 in place",
    "CastOnce": "where a model that holds it is loaded from a state_dict",
    "CachedByDtype": "where it had another dtype before",
    "CachedByVersion": "where its parameters were changed through .data",
    "RoundedByAutocast": "where its first call was under torch.autocast",
    "OldParametersAfterSharing": "where it shares the parameters of another module",
    "GradientOnce": "gives no dweight in every mode where it was called before",
    "AxesOfTheLastCall": "where its forward is called, and the module before on an x of more axes",
    "WithStatisticsOfItsLastCall": "while a second Python thread calls the same module",
    # whose parameters it computes with
    "ReadsItsDictionary": "where its parameters are parametrised",
    "ReadsTheUnpruned": "where its parameters are pruned by torch.nn.utils.prune",
    "AnotherByItself": "gives a wrong y",
    "OneForAll": "where another module of its class was changed",
    "ScaleOutsideState": "gives a wrong dweight in every mode",
    # frozen parameters
    "Unfreezes": "unfreezes weight in every mode where its parameters are frozen",
    "NoGradientIfFrozen": "gives no dx in every mode where its parameters are frozen",
    "NoGradientIfXHasNone": "gives no dweight in every mode where x needs no gradient",
    "FrozenAtFirst": "gives no dweight in every mode where its parameters were frozen before",
    # hooks
    "WithoutHooks": "runs no forward hooks",
    "OnlyForwardHooks": "runs no full backward hooks",
    "IgnoresHookResults": "ignores the results of forward hooks",
    "GlobalHookResults": "ignores the results of global forward hooks in evaluation mode",
    # scripts
    "DefaultEpsInScripts": "where it is compiled by torch.jit.script",
}

COPIES = {
    # copies
    "CopiedWithDefaults": "gives a wrong y in every mode where it is a deep copy",
    "CopySharesParameters": "gives a wrong y in every mode where it is a deep copy",
    "CopyIsNotTied": "no longer shares its weight",
    "CopiedAsItself": "copies a module of a subclass as one of its own class",
    "TrainedWhenCopied": "after copy.deepcopy(module): bias.requires_grad is True, not False",
    "TrainingWhenCopied": "after copy.deepcopy(module): its mode is training, not the same",
    "WithoutHooksInCopies": "runs no forward hooks of a deep copy",
    "EqualByEps": "equals another module, so that modules() of a model skips one",
    # pickles
    "RoundsItsEpsInPickles": "after copy.deepcopy(module): its eps is another, not the same",
    "ForgetsItsEpsWhenCopied": "where it was copied and pickled",
    "PickledWithBias": "where it is pickled, for an x of 7x24",
    "PickledWithoutHooks": "the number of its forward hooks is 0, not the same",
    # what state_dict returns
    "StoresAroundZero": "stores another weight (weight) in its state_dict than it has",
    "KeepsDetachedVars": "holds a copy of its weight (weight) in state_dict(keep_vars=True)",
    "EpsInItsState": "takes its eps from a state_dict that it loads",
    # loading
    "StoredAroundZero": "where a model that holds it is loaded from a state_dict",
    "RestartsWhatIsMissing": "changes its bias where its weight is loaded",
    "ReplacedByLoading": "weight, which an optimizer may hold, is another, not the same",
    "DtypeOfItsCheckpoint": "weight.dtype is torch.bfloat16, not torch.float32",
    "RoundsACheckpoint": "changes the tensors of a state_dict that it loads",
    "CutsACheckpoint": "with more elements: what it returns is _IncompatibleKeys, not an error",
    "OwnLoading": "unknown key: unexpected_keys is [], not ['unknown']",
    "ReturnsNothing": "what it returns is NoneType, not _IncompatibleKeys",
    "NewMemoryByLoading": "the memory of its weight is another, not the same",
    "TrainedWhenAssigned": "with assign=True: bias.requires_grad is True, not False",
    "CopiesWhatIsAssigned": "copies a weight that is loaded with assign=True",
    # dtypes and devices
    "StaysInItsDtype": "weight.dtype is torch.float32, not torch.float64",
    "ReplacedByItsDtype": "after module.double(): weight, which an optimizer may hold, is another",
    "FrozenByItsDtype": "freezes weight in every mode where it had another dtype before",
    "ThirdOfTheFactor": "where it was in half precision before",
    "TrainedWhenMoved": "after module.double(): bias.requires_grad is True, not False",
    "OldGradients": "weight.grad.dtype is torch.float32, not torch.float64",
    "ClonesWhatItShares": "weight.is_shared() is False, not True",
    # from a torch.nn.LayerNorm
    "Converting": "gives a wrong y in evaluation mode where from_torch() made it",
    "UnfreezesWhatItConverts": "where from_torch() made a frozen torch.nn.LayerNorm",
}

CONSTRUCTORS = {
    # what its parameters are
    "PlainTensors": "does not register weight: no optimizer trains it",
    "ParametersInAList": "does not register held: no optimizer trains it",
    "Buffers": "makes a buffer of weight: no optimizer trains it",
    "Frozen": "makes its weight with requires_grad=False",
    "Tied": "gives a wrong y in every mode",
    "ZeroWeight": "initialises its weight (weight) to something other than 1",
    "BiasOfOne": "initialises its bias (bias) to something other than 0",
    "ForgetsItsBiasInAReset": "resets its bias (bias) to something other than 0",
    # its arguments
    "EpsIgnored": "gives a wrong y in every mode",
    "AffineNeverOff": "has a weight with elementwise_affine=False",
    "BiasNeverOff": "has a bias with bias=False",
    "WeightOffWithBias": "has no weight with bias=False",
    "BiasBeforeAffine": "takes the arguments eps, bias and elementwise_affine in another order",
    "DtypeIgnored": "ignores the dtype given to its constructor",
    "SinglePrecision": "in torch.float32 where the default dtype is float64",
    "DeviceIgnored": "ignores the device given to its constructor",
    "SavesMemory": "gives a wrong dweight in training mode with lean=True",
    "OfSeveralKinds": "was tried with kind='fused' alone",
}

WRONG = [
    pytest.param(getattr(modules, name), text, id=name)
    for modules, texts in zip(
        (wrong_calls, wrong_copies, wrong_constructors), (CALLS, COPIES, CONSTRUCTORS), strict=True
    )
    for name, text in texts.items()
]

RAISES: dict[Any, str] = {
    wrong_copies.Lambda: "it is pickled",
    wrong_copies.Locked: "it is a deep copy",
    wrong_copies.CountOnMeta: "it is made on the meta device and loaded with assign=True",
    wrong_constructors.AffineOffRaises: "it is made without weight and bias",
    wrong_constructors.BiasOffRaises: "it is made without a bias",
    wrong_constructors.KeepsItsShape: "the list that it was given as normalized_shape has changed",
    wrong_constructors.DtypeRaises: "its constructor is given a dtype",
}

RIGHT = {
    "torch.nn.LayerNorm": nn.LayerNorm,
    "this project's": LayerNorm,
    "trained": published.trained(),
    "frozen": nn.LayerNorm(48).requires_grad_(requires_grad=False).eval(),
    "without parameters": nn.LayerNorm((3, 16), elementwise_affine=False),
    "in a container": nn.Sequential(nn.LayerNorm(48)),
    **{
        name: getattr(right_modules, name)
        for name in (
            "Norm", "WeightAtFirstCall", "LazyNorm", "Aliased", "CachedAndChecked", "BetaBuffer",
            "Dropping", "Float32Norm", "Passing", "AlwaysInEvaluation", "BothOrNone",
            "ChannelsOfImages",
        )
    },
    **{
        name: getattr(published, name)
        for name in (
            "NanoGPT", "ConvNeXt", "XTransformers", "ShortEps",
        )
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def _checks_of_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the checks of other topics."""
    own = [known for known in contract_checks.CHECKS if known.is_of_modules]
    assert len(own) > 20
    monkeypatch.setattr(contract_checks, "CHECKS", own)


def findings_of(module: Any, dtype: str = "float32") -> Iterator[Finding]:
    target = adopt(module, "module")
    unjudged = partial(attempt, target, is_judged=False)
    scope, *_ = find_scope(target, (dtype,), "cpu", CallOptions(), unjudged)
    return contract_findings(within_scope(target, scope), first_case("module", dtype, "cpu"))


@pytest.mark.parametrize(("module", "text"), WRONG)
def test_a_wrong_module_is_found(module: type, text: str) -> None:
    said = {Severity.WRONG, Severity.REMARK}
    wrong = [finding.text for finding in findings_of(module) if finding.severity in said]
    assert any(text in violation for violation in wrong), wrong


@pytest.mark.parametrize(
    ("module", "where"), RAISES.items(), ids=[module.__name__ for module in RAISES]
)
def test_what_raises_is_named(module: type, where: str) -> None:
    (finding,) = findings_of(module)
    assert (finding.severity, finding.text) == (Severity.RAISES, where)


# what a right module may be told, beside flags and the arguments of torch
OPTIONS = {"this project's": "implementation='native'", "ConvNeXt": "data_format='channels_last'"}
IN_FLOAT16 = ("Float32Norm", "CachedAndChecked")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, "float32") for name in RIGHT), *((name, "float16") for name in IN_FLOAT16)],
)
def test_a_right_module_is_left_alone(name: str, dtype: str) -> None:
    said = [finding.text for finding in findings_of(RIGHT[name], dtype)]
    assert said == ([f"was tried with {OPTIONS[name]} alone"] if name in OPTIONS else [])


def test_hooks_of_a_row_of_one_element_run() -> None:
    target = adopt(nn.LayerNorm, "module")
    case = replace(first_case("module", "float32", "cpu"), shape=(2, 1))
    assert protocol.runs_hooks(target, case) is None


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")
def test_a_scripted_module_is_judged() -> None:
    right, wrong = nn.LayerNorm(32), wrong_calls.BiasLostInScript(32)
    assert list(findings_of(torch.jit.script(right))) == []
    (finding,) = findings_of(torch.jit.script(wrong))
    assert finding.text == "gives a wrong y in evaluation mode"


def test_an_instance_is_judged_by_its_own_eps_and_stays_as_it_is() -> None:
    module = wrong_calls.CachedByVersion(32, eps=1e-3)
    before = module.weight.detach().clone()
    assert {finding.severity for finding in findings_of(module)} == {Severity.WRONG}
    assert torch.equal(module.weight, before)
    assert module.training


def test_parameters_of_another_start_are_right_if_the_constructor_is_told_so() -> None:
    class Gained(right_modules.Norm):
        def __init__(self, dim: int, init_gain: float = 0.1) -> None:
            super().__init__(dim)
            nn.init.constant_(self.weight, init_gain)

    assert list(findings_of(Gained)) == []


@pytest.mark.usefixtures("small_catalogue")
def test_the_verdict_names_what_is_wrong_or_raises() -> None:
    wrong = quick(wrong_copies.RestartsWhatIsMissing)
    assert wrong.outcome is Outcome.WRONG
    assert "it changes its bias where its weight is loaded" in headline(wrong)
    raising = quick(wrong_constructors.AffineOffRaises)
    assert raising.outcome is Outcome.RIGHT
    assert "but it raises where it is made without weight and bias" in headline(raising)
