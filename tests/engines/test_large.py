"""Faster operations for large matrices: which ones are replaced, and the numbers they give."""

import collections

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad
from torch.utils._python_dispatch import TorchDispatchMode

from isonomy.algorithms.average.fedavg import FedAvg
from isonomy.blocks.measure import loss_and_gradient
from isonomy.core import tree
from isonomy.core.phase import Part, phase
from isonomy.core.task import Task
from isonomy.core.work import Work
from isonomy.data.federation import build
from isonomy.engines.batched import large
from isonomy.engines.batched.engine import Batched
from isonomy.engines.batched.graph import optimised
from isonomy.engines.batched.large import for_large_matrices, onednn_is_faster
from isonomy.engines.batched.program import Programs
from isonomy.engines.batched.trace import trace
from isonomy.engines.loop import Loop

aten = torch.ops.aten
ONEDNN = torch.ops.mkldnn._linear_pointwise.default
needs_onednn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN"
)


@pytest.fixture
def faster(monkeypatch):
    """A processor on which oneDNN is the faster library, whatever this one is."""
    monkeypatch.setattr(large, "onednn_is_faster", lambda: True)


def drawn(*shape, turned=False, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    made = torch.randn(*(shape[::-1] if turned else shape), generator=generator)
    return made.t() if turned else made


def targets(f, *inputs):
    made = for_large_matrices(trace(lambda *t: [f(*t)], inputs))
    return [n.target for n in made.graph.nodes if n.op == "call_function"]


@needs_onednn
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_products_are_right_to_rounding(faster, left, right, bias):
    """Far closer to the product in double precision than one of fewer bits would be."""
    a, b, c = drawn(32, 700, turned=left), drawn(700, 120, turned=right), drawn(120)
    inputs = [a, b, c] if bias else [a, b]
    f = (lambda a, b, c: torch.addmm(c, a, b)) if bias else torch.mm
    graph = for_large_matrices(trace(lambda *t: [f(*t)], inputs))
    assert ONEDNN in [n.target for n in graph.graph.nodes]
    got, exact = graph(*inputs)[0], f(*(t.double() for t in inputs))
    rounding = 700**0.5 * torch.finfo(torch.float32).eps * (a.abs() @ b.abs())
    assert ((got - exact).abs() <= rounding).all()
    half = f(*(t.bfloat16() for t in inputs))
    assert ((half - exact).abs() > rounding).any()
    assert got.is_contiguous()


@needs_onednn
def test_products_of_several_clients_have_the_bits_of_each_alone(faster):
    a, w = drawn(3, 32, 700), drawn(3, 120, 700)
    graph = for_large_matrices(trace(lambda a, w: [torch.bmm(a, w.transpose(1, 2))], [a, w]))
    kinds = [n.target for n in graph.graph.nodes]
    assert kinds.count(ONEDNN) == 3
    assert aten.bmm.default not in kinds
    got = graph(a, w)[0]
    assert got.is_contiguous()
    for lane in range(3):
        assert torch.equal(got[lane], large.product(a[lane], w[lane].t()))
    many = drawn(100, 10, 60), drawn(100, 60, 64)
    assert targets(torch.bmm, *many) == [aten.bmm.default], "small for each client"


@needs_onednn
def test_weights_are_not_written_over_before_they_are_read(faster):
    """With several clients, whose weights are read one by one."""
    w, x, rate = drawn(2, 200, 200), drawn(2, 64, 200), torch.tensor(0.1)

    def step(w, x, rate):
        out = torch.bmm(x, w)
        return w - rate * torch.bmm(x.transpose(1, 2), out), torch.bmm(out, w)

    graph = for_large_matrices(trace(step, [w, x, rate]))
    expected = graph(w, x, rate)
    own = w.clone()
    got = optimised(graph, [w, x, rate], carried=1, compare=False)(own, x, rate)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


@needs_onednn
def test_only_large_dense_products_in_single_precision_are_replaced(faster):
    wide = drawn(64, 512)
    assert ONEDNN in targets(torch.mm, wide, drawn(512, 64))
    assert ONEDNN not in targets(torch.mm, wide, drawn(512, 45)), "too small"
    assert ONEDNN not in targets(torch.mm, drawn(2_000, 500), drawn(500, 8)), "too thin"
    assert ONEDNN not in targets(torch.mm, wide.double(), drawn(512, 64).double())
    assert ONEDNN not in targets(torch.mm, wide, drawn(1024, 64)[::2]), "with gaps"
    assert ONEDNN not in targets(torch.mm, wide, drawn(1, 64).expand(512, 64)), "with gaps"
    assert ONEDNN not in targets(torch.addmm, drawn(64, 64), wide, drawn(512, 64)), "not a bias"


def test_products_stay_where_the_other_library_is_as_fast(monkeypatch):
    monkeypatch.setattr(large, "onednn_is_faster", lambda: False)
    assert targets(torch.mm, drawn(64, 512), drawn(512, 64)) == [aten.mm.default]


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({"cpu_name": "AMD EPYC 9755", "avx512_vp2intersect": True}, True),
        ({"cpu_name": "AMD EPYC 9B14", "avx512_vp2intersect": False}, False),
        ({"cpu_name": "11th Gen Intel(R)", "avx512_vp2intersect": True}, False),
        ({}, False),  # of another version of torch
    ],
)
@needs_onednn
def test_processors(monkeypatch, capabilities, expected):
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    onednn_is_faster.cache_clear()
    drawn_so_far = torch.random.get_rng_state()
    try:
        assert onednn_is_faster() is expected
        assert torch.equal(torch.random.get_rng_state(), drawn_so_far)
        if expected:
            onednn_is_faster.cache_clear()
            monkeypatch.setattr(large, "product", lambda a, b, bias: (a @ b) * 1.01)
            assert onednn_is_faster() is False, "it multiplies wrongly"
    finally:
        onednn_is_faster.cache_clear()


def test_an_update_in_one_pass_rounds_at_most_once_more():
    p, g, rate = drawn(600, 500), drawn(600, 500, seed=1), torch.tensor(0.05)
    graph = for_large_matrices(trace(lambda p, g, r: [p - r * g], [p, g, rate]))
    assert [n.target for n in graph.graph.nodes if n.op == "call_function"] == [
        aten.addcmul.default
    ]
    got, exact = graph(p, g, rate)[0], p.double() - rate.double() * g.double()
    plain = p - rate * g
    assert (got - exact).abs().max() <= (plain - exact).abs().max()
    own = p.clone()
    written = optimised(graph, [p, g, rate], carried=1)(own, g, rate)[0]
    assert torch.equal(written, got)
    assert written.data_ptr() == own.data_ptr(), "not updated in place"


@pytest.mark.parametrize(
    ("f", "shape"),
    [
        (lambda p, g, r: p - r * g, (600, 400)),  # small
        (lambda p, g, r: p - r * g, (300_000,)),  # not a matrix
        (lambda p, g, r: r * g - p, (600, 500)),
        (lambda p, g, r: p - (r * g + p), (600, 500)),
        (lambda p, g, r: p - g * g, (600, 500)),
    ],
)
def test_other_updates_stay(f, shape):
    p, g = drawn(*shape), drawn(*shape, seed=1)
    assert aten.addcmul.default not in targets(f, p, g, torch.tensor(0.05))


def test_a_step_whose_scaled_gradient_is_read_again_stays():
    def f(p, g, r):
        step = r * g
        return p - step + step.sum()

    p = drawn(600, 500)
    assert aten.addcmul.default not in targets(f, p, drawn(600, 500, seed=1), torch.tensor(0.05))


@needs_onednn
def test_gradients_of_a_network(faster):
    """Forward and backward products of both large layers, against double precision."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU())
    net.append(nn.Linear(200, 10))
    x, y = torch.randn(64, 784), torch.randint(10, (64,))
    names, values = zip(*((n, p.detach()) for n, p in net.named_parameters()), strict=True)

    def slopes(x, *values):
        def loss(params):
            return nn.functional.cross_entropy(functional_call(net, params, (x,)), y)

        return list(grad(loss)(dict(zip(names, values, strict=True))).values())

    with torch.no_grad():
        graph = trace(slopes, [x, *values])
        got = for_large_matrices(graph)
        assert sum(n.target is ONEDNN for n in got.graph.nodes) == 5
        exact = slopes(x.double(), *(v.double() for v in values))
        for mine, right in zip(got(x, *values), exact, strict=True):
            assert torch.allclose(mine.double(), right, rtol=1e-4, atol=1e-6)


# --- outside of traced steps ----------------------------------------------------------------------


class Seen(TorchDispatchMode):
    """Which operations are carried out."""

    def __init__(self):
        super().__init__()
        self.names = collections.Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names[func] += 1
        return func(*args, **(kwargs or {}))


def mlp():
    return nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))


@pytest.fixture
def images():
    """Four clients with 90 to 600 examples, and the engine's federation of them."""
    generator = torch.Generator().manual_seed(0)
    sizes = [600, 300, 100, 90]
    x = torch.randn(sum(sizes), 784, generator=generator)
    y = torch.randint(10, (sum(sizes),), generator=generator)
    parts = {"train": list(torch.arange(sum(sizes)).split(sizes))}
    return build(x, y, torch.zeros(sum(sizes), 0, dtype=torch.int64), parts, classes=10)


class Measured(FedAvg):
    """FedAvg, and each client's loss and gradient at a model on all of its examples."""

    @phase("gather", loss="statistic", gradient=Part("gradient", of="params"))
    def measure(self, task, message, client):
        loss, slope = loss_and_gradient(task, message["params"], client)
        return {"loss": loss, "gradient": slope}, client.state


@needs_onednn
def test_losses_and_gradients_of_all_examples_are_right_to_rounding(faster, images):
    task = Task(mlp, classes=10)
    params, found = task.init(0), []
    for kind in (Batched, Loop):
        engine, algorithm = kind(task, images), Measured()
        engine.prepare(Work(batch=50))
        engine.reset(algorithm.init_client(task, params))
        cohort = engine.cohort(engine.everyone(), work=Work(batch=50), round=0)
        with Seen() as seen:
            got = cohort.gather(algorithm.measure, {"params": params})
        assert bool(seen.names[ONEDNN]) == (kind is Batched)
        found.append(got.value)
    for mine, right in zip(*map(tree.leaves, found), strict=True):
        assert torch.allclose(mine, right, rtol=1e-4, atol=1e-6)


@needs_onednn
def test_networks_with_small_weights_and_other_processors_are_left_alone(faster, monkeypatch):
    small = nn.Sequential(nn.Linear(60, 64), nn.ReLU(), nn.Linear(64, 10))
    assert not isinstance(large.large_products(small), large.LargeProducts)
    assert isinstance(large.large_products(mlp()), large.LargeProducts)
    monkeypatch.setattr(large, "onednn_is_faster", lambda: False)
    assert not isinstance(large.large_products(mlp()), large.LargeProducts)


@needs_onednn
@pytest.mark.parametrize(
    ("left", "right", "dtype"),
    [
        ((8, 784), (784, 400), torch.float32),  # thin
        ((100, 100), (100, 100), torch.float32),  # small
        ((600, 784), (784, 200), torch.float64),
        ((600, 784), (784, 200), torch.bfloat16),
    ],
)
def test_other_products_are_torchs(left, right, dtype):
    a, b = drawn(*left).to(dtype), drawn(*right, seed=1).to(dtype)
    with Seen() as seen, large.LargeProducts():
        got = a @ b
    assert torch.equal(got, a @ b)
    assert not seen.names[ONEDNN]


@needs_onednn
@pytest.mark.parametrize("turned", [False, True])
def test_a_bias_and_several_clients(turned):
    x, w, b = drawn(600, 784, turned=turned), drawn(784, 200, turned=turned, seed=1), drawn(200)
    several = torch.stack([x, 2 * x]), torch.stack([w, w])
    with Seen() as seen, large.LargeProducts():
        one, many = torch.addmm(b, x, w), torch.bmm(*several)
        scaled = torch.addmm(b, x, w, alpha=2)  # not replaced
    assert seen.names[ONEDNN] == 3
    exact = x.double() @ w.double()
    assert torch.allclose(one.double(), exact + b, atol=1e-3)
    assert torch.allclose(many.double(), torch.stack([exact, 2 * exact]), atol=1e-3)
    assert torch.equal(scaled, torch.addmm(b, x, w, alpha=2))


@needs_onednn
def test_traced_steps_run_without_it(faster, images):
    """They have their own products, and every operation under it would take longer."""
    entered, task = [], Task(mlp, classes=10)

    class Counting(large.LargeProducts):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            entered.append(func)
            return super().__torch_dispatch__(func, types, args, kwargs)

    class Counted(Programs):
        def products(self, net):
            return Counting()

    engine, algorithm = Batched(task, images), FedAvg()
    engine.programs = Counted()
    engine.prepare(Work(batch=50))
    params = task.init(0)
    engine.reset(algorithm.init_client(task, params))
    for round in range(2):  # the first one traces
        entered.clear()
        cohort = engine.cohort(engine.everyone(), work=Work(batch=50), round=round)
        algorithm.round(algorithm.init_server(task, params, 4), cohort)
        assert entered, "the phase around the steps is under it"
        assert aten._log_softmax.default not in entered
    with large.suspended():  # nothing to suspend
        assert torch.equal(torch.ones(2) + 1, torch.full((2,), 2.0))
