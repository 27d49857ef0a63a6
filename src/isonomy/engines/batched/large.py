"""Faster operations for clients' large matrices; the results are equal to rounding.

**Products by oneDNN.** On the CPU torch multiplies matrices in single precision with MKL, which on
AMD's processors computes in registers of 256 bits. Since Zen 5 they have units of 512. oneDNN,
which torch contains for convolutions, uses these: it is about twice as fast for large matrices, and
slower for small ones. It multiplies one client's matrices at a time.

**Updates in one pass.** `p - rate * gradient` reads and writes the memory of a weight matrix twice;
torch's `addcmul` does it once, and rounds once instead of twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode, _pop_mode_temporarily

from isonomy.engines.batched.trace import LAYOUT, Layout, Mode, Traced

aten = torch.ops.aten

PRODUCT = 1_500_000  # multiplications in a product, from which oneDNN is the faster library
THIN = 16  # rows or columns, fewer than which it is slower
WEIGHTS = 2**15  # numbers in a weight matrix, from which products that are not traced are looked at
UPDATED = 2**18  # numbers in a weight matrix, from which its update is made in one pass


def for_large_matrices(graph: Traced) -> Traced:
    """The graph with faster operations for large matrices; the graph itself if it has none.

    It is for tensors on the CPU, and before operations are made to write to their inputs.
    """
    nodes = list(graph.graph.nodes)
    products = any(map(_large_product, nodes)) and onednn_is_faster()
    if not products and not any(map(_large_update, nodes)):
        return graph
    made = graph.copy()
    for node in list(made.graph.nodes):
        if products and _large_product(node):
            _by_onednn(made.graph, node)
        elif _large_update(node):
            _in_one_pass(node)
    made.graph.eliminate_dead_code()
    made.recompile()
    return made


# --- products -------------------------------------------------------------------------------------


@cache
def onednn_is_faster() -> bool:
    """Whether this processor is one of those, and torch has an oneDNN that multiplies correctly."""
    backends: Any = torch.backends
    if not (backends.mkl.is_available() and backends.mkldnn.is_available()):
        return False
    try:
        if not half_used(torch.cpu.get_capabilities()):
            return False
        a, b, c = (torch.arange(n).sin() for n in (THIN * 600, 600 * 300, 300))
        a, b = a.view(THIN, 600), b.view(600, 300)
        exact = a.double() @ b.double()
        for bias, expected in ((None, exact), (c, exact + c)):
            if not torch.allclose(product(a, b, bias).double(), expected, atol=1e-3):
                return False
    except (AttributeError, KeyError, RuntimeError):  # another version of torch
        return False
    return True


def half_used(capabilities: Mapping[str, Any]) -> bool:
    """Whether MKL uses half of this processor's vector units: an AMD with units of 512 bits.

    Zen 4 has AVX-512 too, but computes it in units of 256 bits, so MKL loses nothing there; it
    lacks the instruction by which later ones are recognised.

    >>> half_used({"cpu_name": "AMD EPYC", "avx512_vp2intersect": True})
    True
    >>> half_used({"cpu_name": "Intel(R) Xeon(R) Platinum", "avx512_vp2intersect": True})
    False
    """
    amd = str(capabilities["cpu_name"]).startswith("AMD")
    return amd and bool(capabilities["avx512_vp2intersect"])


def product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product of two matrices by oneDNN, with a bias added to each row.

    >>> product(torch.ones(2, 3), torch.ones(3, 1), torch.ones(1)).tolist()
    [[4.0], [4.0]]
    """
    with torch.no_grad():
        made: Tensor = torch.ops.mkldnn._linear_pointwise.default(a, b.t(), bias, *_PLAIN)
    return made


_PLAIN: tuple[Any, ...] = ("none", [], "")  # no function of the product


class LargeProducts(Mode):  # type: ignore[no-untyped-call]
    """Inside it, large products are computed by oneDNN operation by operation.

    It is for what is not traced, such as losses and gradients of all of a client's examples, and
    slows down every other operation by some microseconds. So it is `suspended` while traced steps
    run, whose graphs have such products already.
    """

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """As without it, except for large products."""
        if func not in _PRODUCTS or kwargs or not _large(*map(_layout_of, args)):
            return func(*args, **(kwargs or {}))
        *bias, a, b = args
        if func is aten.bmm.default:
            return torch.stack([product(x, y) for x, y in zip(a, b, strict=True)])
        return product(a, b, *bias)


def large_products(net: nn.Module) -> AbstractContextManager[Any]:
    """`LargeProducts`, if the network has large weights and oneDNN is faster here."""
    numbers = (p.numel() for p in net.parameters() if p.dim() > 1 and p.device.type == "cpu")
    if max(numbers, default=0) < WEIGHTS or not onednn_is_faster():
        return nullcontext()
    return LargeProducts()  # type: ignore[no-untyped-call]


@contextmanager
def suspended() -> Iterator[None]:
    """Inside the `with` block, `LargeProducts` around it does nothing and costs nothing."""
    if not isinstance(_get_current_dispatch_mode(), LargeProducts):
        yield
        return
    with _pop_mode_temporarily():
        yield


def _large_product(node: torch.fx.Node) -> bool:
    """Whether a node is the product of large dense matrices in single precision."""
    return node.target in _PRODUCTS and not node.kwargs and _large(*map(_layout, node.args))


def _large(*operands: Layout | None) -> bool:
    """Whether these are large dense matrices in single precision, perhaps after a bias."""
    *bias, a, b = operands
    if a is None or b is None or not (_dense(a) and _dense(b)):
        return False
    sizes = (*a.shape[-2:], b.shape[-1])
    if bias and (bias[0] is None or bias[0].shape != sizes[-1:] or bias[0].stride != (1,)):
        return False
    return min(sizes) >= THIN and math.prod(sizes) >= PRODUCT


_PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default)


def _by_onednn(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    linear = torch.ops.mkldnn._linear_pointwise.default
    *bias, a, b = node.args
    with graph.inserting_before(node):
        if node.target is aten.bmm.default:
            made = []
            for lane in range(node.meta[LAYOUT].shape[0]):
                x, y = (graph.call_function(aten.select.int, (t, 0, lane)) for t in (a, b))
                turned = graph.call_function(aten.t.default, (y,))
                made.append(graph.call_function(linear, (x, turned, None, *_PLAIN)))
            node.target, node.args = aten.stack.default, (made,)
        else:
            turned = graph.call_function(aten.t.default, (b,))
            node.target = linear
            node.args = (a, turned, bias[0] if bias else None, *_PLAIN)


def _layout(node: Any) -> Layout | None:
    """How a tensor in single precision lies in memory."""
    layout = node.meta.get(LAYOUT) if isinstance(node, torch.fx.Node) else None
    return layout if layout is not None and layout.dtype == torch.float32 else None


def _layout_of(t: Any) -> Layout | None:
    """The same of a plain tensor on the CPU."""
    if type(t) is not Tensor or t.dtype != torch.float32 or t.device.type != "cpu":
        return None
    return Layout(t.shape, t.stride(), t.dtype)


def _dense(matrix: Layout) -> bool:
    """Whether a matrix, or every client's, has no gaps, along rows or along columns."""
    rows, columns = matrix.shape[-2:]
    return matrix.stride[-2:] in ((columns, 1), (1, rows))


# --- updates --------------------------------------------------------------------------------------


def _large_update(node: torch.fx.Node) -> bool:
    """Whether a node takes a gradient times a rate from a large matrix, both dense."""
    if node.target is not aten.sub.Tensor or node.kwargs:
        return False
    matrix, step = node.args
    p, parts = _layout(matrix), _rate_and_gradient(step)
    if p is None or parts is None or len(p.shape) != 2 or math.prod(p.shape) < UPDATED:
        return False
    return _dense(p) and _layout(parts[1]) == p


def _in_one_pass(node: torch.fx.Node) -> None:
    parts = _rate_and_gradient(node.args[1])
    assert parts is not None
    rate, gradient = parts
    node.target = aten.addcmul.default
    node.args, node.kwargs = (node.args[0], gradient, rate), {"value": -1}


def _rate_and_gradient(step: Any) -> tuple[torch.fx.Node, torch.fx.Node] | None:
    """The factors of a product that nothing else reads, the first of which is one number."""
    if not isinstance(step, torch.fx.Node) or step.target is not aten.mul.Tensor:
        return None
    for rate, gradient in (step.args, step.args[::-1]):
        layout = _layout(rate)
        if layout is not None and layout.shape == () and isinstance(gradient, torch.fx.Node):
            return (rate, gradient) if len(step.users) == 1 else None  # type: ignore[return-value]
    return None
