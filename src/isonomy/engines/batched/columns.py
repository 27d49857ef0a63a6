"""Compute log-softmax over few classes along columns instead of rows, with the same bits.

For a row with fewer numbers than a vector register holds, torch's kernel adds them up one by one,
at more than a hundred nanoseconds a row; the small networks of a cohort spend a fourth of their
step on it. With the classes along the first axis, one register holds the same class of many rows,
and each row is still added up in the same order with the same exponential function. The bits are
the same if the number of rows is a multiple of the register's length, so rows are added up to it:
a remainder would be computed with another exponential function.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from isonomy.engines.batched.trace import LAYOUT, Layout, Traced

aten = torch.ops.aten

REGISTER = {"AVX2": 8, "AVX512": 16}  # single-precision numbers in a vector register
NUMBERS = 1024  # of a tensor below which the additional operations cost more than they save


def by_columns(graph: Traced, inputs: list[Tensor]) -> Traced:
    """The graph with log-softmax along columns; the graph itself if that gives other bits.

    It is for tensors on the CPU, and before operations are made to write to their inputs.
    """
    register = REGISTER.get(torch.backends.cpu.get_cpu_capability(), 0)
    if not any(_narrow(node, register) for node in graph.graph.nodes):
        return graph
    made = graph.copy()
    for node in list(made.graph.nodes):
        if _narrow(node, register):
            _turn(made.graph, node, register)
    made.graph.eliminate_dead_code()
    made.recompile()
    expected, got = graph(*inputs), made(*inputs)
    same = all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    return made if same else graph


def _narrow(node: torch.fx.Node, register: int) -> bool:
    """Whether a node is a log-softmax of many short rows, along them, not along columns already."""
    if node.target is not aten._log_softmax.default:
        return False
    x, axis, to_half = node.args
    return not to_half and _rows_of(x, axis, register)


def _rows_of(x: Any, axis: Any, register: int) -> bool:
    """Whether these are many short rows of numbers in single precision."""
    layout = x.meta.get(LAYOUT) if isinstance(x, torch.fx.Node) else None
    if layout is None or layout.dtype != torch.float32 or len(layout.shape) < 2:
        return False
    last = len(layout.shape) - 1
    dense = layout.stride == _dense(layout.shape)
    short = layout.shape[-1] < register and math.prod(layout.shape) >= NUMBERS
    return dense and axis in (last, -1) and short


def _turn(graph: torch.fx.Graph, node: torch.fx.Node, register: int) -> None:
    """Replace a log-softmax, and its derivatives, by those of the transposed matrix."""
    x, axis, _ = node.args
    with graph.inserting_before(node):
        columns = graph.call_function(
            aten._log_softmax.default, (_columns(graph, x, register), 0, False)
        )
    for user in list(node.users):
        if user.target is not aten._log_softmax_backward_data.default:
            continue
        slope, out, along, _ = user.args
        if out is not node or along != axis or not _rows_of(slope, along, register):
            continue
        with graph.inserting_before(user):
            turned = _columns(graph, slope, register)
            kind = user.args[3]
            back = graph.call_function(user.target, (turned, columns, 0, kind))
            user.replace_all_uses_with(_rows(graph, back, user.meta[LAYOUT], register))
        graph.erase_node(user)
    if node.users:
        with graph.inserting_before(node):
            rows = _rows(graph, columns, node.meta[LAYOUT], register)
        node.replace_all_uses_with(rows)
    graph.erase_node(node)


def _columns(graph: torch.fx.Graph, x: Any, register: int) -> torch.fx.Node:
    """The rows of a tensor as the columns of a matrix, filled up with zeros."""
    shape = x.meta[LAYOUT].shape
    width, rows = shape[-1], math.prod(shape[:-1])
    flat = graph.call_function(aten.view.default, (x, [rows, width]))
    turned = graph.call_function(aten.t.default, (flat,))
    if rows % register == 0:
        return turned
    return graph.call_function(aten.constant_pad_nd.default, (turned, [0, -rows % register]))


def _rows(
    graph: torch.fx.Graph, columns: torch.fx.Node, layout: Layout, register: int
) -> torch.fx.Node:
    """The columns of a matrix as the rows of a tensor."""
    rows = math.prod(layout.shape[:-1])
    if rows % register:
        columns = graph.call_function(aten.slice.Tensor, (columns, 1, 0, rows))
    turned = graph.call_function(aten.t.default, (columns,))
    dense = graph.call_function(
        aten.clone.default, (turned,), {"memory_format": torch.contiguous_format}
    )
    made = graph.call_function(aten.view.default, (dense, list(layout.shape)))
    made.meta[LAYOUT] = layout
    return made


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a tensor of this shape without gaps."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
