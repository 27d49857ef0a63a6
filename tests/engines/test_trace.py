"""A recorded graph has the operations of torch's own tracer, and gives the same bits."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

from isonomy.engines.batched.trace import NotTraceable, flops, trace

NETS = {
    "mlp": (nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), (4, 6)),
    "tanh, group norm": (
        nn.Sequential(nn.Linear(6, 8), nn.GroupNorm(2, 8), nn.Tanh(), nn.Linear(8, 3)),
        (4, 6),
    ),
    "convolution": (
        nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3)
        ),
        (4, 1, 6, 6),
    ),
}


def training_step(name):
    net, shape = NETS[name]
    names = [n for n, _ in net.named_parameters()]

    def loss(params, x, y):
        out = functional_call(net, dict(zip(names, params, strict=True)), (x,))
        return nn.functional.cross_entropy(out, y)

    def step(*tensors):
        *params, x, y = tensors
        slopes = grad(loss)(params, x, y)
        return [p - 0.1 * s for p, s in zip(params, slopes, strict=True)]

    torch.manual_seed(0)
    lanes = [p.detach().expand(3, *p.shape).clone() for p in net.parameters()]
    return vmap(step), [*lanes, torch.randn(3, *shape), torch.randint(3, (3, shape[0]))]


def operations(graph):
    return [str(n.target) for n in graph.graph.nodes if str(n.target).startswith("aten")]


@pytest.mark.parametrize("name", NETS)
def test_the_graph_is_that_of_make_fx(name):
    step, inputs = training_step(name)
    with torch.no_grad():
        ours, theirs, expected = trace(step, inputs), make_fx(step)(*inputs), step(*inputs)
        other = [*inputs[:-2], inputs[-2] * 2, inputs[-1]]  # nothing of the first inputs is kept
        for got in (ours(*inputs), theirs(*inputs)):
            assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(ours(*other), step(*other), strict=True))
    assert operations(ours) == operations(theirs)


def test_layouts_of_values_are_recorded():
    graph = trace(lambda x: [x.T + 1], [torch.zeros(2, 3)])
    layouts = [tuple(n.meta["tensor_meta"]) for n in graph.graph.nodes if n.op != "output"]
    assert layouts == [
        ((2, 3), (3, 1), torch.float32),
        ((3, 2), (1, 3), torch.float32),
        ((3, 2), (1, 3), torch.float32),
    ]


@pytest.mark.parametrize("step", [lambda x: [x * x.sum().item()], lambda x: [x] if x[0] > 0 else x])
def test_reading_a_value_is_refused(step):
    with pytest.raises(NotTraceable):
        trace(step, [torch.ones(2)])


def test_a_tensor_from_outside_is_an_attribute_of_the_graph():
    outside = torch.tensor([3.0])
    graph = trace(lambda x: [x + outside, x + torch.tensor(5.0)], [torch.ones(1)])
    attributes = [n for n in graph.graph.nodes if n.op == "get_attr"]
    users = [{str(u.target) for u in n.users} for n in attributes]
    assert users == [{"aten.add.Tensor"}, {"aten.lift_fresh_copy.default"}]
    assert [t.tolist() for t in graph(torch.zeros(1))] == [[3.0], [5.0]]


@pytest.mark.parametrize("name", NETS)
def test_flops_are_those_of_torchs_counter(name):
    step, inputs = training_step(name)
    with FlopCounterMode(display=False) as counter:
        step(*inputs)
    assert flops(lambda: step(*inputs)) == counter.get_total_flops() > 0


def test_a_run_needs_no_compiler():
    """Importing it takes one to two seconds."""
    code = """
import sys
import isonomy
from isonomy import make_config
isonomy.run(make_config(data={"name": "synthetic", "clients": 3}, model="logistic", rounds=1))
print([m for m in ("torch._dynamo", "torch._inductor", "sympy") if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip().endswith("[]"), done.stdout + done.stderr
