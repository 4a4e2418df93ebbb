"""Other projects' tests: they accept what is right, reject zeros, and let these mutants pass."""

from __future__ import annotations

import pytest
import torch
from peer_tests.peer_checks import PEER_CHECKS, PeerCheck

from harness.mutants import named
from harness.run import process_state_restored
from implementations import find
from implementations.contract import LayerNormFunction

PEERS = {peer_check.name: peer_check for peer_check in PEER_CHECKS}

every_peer = pytest.mark.parametrize(
    ("peer", "dtype"),
    [(peer, dtype) for peer in PEER_CHECKS for dtype in sorted(peer.dtypes)],
    ids=lambda value: getattr(value, "name", value),
)


def accepts(peer: PeerCheck, function: LayerNormFunction, dtype: str) -> bool:
    with process_state_restored():  # some mutants change it
        return peer.accepts(function, getattr(torch, dtype))


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
def test_a_peer_accepts_what_is_right(peer: PeerCheck, dtype: str) -> None:
    assert accepts(peer, find("two_pass").function, dtype)
    is_accepted = (peer.name, dtype) not in REJECTS_NATIVE
    assert accepts(peer, find("native").function, dtype) is is_accepted


@pytest.mark.parametrize(
    ("peer", "dtype", "mutant", "is_accepted"),
    [
        ("assert_close", "float32", "one_pass_in_disguise", True),
        ("liger", "float32", "bias_before_weight", True),
        ("liger", "float32", "unbiased_variance", False),
        ("apex", "bfloat16", "eps_ignored", True),
        ("kernelbench", "float32", "weight_ignored", True),
        ("kernelbench", "float32", "output_of_the_first_call", False),  # its state is put back
        ("llm_c", "float32", "one_pass_in_disguise", True),
    ],
)
def test_a_peer_accepts_some_mutants(peer: str, dtype: str, mutant: str, is_accepted: bool) -> None:
    assert accepts(PEERS[peer], named(mutant).fresh(), dtype) is is_accepted
    assert accepts(PEERS[peer], find("two_pass").function, dtype)
