"""Private gradients: the batches that are drawn, their noise, and what a phase can see."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from isonomy.algorithms.average.fedavg import FedAvg
from isonomy.algorithms.personal.fmtl import FMTL
from isonomy.core import tree
from isonomy.core.client import Pool
from isonomy.core.task import Batch, Task
from isonomy.core.work import Work
from isonomy.data.federation import Federation, build
from isonomy.engines.base import Engine
from isonomy.engines.batched.engine import Batched
from isonomy.engines.loop import Loop
from isonomy.privacy import examples
from isonomy.privacy.accounting import Event
from isonomy.privacy.example_ledger import training_events
from isonomy.privacy.examples import HiddenPool, PrivateExamples, PrivateTask, limit
from isonomy.privacy.noise import Key
from isonomy.privacy.stream import key_tensor

SIZES = (20, 13, 30)
KEY = Key.of_seed(99)
TASK = Task(lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), classes=3)


def federation() -> Federation:
    torch.manual_seed(0)
    rows, first, parts = sum(SIZES), 0, []
    for size in SIZES:
        parts.append(torch.arange(first, first + size))
        first += size
    groups = torch.zeros(rows, 0, dtype=torch.int64)
    x, y = torch.randn(rows, 6), torch.randint(3, (rows,))
    return build(x, y, groups, {"train": parts}, classes=3)


def trained(kind: type[Engine], algorithm, batches: str, *, noise: float = 0.5, **work):
    engine, params = kind(TASK, federation()), TASK.init(0)
    engine.reset(algorithm.init_client(TASK, params))
    server = algorithm.init_server(TASK, params, len(SIZES))
    side = PrivateExamples(KEY, clip=1.0, noise=noise, batches=batches)
    for round in range(2):
        cohort = engine.cohort(
            engine.everyone(), work=Work(**{"batch": 5} | work), round=round, around=(side,)
        )
        server = algorithm.round(server, cohort)
    return server.params, engine.states.stacked


@pytest.mark.parametrize("batches", ["poisson", "passes"])
@pytest.mark.parametrize("algorithm", [FedAvg(weight="equal"), FMTL()])
def test_engines_agree(algorithm, batches):
    one, other = (trained(kind, algorithm, batches) for kind in (Loop, Batched))
    for a, b in zip(tree.leaves(one), tree.leaves(other), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", [Loop, Batched])
def test_the_noise_of_a_step_has_the_stated_deviation(kind):
    """With very large noise, a model moves by lr z C / batch in each of its steps."""
    params, _ = trained(kind, FedAvg(weight="equal"), "poisson", noise=1e4, steps=8, lr=0.01)
    first = TASK.init(0)
    moved = torch.cat([(params[k] - first[k]).flatten() for k in first]).double()
    expected = 0.01 * 1e4 / 5 * math.sqrt(2 * 8 / 3)  # two rounds of 8 steps, mean of 3 clients
    assert float(moved.std()) == pytest.approx(expected, rel=4 / math.sqrt(2 * len(moved)))


def private_task(batches: str = "poisson", size: int = 40, batch: int = 8) -> PrivateTask:
    pool = Pool(torch.randn(50, 6), torch.zeros(50).long(), torch.zeros(50, 0).long())
    return PrivateTask(
        build=TASK.build,
        classes=3,
        inner=TASK,
        pool=pool,
        start=torch.tensor(10),
        size=torch.tensor(size),
        key=key_tensor(KEY.derived("test")),
        place=torch.tensor(0),
        width=45,
        batch=batch,
        batches=batches,
    )


def test_batches_are_poisson_samples_of_the_clients_own_rows():
    task, steps, width = private_task(), 1500, limit(8)
    seen, sizes = torch.zeros(50), []
    for step in range(1, steps + 1):
        codes = torch.full((width,), step * 2**32)
        batch = Batch(torch.zeros(width, 6), codes, torch.zeros(width, 0).long(), torch.ones(width))
        rows, weight, expected = task._sampled(batch, torch.tensor(step))
        chosen = rows[weight > 0]
        assert len(chosen.unique()) == len(chosen) <= width
        seen[chosen] += 1
        sizes.append(len(chosen))
    assert float(expected) == 8
    assert not seen[:10].any()  # rows of others, also those of the padding
    share = seen[10:] / steps
    assert float((share - 0.2).abs().max()) < 4.5 * math.sqrt(0.16 / steps)
    counts = torch.tensor(sizes).double()
    assert float(counts.mean()) == pytest.approx(8, abs=0.3)
    assert float(counts.var()) == pytest.approx(40 * 0.2 * 0.8, rel=0.2)  # binomial


def test_a_phase_sees_no_example():
    pool = Pool(torch.randn(7, 6), torch.ones(7).long(), torch.ones(7, 2).long())
    hidden = HiddenPool.of(pool)
    assert hidden.x.isnan().all()
    assert not hidden.y.any()
    assert not hidden.groups.any()
    batch = hidden.batch(torch.arange(3), torch.ones(3))
    assert batch.x.isnan().all()
    task = private_task()
    assert task.losses(TASK.init(0), batch).isnan().all()
    slope = torch.func.grad(task.loss)(TASK.init(0), batch)  # not a batch of the plan
    assert all(t.isnan().all() for t in slope.values())


def test_what_a_training_releases_about_an_example():
    work = Work(batch=10, epochs=2)
    assert training_events(work, 100, 1.5, "poisson") == {Event(1.5, 0.1, 100, limit(10)): 20}
    assert training_events(work, 15, 1.5, "poisson") == {Event(1.5, 10 / 15): 4}  # no limit needed
    assert training_events(work, 10, 1.5, "poisson") == {Event(1.5): 2}
    assert training_events(work, 100, 1.5, "passes") == {Event(1.5): 2}
    assert training_events(Work(batch=10, steps=15), 100, 1.5, "passes") == {Event(1.5): 2}


def steps_of(kind: type[Engine], side: PrivateExamples, algorithm: FedAvg) -> list[torch.Tensor]:
    """Every client's model after one round, less the initial one, flattened."""
    engine, params = kind(TASK, federation()), TASK.init(0)
    engine.reset(algorithm.init_client(TASK, params))
    got = {}

    def seen(exchange):
        def wrapped(ask):
            for chunk in exchange(ask):
                for i, k in enumerate(chunk.ids.tolist()):
                    moved = tree.sub(tree.take(chunk.value["params"], i), params)
                    got[k] = torch.cat([t.flatten() for t in tree.leaves(moved)])
                yield chunk

        return wrapped

    work = Work(batch=5, steps=1, lr=1.0)
    cohort = engine.cohort(engine.everyone(), work=work, round=0, wrap=(seen,), around=(side,))
    algorithm.round(algorithm.init_server(TASK, params, len(SIZES)), cohort)
    return [got[k] for k in sorted(got)]


@pytest.mark.parametrize("kind", [Loop, Batched])
def test_one_example_changes_a_step_by_at_most_the_clip(kind):
    """Also one with huge features: it is shortened, or contributes nothing if it overflows."""
    side = PrivateExamples(KEY, clip=0.7, noise=1e-6, batches="passes")
    plain = federation()
    for value in (0.0, 1e3, 1e30):
        found = []
        for spoilt in (False, True):
            own = replace(plain, x=plain.x.clone())
            if spoilt:
                own.x[3] = (
                    value  # not in the constructor, which refuses features that are not finite
                )
            with pytest.MonkeyPatch.context() as patch:
                patch.setitem(globals(), "federation", lambda own=own: own)
                found.append(steps_of(kind, side, FedAvg(weight="equal"))[0])
        assert found[0].isfinite().all()
        # replaced, not removed: twice the clip, over the batch
        assert float((found[0] - found[1]).norm()) <= 2 * 0.7 / 5 * (1 + 1e-3)


def test_noise_that_is_off_or_the_same_for_all_clients_is_caught():
    """Planted faults: what the tests of deviation would see."""
    side = PrivateExamples(KEY, clip=1.0, noise=1e4, batches="poisson")
    honest = steps_of(Batched, side, FedAvg(weight="equal"))
    rows = torch.corrcoef(torch.stack(honest))
    rows.fill_diagonal_(0)
    assert float(rows.abs().max()) < 5 / math.sqrt(len(honest[0]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(examples, "_STEPS", 0)  # every client draws at the same place
        same = steps_of(Batched, side, FedAvg(weight="equal"))
    assert float(torch.corrcoef(torch.stack(same))[0, 1]) > 0.999
