"""PFNM: a round by hand, permuted copies, growth, absent clients, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from algorithms import networks
from algorithms.by_hand import ENGINES
from algorithms.networks import STEPS, STILL, play, same
from contract.table import ENGINES as TRANSPORTS
from isonomy.algorithms import make
from isonomy.algorithms.average.fedavg import FedAvg
from isonomy.algorithms.matched.pfnm import PFNM
from isonomy.config.schema import parse
from isonomy.contract.checks import check_engines_agree, silent
from isonomy.contract.world import FEATURES, World, world
from isonomy.core.task import Task
from isonomy.core.work import Work
from isonomy.engines.base import Engine
from isonomy.errors import ConfigError
from isonomy.models import make_task
from isonomy.models.mlp import mlp
from isonomy.runs.training import resume, run

both = pytest.mark.parametrize("kind", ENGINES)
FREE = PFNM(sigma0=math.inf, output="equal")  # averages and nothing else


def nets(*clients: dict[str, list]) -> dict[str, torch.Tensor]:
    """Clients' networks, stacked."""
    return {name: torch.tensor([c[name] for c in clients]) for name in clients[0]}


# --- by hand --------------------------------------------------------------------------------------


def test_by_hand() -> None:
    """Two clients, one input, two neurons, two classes; sigma = 1, sigma0 = 2, mu0 = 0, 0.5.

    The second client's neurons are the first's in the other order, near enough. Client 0 has 3
    examples of class 0 and 1 of class 1, client 1 has 1 and 1: shares 3/4, 1/4 and 1/2, 1/2.
    Matched: (4, 1) with (2, 1), (-4, 0) with (-3, 0) as incoming weight and bias.

        incoming  (4 + 2) / (1/2 + 2) = 2.4            bias (1 + 1 + 0.5/2) / 2.5 = 0.9
                  (-4 - 3) / 2.5 = -2.8                     (0 + 0 + 0.25) / 2.5 = 0.1
        outgoing  class 0: (3/4 8 + 1/4 4) / 1.5 = 14/3,    (3/4 (-8) + 1/4 (-4)) / 1.5 = -14/3
                  class 1: (1/2 2 + 1/2 6) / 1.5 = 8/3,     (1/2 (-2) + 1/2 (-6)) / 1.5 = -8/3
        biases of the classes  (3/4 1 + 1/4 3 + 0.25) / 1.5 = 7/6,  (1/2 5 + 1/2 7 + 0.25) / 1.5
    """
    got, at = PFNM(sigma=1.0, sigma0=2.0, bias=0.5)._matched(
        nets(
            {
                "a.weight": [[4.0], [-4.0]],
                "a.bias": [1.0, 0.0],
                "b.weight": [[8.0, -8.0], [2.0, -2.0]],
                "b.bias": [1.0, 5.0],
            },
            {
                "a.weight": [[-3.0], [2.0]],
                "a.bias": [0.0, 1.0],
                "b.weight": [[-4.0, 4.0], [-6.0, 6.0]],
                "b.bias": [3.0, 7.0],
            },
        ),
        torch.tensor([[3.0, 1.0], [1.0, 1.0]]),
        torch.tensor([4, 2]),
    )
    assert at["a"].tolist() == [[0, 1], [1, 0]]
    assert got["a.weight"].flatten().tolist() == pytest.approx([2.4, -2.8])
    assert got["a.bias"].tolist() == pytest.approx([0.9, 0.1])
    assert got["b.weight"].tolist()[0] == pytest.approx([14 / 3, -14 / 3])
    assert got["b.weight"].tolist()[1] == pytest.approx([8 / 3, -8 / 3])
    assert got["b.bias"].tolist() == pytest.approx([7 / 6, 6.25 / 1.5])


def test_weights_to_a_missing_neuron_are_unobserved() -> None:
    """Two hidden layers of one neuron each. The lower neurons are alike and matched; the upper
    ones are opposite and stay apart. The weight from the one lower neuron to client 0's upper
    neuron is client 0's, 3, not the mean of 3 and a 0 of client 1, who has no such neuron.
    """
    client = {"a.weight": [[5.0]], "a.bias": [0.0], "b.bias": [0.0], "c.bias": [0.0]}
    first = {**client, "b.weight": [[3.0]], "c.weight": [[9.0]]}
    second = {**client, "b.weight": [[2.0]], "c.weight": [[-9.0]]}
    order = ["a.weight", "a.bias", "b.weight", "b.bias", "c.weight", "c.bias"]
    stacked = nets({k: first[k] for k in order}, {k: second[k] for k in order})
    how = PFNM(sigma=0.1, sigma0=math.inf, output="equal")
    got, at = how._matched(stacked, torch.ones(2, 1), torch.tensor([2, 1]))
    assert at["a"].tolist() == [[0], [0]]
    upper = at["b"].flatten().tolist()
    assert sorted(upper) == [0, 1]
    assert [got["b.weight"][i, 0].item() for i in upper] == pytest.approx([3.0, 2.0])
    assert [got["c.weight"][0, i].item() for i in upper] == pytest.approx([9.0, -9.0])
    assert got["a.weight"].tolist() == [[5.0]]


# --- what is the same -----------------------------------------------------------------------------


@both
@pytest.mark.parametrize("hidden", [[6], [6, 5], [4, 5, 3]])
def test_permuted_copies_average_to_the_original(kind: type[Engine], hidden: list[int]) -> None:
    federation = same()
    task = networks.mlp(federation, hidden)
    got = play(PFNM(sigma0=math.inf), kind, task, federation, work=STILL, shuffle=True)
    networks.close(got.params, task.init(5))


@both
@pytest.mark.parametrize("hidden", [[6], [6, 5]])
@pytest.mark.parametrize("classes", [3, 2, 0])
def test_clients_with_the_same_data_are_fedavg(
    kind: type[Engine], hidden: list[int], classes: int
) -> None:
    """Whatever the order that they have their neurons in: trained alike, and matched back."""
    federation = same(classes=classes)
    task = networks.mlp(federation, hidden)
    options: dict[str, Any] = {"work": STEPS, "rounds": 3}
    expected = play(FedAvg(), kind, task, federation, **options)
    how = PFNM(sigma0=math.inf)
    start = how.init_server(task, task.init(5), len(federation))
    for shuffle in (False, True):
        got = play(how, kind, task, federation, shuffle=shuffle, **options)
        networks.close(got.params, expected.params)
        stays = networks.shuffled(start) if shuffle else start
        for name, at in got.assigned.items():
            assert torch.equal(at, stays.assigned[name])


@both
def test_one_client_keeps_its_model(kind: type[Engine]) -> None:
    federation = same()
    task = networks.mlp(federation, [6])
    expected = play(FedAvg(), kind, task, federation, work=STEPS, ids=[2])
    got = play(PFNM(sigma0=math.inf), kind, task, federation, work=STEPS, ids=[2])
    networks.close(got.params, expected.params)


# --- growth ---------------------------------------------------------------------------------------


@both
def test_networks_without_common_neurons_are_joined(kind: type[Engine]) -> None:
    """Own starts and a small sigma: each client keeps neurons of its own, up to the limit; what a
    client gets in the next round are its own again.
    """
    federation = same()
    task = networks.mlp(federation, [6])
    params = {}
    for grow, most in ((10.0, 24), (2.5, 15), (1.0, 6)):
        how = PFNM(sigma=1e-4, start="own", grow=grow)
        got = play(how, kind, task, federation, work=STILL)
        assert len(got.params["linear1.bias"]) == most
        assert got.params["linear1.weight"].shape == (most, 4)
        assert got.params["linear2.weight"].shape == (3, most)
        params[grow] = got
    wide = params[10.0]
    assert sorted(wide.assigned["linear1"].flatten().tolist()) == list(range(24))
    out = task.outputs(wide.params, federation.x)
    assert out.shape == (len(federation.x), 3)


@both
def test_an_absent_client_gets_the_most_common_neurons(kind: type[Engine]) -> None:
    federation = same()
    task = networks.mlp(federation, [6])
    how = PFNM(sigma=0.02, start="own", sigma0=math.inf)
    got = play(how, kind, task, federation, work=STEPS, ids=[0, 1, 3])
    at = got.assigned["linear1"]
    width = len(got.params["linear1.bias"])
    assert width > 6
    counts = torch.bincount(at[[0, 1, 3]].flatten(), minlength=width)
    mine = at[2]
    others = torch.tensor([i for i in range(width) if i not in mine.tolist()])
    assert len(set(mine.tolist())) == 6
    assert counts[mine].min() >= counts[others].max()
    assert mine.tolist() == sorted(mine.tolist())


@both
def test_clients_that_drop_out_are_as_if_never_asked(kind: type[Engine]) -> None:
    federation = same()
    task = networks.mlp(federation, [6])
    how = PFNM(sigma=0.05)
    quiet = silent({0: {1, 2}})
    got = play(how, kind, task, federation, work=STEPS, shuffle=True, wrap=(quiet,))
    expected = play(how, kind, task, federation, work=STEPS, shuffle=True, ids=[0, 3])
    networks.close(got.params, expected.params)
    assert torch.equal(got.assigned["linear1"], expected.assigned["linear1"])


@pytest.mark.parametrize("hidden", [(5, 4), (4, 3, 4)])
def test_engines_agree_on_deeper_networks(hidden: tuple[int, ...]) -> None:
    old = world()
    task = Task(lambda: mlp((FEATURES,), 3, hidden=hidden), classes=3, levels=(2,))
    where = World(task, old.federation, old.work, task.init(3), old.cohorts)
    how = PFNM(sigma=0.05, gamma=20.0, start="own")
    check_engines_agree(how, TRANSPORTS["batched"], where)


# --- runs -----------------------------------------------------------------------------------------


def config(**algorithm: Any) -> dict[str, Any]:
    return {
        "algorithm": {"name": "pfnm", **algorithm},
        "data": {"name": "synthetic", "clients": 4, "examples": 400},
        "model": {"name": "mlp", "hidden": [8]},
        "rounds": 3,
        "excess": {"clusters": "none"},
    }


def test_a_network_that_grew_is_saved_resumed_and_measured(tmp_path, monkeypatch) -> None:
    """Checkpoints and the model hold the wider network; a run cut after round 2 ends the same."""
    options = {"sigma": 0.01, "start": "own", "gamma": 5.0}
    whole = run(parse(config(**options)), tmp_path / "whole")
    seen = []
    real = PFNM.round

    def cut(self: PFNM, server: Any, cohort: Any) -> Any:
        if len(seen) == 2:
            raise KeyboardInterrupt
        new = real(self, server, cohort)
        seen.append(len(new.params["linear1.bias"]))
        return new

    monkeypatch.setattr(PFNM, "round", cut)
    with pytest.raises(KeyboardInterrupt):
        run(parse({**config(**options), "checkpoint": {"every": 1}}), tmp_path / "cut")
    monkeypatch.setattr(PFNM, "round", real)
    assert max(seen) > 8
    again = resume(tmp_path / "cut")
    assert again.metrics == whole.metrics
    model = "model/model.safetensors"
    assert (tmp_path / "cut" / model).read_bytes() == (tmp_path / "whole" / model).read_bytes()


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        ("logistic", {}, "use model 'mlp'"),
        ("cnn", {}, "use model 'mlp' .*'fedma' for 'cnn'"),
        ("resnet18", {}, "use model 'mlp'"),
    ],
)
def test_other_models_are_refused(model: str, options: dict[str, Any], words: str) -> None:
    shape = (3, 32, 32) if model in ("cnn", "resnet18") else (4,)
    federation = same(shape, classes=2)
    task = make_task(model, federation, options)
    with pytest.raises(ConfigError, match=words):
        PFNM().init_server(task, task.init(0), 4)


@pytest.mark.parametrize(
    "options",
    [{"sigma": 0.0}, {"sigma0": -1.0}, {"gamma": 0.0}, {"grow": 0.5}, {"sweeps": -1}],
)
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ConfigError, match=f"{name} = "):
        make("pfnm", options)


def test_diverged_weights_do_not_stop_the_round() -> None:
    """A diverged client reaches the run's own check, which reports it."""
    federation = same()
    task = networks.mlp(federation, [6])
    work = Work(steps=20, batch=0, lr=1e12)
    got = play(FREE, ENGINES[0], task, federation, work=work)
    assert not torch.isfinite(got.params["linear1.weight"]).all()
