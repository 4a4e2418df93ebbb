"""Other projects' tests: they accept what is right, reject zeros, and let these mutants pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest
import torch
from peer_tests.peer_checks import PEER_CHECKS, PeerCheck
from torch import Tensor

from harness.mutants import WRONG
from harness.run.integrity import process_state_restored
from implementations import find
from implementations.contract import LayerNormFunction

PEERS = {peer_check.name: peer_check for peer_check in PEER_CHECKS}
MUTANTS = {mutant.name: mutant for mutant in WRONG}

every_peer = pytest.mark.parametrize(
    ("peer", "dtype"),
    [(peer, dtype) for peer in PEER_CHECKS for dtype in sorted(peer.dtypes)],
    ids=lambda each: each.name if isinstance(each, PeerCheck) else each,
)


def accepts(peer: PeerCheck, function: LayerNormFunction, dtype: str) -> bool:
    with process_state_restored():  # some mutants change it
        return peer.accepts(function, getattr(torch, dtype))


def returning(answer: object) -> LayerNormFunction:
    """A LayerNorm that returns ``answer``, or what it makes of x if it is a function."""

    def layer_norm(
        x: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        return cast("Tensor", answer(x) if callable(answer) else answer)

    return layer_norm


# torch's CPU kernel adds up the gradients of halves in their own dtype: wrong, for us and for them
REJECTS_NATIVE = {
    ("assert_close", "bfloat16"),
    ("assert_close", "float16"),
    ("liger", "bfloat16"),
    ("flash_attention", "bfloat16"),
    ("flag_gems", "bfloat16"),
    ("flag_gems", "float16"),
}


@every_peer
def test_a_peer_accepts_native_where_its_gradient_is_right(peer: PeerCheck, dtype: str) -> None:
    expected = (peer.name, dtype) not in REJECTS_NATIVE
    assert accepts(peer, find("native").function, dtype) is expected


@every_peer
def test_a_peer_accepts_two_pass(peer: PeerCheck, dtype: str) -> None:
    assert accepts(peer, find("two_pass").function, dtype)


@every_peer
@pytest.mark.parametrize(
    "answer",
    [
        None,
        "y",
        (1, 2),
        lambda x: x.flatten(),
        lambda x: x.to(torch.complex64),
        lambda x: x.no,
        lambda x: x * 0,
        lambda x: x * 1,
    ],
    ids=["none", "text", "tuple", "shape", "dtype", "raises", "zeros", "its input"],
)
def test_nonsense_is_rejected_and_does_not_raise(
    peer: PeerCheck, dtype: str, answer: object
) -> None:
    assert not accepts(peer, returning(answer), dtype)


def nan_everywhere(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    right = find("two_pass")
    return right(x, normalized_shape, weight, bias, eps) * float("nan")


@every_peer
def test_nan_is_rejected_by_all_but_llm_c(peer: PeerCheck, dtype: str) -> None:
    assert accepts(peer, nan_everywhere, dtype) == (peer.name == "llm_c")


@pytest.mark.parametrize(
    ("peer", "dtype", "mutant"),
    [
        ("assert_close", "bfloat16", "eps_outside_the_root"),
        ("assert_close", "float32", "one_pass_in_disguise"),
        ("tritonbench", "float32", "one_pass_in_disguise"),
        ("liger", "float32", "one_pass_in_disguise"),
        ("liger", "float32", "bias_before_weight"),
        ("liger", "bfloat16", "unbiased_variance"),
        ("apex", "bfloat16", "eps_ignored"),
        ("flash_attention", "bfloat16", "eps_outside_the_root"),
        ("flag_gems", "float32", "one_pass_in_disguise"),
        ("flag_gems", "bfloat16", "one_pass_in_disguise"),
        ("kernelbench", "float32", "one_pass_in_disguise"),
        ("kernelbench", "float32", "unbiased_variance"),
        ("kernelbench", "float32", "weight_ignored"),
        ("kernelbench", "bfloat16", "constant_statistics"),
        ("llm_c", "float32", "one_pass_in_disguise"),
    ],
)
def test_a_peer_accepts_a_mutant(peer: str, dtype: str, mutant: str) -> None:
    assert accepts(PEERS[peer], MUTANTS[mutant].fresh(), dtype)


@pytest.mark.parametrize(
    ("peer", "dtype", "mutant"),
    [
        ("liger", "float32", "unbiased_variance"),
        ("kernelbench", "float32", "constant_statistics"),
        ("llm_c", "float32", "unbiased_variance"),
        ("apex", "float32", "strides_ignored"),
        ("apex", "bfloat16", "strides_ignored"),
    ],
)
def test_a_peer_rejects_a_mutant(peer: str, dtype: str, mutant: str) -> None:
    assert not accepts(PEERS[peer], MUTANTS[mutant].fresh(), dtype)


def test_a_check_leaves_the_mutants_of_state_no_trace() -> None:
    peer = PEERS["kernelbench"]
    assert not accepts(peer, MUTANTS["output_of_the_first_call"].fresh(), "float32")
    assert accepts(peer, find("native").function, "float32")
