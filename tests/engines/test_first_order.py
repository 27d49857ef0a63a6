"""Gradients that are not differentiated again: torch's own backward kernels, the same numbers."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vjp, vmap

from isonomy.engines.batched.first_order import FirstOrder
from isonomy.engines.batched.program import outermost
from isonomy.engines.batched.trace import trace

aten = torch.ops.aten


def network(groups, affine):
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(groups, 8, affine=affine), nn.SiLU()
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 5 * 5, 3)).double()


def problem(net, lanes=None):
    """A loss, parameters (of several clients, if there are lanes) and examples, in float64."""
    torch.manual_seed(1)
    x, y = torch.randn(4, 3, 5, 5).double(), torch.tensor([0, 2, 1, 1])
    params = {name: p.detach() for name, p in net.named_parameters()}
    if lanes is not None:
        params = {name: p + torch.randn(lanes, *p.shape) for name, p in params.items()}

    def loss(params):
        return nn.functional.cross_entropy(functional_call(net, params, (x,)), y)

    return loss, params


def backward(net, params):
    """The gradient by `Tensor.backward`, client by client."""
    loss, _ = problem(net)
    leaves = {name: p.clone().requires_grad_() for name, p in params.items()}
    return dict(zip(leaves, torch.autograd.grad(loss(leaves), leaves.values()), strict=True))


def kinds(f, params):
    """The operations that are recorded."""
    names = list(params)

    def flat(*values):
        with FirstOrder(outermost):
            return list(f(dict(zip(names, values, strict=True))).values())

    with torch.no_grad():
        return {node.target for node in trace(flat, list(params.values())).graph.nodes}


@pytest.mark.parametrize("groups", [1, 2, 4, 8])
@pytest.mark.parametrize("affine", [True, False])
def test_group_norm_has_torchs_own_backward_kernel_and_its_numbers(groups, affine):
    net = network(groups, affine)
    loss, params = problem(net)
    with torch.no_grad(), FirstOrder(outermost):
        got = grad(loss)(params)
    torch.testing.assert_close(got, backward(net, params), rtol=1e-12, atol=1e-14)
    assert aten.native_group_norm_backward.default in kinds(grad(loss), params)
    assert aten.silu_backward.default in kinds(grad(loss), params)


@pytest.mark.parametrize("groups", [1, 2, 4, 8])
@pytest.mark.parametrize("affine", [True, False])
def test_it_does_so_for_several_clients_at_once(groups, affine):
    net = network(groups, affine)
    loss, params = problem(net, lanes=3)
    with torch.no_grad(), FirstOrder(outermost):
        got = vmap(grad(loss))(params)
    for lane in range(3):
        own = {name: p[lane] for name, p in params.items()}
        expected = backward(net, own)
        one = {name: g[lane] for name, g in got.items()}
        torch.testing.assert_close(one, expected, rtol=1e-11, atol=1e-13)
    assert aten.native_group_norm_backward.default in kinds(vmap(grad(loss)), params)


def test_a_gradient_is_that_of_finite_differences():
    loss, params = problem(network(4, True))
    with torch.no_grad(), FirstOrder(outermost):
        got = grad(loss)(params)
    step = 1e-6
    for name, g in got.items():
        along = torch.randn_like(g)
        ends = [loss({**params, name: params[name] + s * along}) for s in (step, -step)]
        slope = (ends[0] - ends[1]) / (2 * step)
        torch.testing.assert_close((g * along).sum(), slope, rtol=1e-6, atol=1e-8)


def by_grad(loss, params):
    return grad(loss)(params)


def by_vjp(loss, params):
    """The same, but the backward pass runs when vjp's own level has ended."""
    value, pull = vjp(loss, params)
    return pull(torch.ones_like(value))[0]


@pytest.mark.parametrize("inner", [by_grad, by_vjp])
@pytest.mark.parametrize("lanes", [None, 3])
def test_derivatives_of_gradients_are_as_without_it(inner, lanes):
    loss, params = problem(network(4, True), lanes)

    def length(params):
        return sum(g.square().sum() for g in inner(loss, params).values())

    second = grad(length) if lanes is None else vmap(grad(length))
    with torch.no_grad():
        expected = second(params)
        with FirstOrder(outermost):
            got = second(params)
    assert all(g.abs().max() > 1e-9 for g in expected.values())
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)
