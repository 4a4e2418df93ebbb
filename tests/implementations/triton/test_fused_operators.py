"""The fused kernels under autograd and torch.compile."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from factories.fused_kernels import (
    DEVICE,
    LONG,
    RUN_SOMEWHERE,
    UNIT,
    every_name,
    gradients,
    tensors,
)
from torch.nn import functional

from implementations import find
from implementations.triton import arguments, launch, operators

pytestmark = RUN_SOMEWHERE


@pytest.mark.parametrize("hidden", [33, 8 * UNIT + 51, LONG])
def test_a_gradient_computed_alone_has_the_same_bits(
    hidden: int, request: pytest.FixtureRequest
) -> None:
    if hidden > 33:
        request.getfixturevalue("shrunk")
    x, weight, bias, dy = tensors((2, hidden), hidden)
    norm = find("triton_recentred")
    together = gradients(norm, (x, weight, bias), dy, (0, 1, 2))
    for wanted in ((0,), (1,), (2,), (0, 2)):
        alone = gradients(norm, (x, weight, bias), dy, wanted)
        for index, found in zip(wanted, alone, strict=True):
            assert torch.equal(found, together[index])


@every_name
def test_dweight_and_dbias_have_the_dtypes_of_their_parameters(name: str) -> None:
    x, weight, bias, dy = tensors((6, 33), 33, torch.bfloat16)
    given = (x, weight.float(), bias.double())
    found = gradients(find(name), given, dy, (0, 1, 2))
    assert [gradient.dtype for gradient in found] == [tensor.dtype for tensor in given]


def test_an_expanded_dy_is_accepted() -> None:
    x, weight, _, _ = tensors((6, 33), 33)
    found, expected = (
        torch.autograd.grad(norm(x.requires_grad_(), (33,), weight).sum(), x)[0]
        for norm in (find("triton_recentred"), functional.layer_norm)
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0), (2, 0, 3)])
def test_an_empty_x_gives_an_empty_y_and_gradients_of_zero(shape: tuple[int, ...]) -> None:
    x, weight, bias, dy = tensors(shape, shape[-1])
    leaves = [tensor.requires_grad_() for tensor in (x, weight, bias)]
    y = find("triton_recentred")(leaves[0], shape[-1:], leaves[1], leaves[2])
    found = torch.autograd.grad(y, leaves, dy)
    assert y.shape == shape
    assert [gradient.shape for gradient in found] == [leaf.shape for leaf in leaves]
    assert all(float(gradient.abs().sum()) == 0 for gradient in found)


def test_it_is_traced_whole_by_torch_compile() -> None:
    x, weight, bias, dy = tensors((6, 33), 33)
    eager = find("triton_recentred")
    torch.compiler.reset()
    traced = torch.compile(eager.function, fullgraph=True, backend="aot_eager")
    norm = replace(eager, function=traced)
    expected = gradients(eager, (x, weight, bias), dy, (0, 1, 2))
    found = gradients(norm, (x, weight, bias), dy, (0, 1, 2))
    assert all(map(torch.equal, found, expected))
    with torch.no_grad():
        assert torch.equal(norm(x, (33,), weight, bias), eager(x, (33,), weight, bias))


def test_the_operators_pass_the_checks_of_torch() -> None:
    x, weight, bias, dy = tensors((6, 33), 33)
    leaf = x.clone().requires_grad_()
    arguments = (leaf, weight, bias, 33, 1e-5, "recentred", True)
    torch.library.opcheck(operators._forward, arguments)
    _, moments = launch.forward(x, weight, bias, 33, 1e-5, "recentred", True)
    given = (dy, x, weight, moments, 33, True, torch.float32, None)
    torch.library.opcheck(operators._backward, given, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize(("rows", "hidden"), [(21, 33), (3, LONG)])
def test_the_result_of_a_row_does_not_depend_on_its_batch(
    rows: int, hidden: int, request: pytest.FixtureRequest
) -> None:
    if hidden == LONG:
        request.getfixturevalue("shrunk")
    x, weight, bias, dy = tensors((rows, hidden), hidden)
    norm = find("triton_recentred")
    whole = gradients(norm, (x, weight, bias), dy, (0,))[0]
    part = gradients(norm, (x[:2], weight, bias), dy[:2], (0,))[0]
    assert torch.equal(whole[:2], part)
    assert torch.equal(norm(x, (hidden,))[:1], norm(x[:1], (hidden,)))


def test_rows_with_gaps_between_them_are_not_copied() -> None:
    x = torch.zeros(4, 6, 40, device=DEVICE)
    for apart in (x[:, :, :33], x[::2, 0], x[:, 1:2], x[0].expand(4, 6, 40)[:, 0]):
        hidden = apart.shape[-1]
        matrix = arguments.as_matrix(apart, apart.numel() // hidden, hidden)
        assert matrix.data_ptr() == apart.data_ptr()
