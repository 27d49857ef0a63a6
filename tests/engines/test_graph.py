"""Optimised graphs give the same bits, with fewer operations, and fall back when they would not."""

import operator

import pytest
import torch
from torch import nn
from torch.func import grad, vmap
from torch.nn.functional import conv2d, max_pool2d

from isonomy.engines.batched import graph as graphs
from isonomy.engines.batched.first_order import FirstOrder
from isonomy.engines.batched.program import outermost
from isonomy.engines.batched.trace import trace

PARAMS = [torch.randn(4, 3, 5), torch.randn(4, 3)]
X = [torch.randn(4, 6, 5), torch.randint(3, (4, 6))]


def loss(w, b, x, y):
    out = x @ w.T + b
    return -out.log_softmax(-1).gather(-1, y[:, None]).mean()


def sgd(w, b, x, y, rate):
    dw, db = grad(loss, argnums=(0, 1))(w, b, x, y)
    return w - rate * dw, b - rate * db


def traced(step, *inputs):
    return trace(step, inputs)


def operations(graph):
    return [n for n in graph.graph.nodes if n.op == "call_function"]


def test_an_sgd_step_is_the_same_with_fewer_operations_and_in_place():
    inputs = [*PARAMS, *X, torch.tensor(0.1)]
    step = vmap(sgd, in_dims=(0, 0, 0, 0, None))
    graph = traced(step, *inputs)
    before = len(operations(graph))
    expected = graph(*inputs)
    graphs.simplify(graph)
    assert len(operations(graph)) < 0.75 * before
    assert all(torch.equal(a, b) for a, b in zip(graph(*inputs), expected, strict=True))
    call = graphs.optimised(graph, inputs, carried=2)
    own = [t.clone() for t in PARAMS]
    got = call(*own, *inputs[2:])
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert [t.data_ptr() for t in got] == [t.data_ptr() for t in own], "not updated in place"


@pytest.mark.parametrize(
    ("total", "fewer"),
    [
        (lambda p: p.sum(0, keepdim=True).view(3), True),
        (lambda p: p.sum(-1, keepdim=True).view(3), True),
        (lambda p: p.sum((0, 1), keepdim=True).view(()), True),
        (lambda p: p.sum(0, keepdim=True).view(3, 1), False),  # other axes than those of the sum
        (lambda p: (t := p.sum(0, keepdim=True)).view(3) + t, False),  # it is read as it is too
    ],
)
def test_a_sum_drops_its_axes_itself_if_a_view_would(total, fewer):
    p = torch.randn(3, 3)
    graph = traced(lambda p: (total(p) * 2,), p)
    before = len(operations(graph))
    graphs.simplify(graph)
    assert (len(operations(graph)) < before) == fewer
    (got,) = graph(p)
    assert torch.equal(got, total(p) * 2)
    assert got.shape == total(p).shape


@pytest.mark.parametrize(
    "step",
    [
        lambda p, q: (p - 0.1 * q, q - p),  # the second reads what the first would write
        lambda p, q: (p - p.T, q - 1.0 * p),
        lambda p, q: (p - q, p + q),
        lambda p, q: (q - p, p - q),
        lambda p, q: (p - 2 * p, q),
        lambda p, q: (p.T.T - q, q),
        lambda p, q: (p * p + p, q * p.T),
        lambda p, q: (p + p.T, (q + q).relu() / q),
        lambda p, q: ((p @ q) + (p @ q).T, (p @ q).relu() * q),
        lambda p, q: (0.9 * p + 0.1 * q, 0.9 * q + 0.1 * p),
        lambda p, q: (p, q * 2 - p),
        lambda p, q: ((p * 2)[:2].sum(0, keepdim=True) + p, (q * 2).exp().sqrt() - (q * 2)),
        lambda p, q: (p.sum(0).expand(3, 3) + q, (-(p * 2)).neg() + p[0]),
        lambda p, q: (torch.addcmul(p, q, p, value=-1), q),
        lambda p, q: (torch.addcmul(p, q, q[0, 0], value=-1), q.T + p),
        lambda p, q: (torch.addcmul(p, q, q[0, 0], value=-1), torch.addcmul(q, q, q)),
    ],
)
def test_reading_after_writing_is_never_wrong(step):
    for carried in (0, 1, 2):
        inputs = [torch.randn(3, 3), torch.randn(3, 3)]
        expected = step(*inputs)
        graph = traced(step, *inputs)
        graphs.simplify(graph)
        graphs.write_over_operands(graph, carried)
        given = [t.clone() for t in inputs]
        got = graph(*given)
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
        kept = zip(given[carried:], inputs[carried:], strict=True)
        assert all(torch.equal(a, b) for a, b in kept), "wrote over an input that it does not own"


def test_moments_of_adam_and_activations_are_written_over():
    def step(p, m, x):
        h = (x @ p + 0.5).relu()
        return p - 0.1 * h, 0.9 * m + 0.1 * (h * h)

    inputs = [torch.randn(4, 4) for _ in range(3)]
    graph = traced(step, *inputs)
    expected = graph(*inputs)
    graphs.write_over_operands(graph, carried=2)
    over = sum("_." in str(node.target) for node in operations(graph))
    assert over == 6, "add, relu, sub; 0.9 * m, 0.1 * (h * h), their sum; but not h * h or 0.1 * h"
    got = graph(*(t.clone() for t in inputs))
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_results_of_convolutions_and_norms_are_written_over_unless_they_are_read_again():
    conv, norm = nn.Conv2d(4, 4, 3, padding=1), nn.GroupNorm(2, 4)

    def loss(weight, x):
        h = conv2d(x, weight, padding=1)
        kept = norm(h)  # read by the product, too
        inner = norm(conv2d(kept.relu(), weight, padding=1)).relu()
        return (max_pool2d(inner + x, 2).sum((1, 2, 3)) * kept.mean()).sum()

    def step(weight, x):
        with FirstOrder(outermost):
            return (weight - 0.1 * grad(loss)(weight, x),)

    inputs = [conv.weight.detach(), torch.randn(2, 4, 6, 6)]
    with torch.no_grad():
        graph = traced(step, *inputs)
        graphs.simplify(graph)
        expected = graph(*inputs)
        assert torch.equal(expected[0], step(*inputs)[0])
        graphs.write_over_operands(graph, carried=1)
        over = [
            str(node.target)
            for node in operations(graph)
            if "_." in str(node.target) and node.args[0].target is operator.getitem
        ]
        got = graph(inputs[0].clone(), inputs[1])
    assert "aten.relu_.default" in over, "the second norm's result"
    assert over.count("aten.relu_.default") == 1, "the first one's is read again"
    assert "aten.add_.Tensor" in over, "the sum of a weight's two gradients"
    assert torch.equal(got[0], expected[0])


def _pooled_step(x, w, between):
    def loss(w):
        out = between(conv2d(x, w, padding=1))
        return max_pool2d(out, 2).square().sum()

    return loss(w), grad(loss)(w)


@pytest.mark.parametrize("lanes", [None, 3])
def test_relu_follows_pooling_with_the_same_bits(lanes):
    """Also where a window has no positive number, or several equal ones."""
    torch.manual_seed(0)
    x = torch.randn(5, 2, 6, 6).round(decimals=0)  # equal numbers in many windows
    w = torch.randn(*([] if lanes is None else [lanes]), 4, 2, 3, 3).round(decimals=0)

    def step(x, w):
        return _pooled_step(x, w, torch.relu)

    f = step if lanes is None else vmap(step, in_dims=(None, 0))
    with torch.no_grad(), FirstOrder(outermost):
        graph = traced(f, x, w)
    graphs.simplify(graph)
    expected = graph(x, w)
    graphs.relu_after_pooling(graph)
    assert all(torch.equal(a, b) for a, b in zip(graph(x, w), expected, strict=True))
    if lanes is None:
        relu = [n for n in operations(graph) if n.target is torch.ops.aten.relu.default]
        assert [n.args[0].target for n in relu] == [operator.getitem, operator.getitem]
        cuts = [n for n in operations(graph) if n.target is graphs.aten.threshold_backward.default]
        assert [n.meta["tensor_meta"].shape for n in cuts] == [(5, 4, 3, 3)]
        call = graphs.optimised(graph, [x, w], carried=0)
        assert all(torch.equal(a, b) for a, b in zip(call(x, w), expected, strict=True))


def _read_again(x, w):
    out = torch.relu(conv2d(x, w, padding=1))
    return max_pool2d(out, 2), out.sum()


def _read_where(x, w):
    out = torch.relu(conv2d(x, w, padding=1))
    largest, where = max_pool2d(out, 2, return_indices=True)
    return largest, where.sum()


@pytest.mark.parametrize("f", [_read_again, _read_where])
def test_relu_stays_before_pooling_if_something_else_reads_it_or_the_positions(f):
    x, w = torch.randn(5, 2, 6, 6), torch.randn(4, 2, 3, 3)
    graph = traced(f, x, w)
    expected = graph(x, w)
    graphs.relu_after_pooling(graph)
    assert all(torch.equal(a, b) for a, b in zip(graph(x, w), expected, strict=True))
    relu = [n for n in operations(graph) if n.target is torch.ops.aten.relu.default]
    assert relu[0].args[0].target is torch.ops.aten.convolution.default


def test_a_view_from_elsewhere_is_not_taken_for_the_whole():
    x = torch.arange(8.0)
    graph = traced(lambda t: (t[4:][:4] * 2, t[:4].reshape(4) + 0), x)
    expected = graph(x)
    graphs.simplify(graph)
    assert all(torch.equal(a, b) for a, b in zip(graph(x), expected, strict=True))


def test_an_optimisation_that_changes_bits_is_not_used(monkeypatch):
    def spoil(graph):
        for node in operations(graph):
            if node.target is torch.ops.aten.add.Tensor:
                node.target = torch.ops.aten.mul.Tensor
        graph.recompile()

    monkeypatch.setattr(graphs, "native", spoil)
    inputs = [torch.tensor([2.0]), torch.tensor([5.0])]
    graph = traced(lambda a, b: (a + b,), *inputs)
    assert graphs.optimised(graph, inputs, carried=0)(*inputs)[0].item() == 7.0
