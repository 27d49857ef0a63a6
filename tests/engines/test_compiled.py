"""Steps by torch's compiler: the same models to rounding, also for clients of uneven sizes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from isonomy.algorithms.average.fedavg import FedAvg
from isonomy.core import tree
from isonomy.core.task import Task
from isonomy.core.work import Work
from isonomy.data.federation import Federation, build
from isonomy.engines.batched import program
from isonomy.engines.batched.engine import Batched, has_compiler
from isonomy.engines.batched.program import Programs

pytestmark = [
    pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of torch's own imports
]


def federation_of(sizes: list[int]) -> Federation:
    rows = sum(sizes)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 4, generator=generator)
    y = torch.randint(2, (rows,), generator=generator)
    groups = torch.zeros(rows, 0, dtype=torch.int64)
    parts = {"train": list(torch.arange(rows).split(sizes))}
    return build(x, y, groups, parts, classes=2)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


def rounds(programs: Programs, work: Work, sizes: list[int]) -> tree.Tree:
    engine = Batched(Task(net, classes=2), federation_of(sizes))
    engine.programs = programs
    engine.prepare(work)
    algorithm = FedAvg()
    params = engine.task.init(0)
    engine.reset(algorithm.init_client(engine.task, params))
    server = algorithm.init_server(engine.task, params, len(sizes))
    for number in range(2):
        cohort = engine.cohort(engine.everyone(), work=work, round=number)
        server = algorithm.round(server, cohort)
    return server


@pytest.mark.parametrize("work", [Work(batch=5), Work(batch=5, optimiser="adam", lr=0.01)], ids=str)
def test_uneven_clients_have_the_same_model_to_rounding(work: Work) -> None:
    sizes = [400, 60, 55, 20, 10, 10, 5]
    compiled = Programs(compile=True)
    got = rounds(compiled, work, sizes)
    assert compiled.trouble is None
    assert compiled.traced > 1  # programs of several numbers of lanes
    expected = rounds(Programs(), work, sizes)
    start = Task(net, classes=2).init(0)
    moved = 0.0
    for a, b, c in zip(*map(tree.leaves, (got, expected)), start.values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        moved = max(moved, float((a - c).abs().max()))
    assert moved > 0.05


def test_code_that_gives_other_results_without_its_wrapper_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What the compiler puts around its code is left out only if it changes nothing."""
    from torch._inductor import compile_fx

    x = torch.arange(3.0)
    graph = program._make_fx(lambda a: (a * 2 + 1,), [x])
    assert torch.equal(program._compiled(graph, [x])(x)[0], 2 * x + 1)

    class Code:
        """Code whose results are not those of the whole."""

        def __init__(self, real):
            self.real = real
            self.current_callable = lambda inputs: [t + 1 for t in real(inputs)]

        def __getattr__(self, name):
            return getattr(self.real, name)

        def __call__(self, inputs):
            return self.real(inputs)

    whole = compile_fx.compile_fx_inner
    monkeypatch.setattr(compile_fx, "compile_fx_inner", lambda *a, **k: Code(whole(*a, **k)))
    again = program._make_fx(lambda a: (a * 2 + 1,), [x])
    assert torch.equal(program._compiled(again, [x])(x)[0], 2 * x + 1)


def test_code_that_takes_a_constant_of_the_graph_is_not_called_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes one input more; called with too few, C++ would read memory that is not a tensor."""
    from torch._inductor import compile_fx

    inner, taken = compile_fx.compile_fx_inner, []

    class Code:
        """Code that must not be called alone."""

        def __init__(self, real):
            self.real = real

        def current_callable(self, inputs):
            raise AssertionError("called without the constant")

        def __getattr__(self, name):
            return getattr(self.real, name)

        def __call__(self, inputs):
            return self.real(inputs)

    def spied(made, examples, **options):
        taken.append(len(examples))
        return Code(inner(made, examples, **options))

    monkeypatch.setattr(compile_fx, "compile_fx_inner", spied)
    x = torch.arange(3.0)
    graph = program._make_fx(lambda a: (a * torch.tensor([3.0, 5.0, 7.0]),), [x])
    made = program._compiled(graph, [x])
    assert taken == [2]
    assert made(x)[0].tolist() == [0.0, 5.0, 14.0]
