"""Log-softmax along columns gives the bits of torch's log-softmax along rows."""

import pytest
import torch
from torch.func import grad, vmap

from isonomy.engines.batched import columns
from isonomy.engines.batched.columns import NUMBERS, by_columns
from isonomy.engines.batched.trace import trace

aten = torch.ops.aten
REGISTER = columns.REGISTER.get(torch.backends.cpu.get_cpu_capability(), 0)
needs_vectors = pytest.mark.skipif(not REGISTER, reason="torch has no such kernels on this CPU")


def losses(x, y):
    return -x.log_softmax(-1).gather(-1, y[:, None]).squeeze(-1)


def slopes(x, y):
    return grad(lambda x: losses(x, y).mean())(x)


def axes(graph):
    return [n.args[1] for n in graph.graph.nodes if n.target is aten._log_softmax.default]


def turned(f, *inputs):
    graph = trace(lambda *t: f(*t), inputs)
    made = by_columns(graph, list(inputs))
    assert all(torch.equal(a, b) for a, b in zip(made(*inputs), graph(*inputs), strict=True))
    return made


def drawn(lanes, batch, classes, size=3.0):
    generator = torch.Generator().manual_seed(lanes * batch + classes)
    x = size * torch.randn(lanes, batch, classes, generator=generator)
    return x, torch.randint(classes, (lanes, batch), generator=generator)


@needs_vectors
@pytest.mark.parametrize("classes", range(2, REGISTER))
@pytest.mark.parametrize("lanes", [52, 53, 100])
def test_bits_of_losses_and_slopes(classes, lanes):
    """Also with rows that do not fill registers, and with logits of any size."""
    inputs = drawn(lanes, 10, classes)
    made = turned(lambda x, y: (vmap(slopes)(x, y), vmap(losses)(x, y)), *inputs)
    assert axes(made) == [0, 0]
    for size in (1e-3, 1.0, 30.0, 1e4):
        x, y = drawn(lanes, 10, classes, size)
        got, value = made(x, y)
        assert torch.equal(got, vmap(slopes)(x, y))
        assert torch.equal(value, vmap(losses)(x, y))
        assert got.is_contiguous()
        assert value.is_contiguous()


@needs_vectors
def test_several_threads_give_the_same_bits():
    inputs = drawn(2_000, 16, 10)
    made = turned(lambda x, y: (vmap(slopes)(x, y),), *inputs)
    before = torch.get_num_threads()
    expected = made(*inputs)[0]
    try:
        torch.set_num_threads(2)
        assert torch.equal(made(*inputs)[0], expected)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("x", "axis"),
    [
        (torch.randn(200, 16), -1),  # as long as a register or longer: added up in another order
        (torch.randn(NUMBERS // 2 - 1, 2), -1),  # too few
        (torch.randn(4, 400), 0),  # along columns already
        (torch.randn(4, 400).t(), -1),  # not dense
        (torch.randn(400, 3, dtype=torch.float64), -1),
    ],
)
def test_what_is_left_as_it_is(x, axis):
    graph = trace(lambda x: (x.log_softmax(axis),), [x])
    assert by_columns(graph, [x]) is graph


@needs_vectors
def test_other_bits_are_not_used(monkeypatch):
    plain = columns._columns

    def shifted(graph, x, register):  # equal in exact arithmetic
        return graph.call_function(aten.add.Tensor, (plain(graph, x, register), 0.3))

    monkeypatch.setattr(columns, "_columns", shifted)
    x = drawn(100, 10, 10)[0]
    graph = trace(lambda x: (x.log_softmax(-1),), [x])
    assert by_columns(graph, [x]) is graph
