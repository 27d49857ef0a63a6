"""Products that are added in one operation: the same numbers to rounding, with fewer operations."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from isonomy.engines.batched.graph import optimised
from isonomy.engines.batched.products import add_products
from isonomy.engines.batched.trace import Traced, trace

aten = torch.ops.aten


def drawn(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def joined(f: Callable[..., list[Tensor]], inputs: list[Tensor]) -> Traced:
    """The traced function with joined operations; fails unless the numbers are the same."""
    graph = trace(f, inputs)
    expected = graph(*inputs)
    add_products(graph)
    assert_close(graph(*inputs), expected)
    return graph


def kinds(graph: Traced) -> list[object]:
    return [node.target for node in graph.graph.nodes if node.op == "call_function"]


W, A, B = (5, 6, 7), (5, 6, 3), (5, 3, 7)


@pytest.mark.parametrize("rate", [(), (1,), (5, 1, 1)], ids=["number", "one", "of_each_lane"])
def test_a_step_of_descent_is_one_operation(rate: tuple[int, ...]) -> None:
    graph = joined(lambda p, a, b, r: [p - r * torch.bmm(a, b)], drawn(W, A, B, rate))
    assert aten.baddbmm.default in kinds(graph)
    assert not {aten.bmm.default, aten.sub.Tensor} & set(kinds(graph))


def test_by_hand() -> None:
    # 1 - 0.5 * (2 * 3 + 4 * 5) = -12
    inputs = [torch.tensor([[1.0]]), torch.tensor([[2.0, 4.0]]), torch.tensor([[3.0], [5.0]])]
    graph = trace(lambda p, a, b, r: [p - r * (a @ b)], [*inputs, torch.tensor(0.5)])
    add_products(graph)
    assert kinds(graph)[-1] is aten.addmm.default
    assert float(graph(*inputs, torch.tensor(0.5))[0]) == -12.0


def test_no_factor_and_several() -> None:
    graph = joined(lambda p, a, b: [p - torch.bmm(a, b)], drawn(W, A, B))
    assert kinds(graph) == [aten.neg.default, aten.baddbmm.default]
    graph = joined(lambda p, a, b, r, s: [p - s * (torch.bmm(a, b) * r)], drawn(W, A, B, (), ()))
    assert aten.bmm.default not in kinds(graph)


def test_a_bias_on_either_side() -> None:
    for f in (lambda a, b, c: [torch.bmm(a, b) + c], lambda a, b, c: [c + torch.bmm(a, b)]):
        assert kinds(joined(f, drawn(A, B, (5, 1, 7)))) == [aten.baddbmm.default]


def test_the_smaller_operand_is_scaled() -> None:
    for a, b, which in (((5, 40, 3), (5, 3, 7), 1), ((5, 6, 3), (5, 3, 40), 0)):
        shape = (5, a[1], b[2])
        graph = joined(lambda p, a, b, r: [p - r * torch.bmm(a, b)], drawn(shape, a, b, ()))
        (scaled,) = (node for node in graph.graph.nodes if node.target is aten.mul.Tensor)
        assert scaled.args[0].name == f"x_{1 + which}"


@pytest.mark.parametrize(
    "f",
    [
        lambda p, a, b, r: [p - r * torch.bmm(a, b), torch.bmm(a, b).sum()],
        lambda p, a, b, r: (lambda ab: [p - r * ab, ab])(torch.bmm(a, b)),  # read twice
        lambda p, a, b, r: [
            p - torch.arange(6.0).reshape(6, 1) * torch.bmm(a, b)
        ],  # a factor for each row
        lambda p, a, b, r: [p.double() - torch.bmm(a, b)],  # of another type
        lambda p, a, b, r: [torch.stack([p, p]) + torch.bmm(a, b)],  # the product is repeated
    ],
)
def test_numbers_stay_right_where_operations_are_not_joined(f) -> None:
    inputs = drawn(W, A, B, ())
    graph = trace(f, inputs)
    expected = graph(*inputs)
    add_products(graph)
    assert_close(graph(*inputs), expected)


def test_a_product_that_is_read_twice_is_computed_once() -> None:
    def f(p: Tensor, a: Tensor, b: Tensor) -> list[Tensor]:
        ab = torch.bmm(a, b)
        return [p - ab, ab]

    assert kinds(joined(f, drawn(W, A, B))) == [aten.bmm.default, aten.sub.Tensor]


def test_what_the_runner_owns_is_changed_in_place_and_nothing_else() -> None:
    inputs = drawn(W, A, B, ())
    graph = trace(lambda p, a, b, r: [p - r * torch.bmm(a, b)], inputs)
    add_products(graph)
    own, others = inputs[0].clone(), [t.clone() for t in inputs[1:]]
    (out,) = optimised(graph, inputs, 1)(own, *others)
    assert out.data_ptr() == own.data_ptr()
    assert_close(out, inputs[0] - inputs[3] * torch.bmm(*inputs[1:3]))
    assert all(torch.equal(a, b) for a, b in zip(others, inputs[1:], strict=True))
    (out,) = optimised(graph, inputs, 0)(*inputs)
    assert out.data_ptr() != inputs[0].data_ptr()
