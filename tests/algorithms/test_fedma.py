"""FedMA: a layer by hand, permuted copies, what is sent, growth, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from algorithms import networks
from algorithms.by_hand import ENGINES
from algorithms.exchanges import Asked, listening
from algorithms.networks import STEPS, STILL, play, same
from contract.matched import LayerByLayer
from contract.table import ENGINES as TRANSPORTS
from isonomy.algorithms import make
from isonomy.algorithms.matched.fedma import FedMA
from isonomy.blocks.chain import subnetwork, widened
from isonomy.contract.checks import check_engines_agree, close, outcome, silent
from isonomy.contract.world import FEATURES, World, world
from isonomy.core import random
from isonomy.core.cohort import Replies
from isonomy.core.task import Task
from isonomy.data.federation import build
from isonomy.engines.base import Engine
from isonomy.errors import ConfigError
from isonomy.models import make_task
from isonomy.models.mlp import mlp

both = pytest.mark.parametrize("kind", ENGINES)
IMAGE = (2, 9, 6)  # channels, height, width: pooled twice to 2 by 1


# --- by hand --------------------------------------------------------------------------------------


@pytest.mark.parametrize("average", ["mean", "posterior"])
def test_a_layer_by_hand(average: Any) -> None:
    """Two clients, two neurons of one weight and a bias; sigma = 1, sigma0 = 2, mu0 = 0 and 0.5.

    (4, 1) goes with (2, 3), (-4, 0) with (-3, 0). Their means are (3, 2) and (-3.5, 0). The
    posterior's: weights (4 + 2) / 2.5 and (-4 - 3) / 2.5, and, the prior's 0.5 being the bias's
    and not the first weight's, biases (1 + 3 + 0.5 / 2) / 2.5 and (0.5 / 2) / 2.5.
    """
    value = {
        "a.weight": torch.tensor([[[4.0], [-4.0]], [[-3.0], [2.0]]]),
        "a.bias": torch.tensor([[1.0, 0.0], [0.0, 3.0]]),
    }
    how = FedMA(sigma0=2.0, bias=0.5, gamma=1.0, average=average)
    got, at = how._matched(
        "a", Replies({"layer": value}, torch.arange(2), torch.tensor([5, 4])), 1.0
    )
    assert at.tolist() == [[0, 1], [1, 0]]
    weights = {"mean": [3.0, -3.5], "posterior": [2.4, -2.8]}[average]
    biases = {"mean": [2.0, 0.0], "posterior": [1.7, 0.1]}[average]
    assert got["a.weight"].flatten().tolist() == pytest.approx(weights)
    assert got["a.bias"].tolist() == pytest.approx(biases)


@both
@pytest.mark.parametrize("output", ["classes", "equal"])
def test_the_last_layer_is_averaged_by_class(kind: type[Engine], output: Any) -> None:
    """Client 0 has 3 examples of class 0 and 1 of class 1, client 1 has 1 and 2, nobody any of
    class 2: rows are weighted 3/4 1/4, 1/3 2/3 and 1/2 1/2. Clients start from draws of their
    own and do not move, so the server's last layer is made of those draws.
    """
    y = torch.tensor([0, 0, 0, 1, 0, 1, 1])
    parts = {"train": [torch.arange(4), torch.arange(4, 7)]}
    x = torch.ones(7, 4)
    federation = build(x, y, torch.zeros(7, 0, dtype=torch.int64), parts, classes=3)
    task = networks.mlp(federation, [5])
    how = FedMA(start="own", grow=1.0, output=output)
    got = play(how, kind, task, federation, work=STILL)
    params, heads, biases = task.init(5), [], []
    for k in (0, 1):
        key = random.key(0, 0, torch.tensor(k))
        drawn = {}
        for name in ("linear2.weight", "linear2.bias"):
            size = params[name].square().mean().sqrt()
            drawn[name] = random.normal(key, f"start {name}", tuple(params[name].shape)) * size
        order = got.assigned["linear1"][k].argsort()  # the server's neurons, in its own
        heads.append(drawn["linear2.weight"][:, order])
        biases.append(drawn["linear2.bias"])
    share = torch.tensor([3 / 4, 1 / 3, 1 / 2]) if output == "classes" else torch.full((3,), 0.5)
    head = share[:, None] * heads[0] + (1 - share)[:, None] * heads[1]
    torch.testing.assert_close(got.params["linear2.weight"], head, rtol=1e-5, atol=1e-6)
    bias = share * biases[0] + (1 - share) * biases[1]
    torch.testing.assert_close(got.params["linear2.bias"], bias, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(heads[0], heads[1])


def test_blocks_of_inputs_are_moved_together() -> None:
    """Two channels of three pixels each, flattened; four before it, the two at 2 and 0."""
    weight = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]])
    wide = widened(weight, torch.tensor([2, 0]), 4)
    assert wide.tolist() == [[4, 5, 6, 0, 0, 0, 1, 2, 3, 0, 0, 0]]
    kernel = torch.arange(8.0).reshape(1, 2, 2, 2)
    wide = widened(kernel, torch.tensor([1, 0]), 3)
    assert wide.shape == (1, 3, 2, 2)
    assert wide.flatten().tolist() == [4, 5, 6, 7, 0, 1, 2, 3, 0, 0, 0, 0]


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_reordered_units_give_the_same_outputs(model: str) -> None:
    federation = same(IMAGE)
    task = networks.cnn(federation) if model == "cnn" else networks.mlp(federation, [6, 5])
    params = task.init(5)
    server = networks.shuffled(FedMA().init_server(task, params, 2))
    moved = subnetwork(params, {name: at[1] for name, at in server.assigned.items()})
    assert any(not torch.equal(moved[name], params[name]) for name in params)
    expected = task.outputs(params, federation.x)
    torch.testing.assert_close(task.outputs(moved, federation.x), expected)


# --- what is the same -----------------------------------------------------------------------------


@both
@pytest.mark.parametrize("hidden", [[6], [6, 5], [4, 5, 3]])
def test_permuted_copies_average_to_the_original(kind: type[Engine], hidden: list[int]) -> None:
    federation = same()
    task = networks.mlp(federation, hidden)
    got = play(FedMA(), kind, task, federation, work=STILL, shuffle=True)
    networks.close(got.params, task.init(5))


@both
def test_permuted_copies_of_a_convolutional_network(kind: type[Engine]) -> None:
    federation = same(IMAGE)
    task = networks.cnn(federation)
    got = play(FedMA(), kind, task, federation, work=STILL, shuffle=True)
    networks.close(got.params, task.init(5))


@both
@pytest.mark.parametrize("model", ["one", "two", "cnn", "number"])
def test_clients_with_the_same_data_are_averaged_in_place(kind: type[Engine], model: str) -> None:
    """Whatever the order that they have their neurons in: trained alike, and matched back."""
    federation = same(IMAGE if model == "cnn" else (4,), classes=0 if model == "number" else 3)
    if model == "cnn":
        task = networks.cnn(federation)
    else:
        task = networks.mlp(federation, [6, 5] if model == "two" else [6])
    rounds = 1 if model == "cnn" else 2
    expected = play(LayerByLayer(), kind, task, federation, work=STEPS, rounds=rounds)
    start = FedMA().init_server(task, task.init(5), len(federation))
    for shuffle in (False, True):
        got = play(FedMA(), kind, task, federation, work=STEPS, rounds=rounds, shuffle=shuffle)
        networks.close(got.params, expected.params)
        stays = networks.shuffled(start) if shuffle else start
        for name, at in got.assigned.items():
            assert torch.equal(at, stays.assigned[name])


# --- what is sent, and who answers ----------------------------------------------------------------


@both
def test_one_layer_per_exchange(kind: type[Engine]) -> None:
    federation = same()
    task = networks.mlp(federation, [6, 5])
    heard: list[Asked] = []
    play(FedMA(), kind, task, federation, work=STEPS, wrap=(listening(heard),))
    assert [(ask.phase, ask.sent, ask.replied) for ask in heard] == [
        ("begin", (), ("layer",)),
        ("retrain", ("frozen",), ("layer",)),
        ("last", ("frozen",), ("layer", "sizes")),
    ]


@both
def test_a_client_that_drops_out_during_a_round(kind: type[Engine]) -> None:
    """Client 1 sends its first layer and then no more: that layer is as with everybody, and in
    the next round it is given what most clients have.
    """
    federation = same()
    task = networks.mlp(federation, [6, 5])
    options: dict[str, Any] = {"work": STEPS, "shuffle": True}
    how = FedMA(grow=1.0)
    whole = play(how, kind, task, federation, **options)
    got = play(how, kind, task, federation, wrap=(silent({1: {1}}),), **options)
    for name in ("linear1.weight", "linear1.bias"):
        torch.testing.assert_close(got.params[name], whole.params[name])
    for name, at in got.assigned.items():
        assert at[1].tolist() == list(range(at.shape[1]))
        assert at[2].tolist() == whole.assigned[name][2].tolist() != at[1].tolist()


# --- growth ---------------------------------------------------------------------------------------


@both
def test_a_convolutional_network_may_grow(kind: type[Engine]) -> None:
    federation = same(IMAGE)
    task = networks.cnn(federation)
    how = FedMA(sigma=1e-5, start="own", grow=2.0)
    got = play(how, kind, task, federation, work=STEPS, rounds=2)
    shapes = {name: tuple(t.shape) for name, t in got.params.items()}
    assert shapes == {
        "conv1.weight": (6, 2, 3, 3),
        "conv1.bias": (6,),
        "conv2.weight": (8, 6, 3, 3),
        "conv2.bias": (8,),
        "dense1.weight": (10, 8 * 2),
        "dense1.bias": (10,),
        "head.weight": (3, 10),
        "head.bias": (3,),
    }
    assert task.outputs(got.params, federation.x).shape == (len(federation.x), 3)


@both
def test_gamma_of_later_rounds(kind: type[Engine]) -> None:
    """A mass so large that the first round takes all the room; then one so small that none stay."""
    federation = same()
    task = networks.mlp(federation, [6])
    how = FedMA(gamma=1e9, later=1e-9, grow=4.0)
    got = play(how, kind, task, federation, work=STEPS)
    assert len(got.params["linear1.bias"]) == 24
    got = play(how, kind, task, federation, work=STEPS, rounds=2)
    assert len(got.params["linear1.bias"]) == 6


# --- engines --------------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", [(5, 4), (4, 3, 4)])
def test_engines_agree_on_deeper_networks(hidden: tuple[int, ...]) -> None:
    old = world()
    task = Task(lambda: mlp((FEATURES,), 3, hidden=hidden), classes=3, levels=(2,))
    where = World(task, old.federation, old.work, task.init(3), old.cohorts)
    how = FedMA(sigma=0.05, gamma=50.0, later=50.0, start="own")
    check_engines_agree(how, TRANSPORTS["batched"], where)


def test_engines_agree_on_a_convolutional_network() -> None:
    generator = torch.Generator().manual_seed(8)
    parts = [torch.arange(0, 9), torch.arange(9, 13), torch.arange(13, 20)]
    federation = build(
        torch.randn(20, *IMAGE, generator=generator),
        torch.randint(3, (20,), generator=generator),
        torch.zeros(20, 0, dtype=torch.int64),
        {"train": parts, "test": [p[:1] for p in parts]},
        classes=3,
        source="images",
    )
    task = networks.cnn(federation)
    how = FedMA(sigma=0.01, gamma=20.0, start="own")
    got = []
    for kind in ENGINES:
        params = task.init(3)
        engine = kind(task, federation, seed=1)
        engine.reset(how.init_client(task, params))
        server = how.init_server(task, params, 3)
        for r, ids in enumerate(([0, 1, 2], [0, 2])):
            cohort = engine.cohort(torch.tensor(ids), work=world().work, round=r)
            server = how.round(server, cohort)
        where = World(task, federation, world().work, params, ())
        got.append(outcome(how, TRANSPORTS["loop"], engine, server, where))
    assert len(got[0].server.params["conv1.bias"]) > 3
    close(got[1], got[0], "the batched engine's round")


# --- what is refused ------------------------------------------------------------------------------


class Branches(nn.Sequential):
    """A layer whose units are mixed by what follows."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(nn.Linear(inputs, 4), nn.LayerNorm(4), nn.Linear(4, outputs))


@pytest.mark.parametrize("model", ["logistic", "resnet18", f"{__name__}:Branches"])
def test_other_models_are_refused(model: str) -> None:
    federation = same((3, 32, 32) if model == "resnet18" else (4,), classes=2)
    task = make_task(model, federation)
    with pytest.raises(ConfigError, match=r"use model 'mlp' or 'cnn', .*hidden layer"):
        FedMA().init_server(task, task.init(0), 4)


@pytest.mark.parametrize(
    "options",
    [{"sigma": -1.0}, {"sigma0": 0.0}, {"gamma": 0.0}, {"grow": 0.9}, {"sweeps": -2}],
)
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ConfigError, match=f"{name} = "):
        make("fedma", options)
    with pytest.raises(ConfigError, match="gamma = "):
        make("fedma", {"later": 0.0})
