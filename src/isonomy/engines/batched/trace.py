"""Record the tensor operations of a function as a graph.

`make_fx` of torch does the same and more: it serves compilers, imports them, and costs several
times as much. Here operations are recorded below `vmap` and `grad`, on plain tensors, while they
are carried out once.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

aten = torch.ops.aten

LAYOUT = "tensor_meta"  # the key of a node's `meta` that holds its `Layout`


class Layout(NamedTuple):
    """How a tensor lies in memory."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


class NotTraceable(Exception):
    """What the function does depends on values of its inputs."""


class Traced:
    """A graph of operations as a function of its inputs.

    As `torch.fx.GraphModule`, but Python code is made of the graph when it is first called, and
    not in every pass that changes it; and a copy shares its constants.
    """

    def __init__(self, graph: torch.fx.Graph, constants: Mapping[str, Tensor]) -> None:
        self.graph = graph
        self.constants = dict(constants)
        self._made: Callable[..., Any] | None = None

    @classmethod
    def of(cls, module: torch.fx.GraphModule) -> Traced:
        """The graph of a module."""
        names = [node.target for node in module.graph.nodes if node.op == "get_attr"]
        return cls(module.graph, {name: getattr(module, name) for name in names})

    def recompile(self) -> None:
        """The graph was changed."""
        self._made = None

    @property
    def forward(self) -> Callable[..., Any]:
        """The graph as a function."""
        if self._made is None:
            code = self.graph.python_code(root_module="self")
            scope = dict(code.globals)
            exec(code.src, scope)  # as torch.fx does
            self._made = functools.partial(scope["forward"], SimpleNamespace(**self.constants))
        return self._made

    def __call__(self, *inputs: Tensor) -> Any:
        """The results for these inputs."""
        return self.forward(*inputs)

    def copy(self) -> Traced:
        """The same graph, to change it."""
        graph = torch.fx.Graph()
        graph.output(graph.graph_copy(self.graph, {}))
        return Traced(graph, self.constants)


def trace(f: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]) -> Traced:
    """The operations of `f(*inputs)` as a graph with the same inputs and results.

    A tensor that is neither an input nor computed becomes an attribute of the graph. Raises
    NotTraceable if a value of a computed tensor is read.

    >>> graph = trace(lambda x: [2 * x + 1], [torch.tensor([1.0, 2.0])])
    >>> graph(torch.tensor([10.0]))[0].tolist()
    [21.0]
    """
    recorder = _Recorder(inputs)
    with recorder:
        results = f(*inputs)
    return recorder.finish(results)


def flops(f: Callable[[], Any]) -> int:
    """The number of floating-point operations of `f()`, by torch's formulas.

    >>> flops(lambda: torch.ones(2, 3) @ torch.ones(3, 4))
    48
    """
    counter = _Counter()
    with counter:
        f()
    return counter.total


class Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation on plain tensors; for subclasses."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing here is compiled, and skipping dynamo would import it


class _Counter(Mode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.total += formula(*args, **(kwargs or {}), out_val=out)
        return out


class _Recorder(Mode):  # type: ignore[no-untyped-call]
    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._graph = torch.fx.Graph()
        self._constants: dict[str, Tensor] = {}
        self._nodes: dict[int, torch.fx.Node] = {}
        self._seen: list[Tensor] = []  # alive, so that no other tensor gets the same id
        for i, tensor in enumerate(inputs):
            self._name(tensor, self._graph.placeholder(f"x_{i}"))

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if torch.Tag.data_dependent_output in func.tags:
            if any(id(a) in self._nodes for a in args if isinstance(a, Tensor)):
                raise NotTraceable(str(func))
            return func(*args, **kwargs)
        out = func(*args, **kwargs)
        target = aten.lift_fresh_copy.default if func is aten.lift_fresh.default else func
        node = self._graph.call_function(target, self._nodes_of(args), self._nodes_of(kwargs))
        if isinstance(out, Tensor):
            self._name(out, node)
        elif isinstance(out, (tuple, list)):
            for i, part in enumerate(out):
                if isinstance(part, Tensor):
                    self._name(part, self._graph.call_function(operator.getitem, (node, i)))
        return out

    def finish(self, results: Sequence[Tensor]) -> Traced:
        """The graph, with these results."""
        self._graph.output(tuple(self._node(t) for t in results))
        return Traced(self._graph, self._constants)

    def _name(self, tensor: Tensor, node: torch.fx.Node) -> None:
        node.meta[LAYOUT] = Layout(tuple(tensor.shape), tensor.stride(), tensor.dtype)
        self._nodes[id(tensor)] = node
        self._seen.append(tensor)

    def _node(self, tensor: Tensor) -> torch.fx.Node:
        known = self._nodes.get(id(tensor))
        if known is not None:
            return known
        name = f"_tensor_constant{len(self._constants)}"
        self._constants[name] = tensor
        node = self._graph.create_node("get_attr", name)
        self._name(tensor, node)
        return node

    def _nodes_of(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._node(value)
        if isinstance(value, (tuple, list)):
            return type(value)(self._nodes_of(part) for part in value)
        if isinstance(value, dict):
            return {key: self._nodes_of(part) for key, part in value.items()}
        return value
