"""An early end, verdicts and fronts: what a participant answers of them, and how often."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attacks.organiser import Dishonest
from isonomy.blocks import saddle
from isonomy.blocks.preferences import grid
from isonomy.core.preference import preference_of, ray_of
from isonomy.runs.front import FEW

PFFL = ["algorithm=pffl", "model=logistic", "rounds=4", "algorithm.least=10"]
STOPS = [*PFFL, "algorithm.track=2", "algorithm.stop=0.1"]
PRAFFL = ["algorithm=praffl", "local.optimiser=adam", "local.lr=0.01", "rounds=4"]


def one_round(organiser: Dishonest, round: int, *, start: int = 0) -> bool:
    """Ask for a round of PFFL; whether both phases were answered."""
    params = {k: v + start for k, v in organiser.setting.params.items()}
    cells = len(organiser.setting.algorithm.bounded.bounds(organiser.setting.task))
    price = {"price": torch.zeros(cells)}
    first = organiser.ask("measure", {"params": params}, round, exchange=0)
    second = organiser.ask("local", {"params": params, **price}, round, exchange=1)
    return first is not None and second is not None


def an_end(organiser: Dishonest, done: int) -> bool:
    """Ask for the end after some rounds; whether it was answered."""
    message = {"params": organiser.setting.params}
    return organiser.ask("audit", message, done, final=True) is not None


def evaluation(organiser: Dishonest, done: int) -> bool:
    server = organiser.setting.algorithm.init_server(
        organiser.setting.task, organiser.setting.params, 3
    )
    model = organiser.setting.algorithm.deployed(server)
    return organiser.ask("measure:test", {"model": model}, done) is not None


def test_training_ends_early_once(tmp_path: Path) -> None:
    organiser = Dishonest(tmp_path, *STOPS, "privacy.repeats=1", "evaluate.every=10")
    assert not an_end(organiser, 0)  # at least one round
    assert one_round(organiser, 0)
    assert an_end(organiser, 1)
    assert not an_end(organiser, 1)  # its audit is answered once
    assert evaluation(organiser, 1)  # the last evaluation follows the end
    assert not evaluation(organiser, 1)
    assert not one_round(organiser, 1)
    assert "training ended before" in organiser.refused[-1]
    for session, done in enumerate((2, 3)):  # after a restart it ends elsewhere: that is a repeat
        organiser.greeting(f"{session:032x}", 0)
        for round in range(done):
            assert one_round(organiser, round)
        assert an_end(organiser, done) == (done == 2)
    assert "such rounds" in organiser.refused[-1]


def test_an_early_end_needs_a_method_that_ends_early(tmp_path: Path) -> None:
    organiser = Dishonest(tmp_path, *PFFL, "evaluate.every=10")
    assert one_round(organiser, 0)
    assert not an_end(organiser, 1)
    assert not evaluation(organiser, 1)
    assert organiser.ask("audit", {"params": organiser.setting.params}, 1) is None  # no `track`
    assert len(organiser.refused) == 3


def test_the_search_of_a_verdict_is_bounded(tmp_path: Path) -> None:
    organiser = Dishonest(tmp_path, *PFFL)
    at = saddle.matrix(organiser.setting.params)
    cells = len(organiser.setting.algorithm.bounded.bounds(organiser.setting.task))
    message = {
        "at": at,
        "price": torch.zeros(cells, dtype=torch.float64),
        "share": torch.tensor(1.0, dtype=torch.float64),
    }
    most = organiser.setting.algorithm.minima

    def floor(exchange: int) -> Any:
        given = message | {"move": torch.zeros_like(at)}
        return organiser.ask("floor", given, 4, exchange=exchange, final=True)

    assert organiser.ask("curve", message, 0) is None
    assert all(floor(i) is not None for i in range(most))
    assert floor(most) is None
    assert f"answered {most} times" in organiser.refused[-1]


@pytest.mark.parametrize("rays", [0, 4, 300])
def test_fronts_are_asked_at_the_charters_preferences(tmp_path: Path, rays: int) -> None:
    organiser = Dishonest(tmp_path, *PRAFFL, f"front.rays={rays}")
    setting = organiser.setting
    model = setting.algorithm.deployed(
        setting.algorithm.init_server(setting.task, setting.params, 3)
    )

    def points(count: int) -> Tensor:
        return ray_of(preference_of(grid(count, 2).flip(0)))

    def asked(name: str, round: int = 2, **given: Tensor) -> bool:
        return organiser.ask(f"measure:{name}", {"model": model, **given}, round) is not None

    few = min(rays or FEW, FEW)
    assert not asked("validation:own", rays=points(few + 1))
    assert not asked("validation:own", rays=points(few)[:1].repeat(few + 1, 1))
    assert not asked("validation:own", round=1, rays=points(few))  # no evaluation is due
    assert not asked("validation:joint", rays=points(few))
    assert not asked("validation:own", ray=torch.tensor([0.5, 0.5]))
    assert asked("validation:own", rays=points(few))
    assert not asked("validation:own", rays=points(few))  # once
    assert asked("test:own", rays=points(rays)) == bool(rays)
    for bad in ([0.5, 0.6], [-0.5, 1.5], [1.0], [float("nan"), 1.0]):
        assert not asked("test", ray=torch.tensor(bad))
    assert not asked("test", rays=points(few))
    assert not asked("test", state=torch.zeros(1))
    assert asked("test", ray=points(few)[0])
    assert not asked("test", ray=points(few)[1])  # once
    assert not asked("validation:own", round=4, rays=points(few + 1))
    assert asked("validation:own", round=4, rays=points(rays or FEW))


def test_a_fixed_preference_is_not_replaced(tmp_path: Path) -> None:
    organiser = Dishonest(tmp_path, *PRAFFL, "algorithm.preference=[0.5,0.5]")
    setting = organiser.setting
    model = setting.algorithm.deployed(
        setting.algorithm.init_server(setting.task, setting.params, 3)
    )
    ray = torch.tensor([0.25, 0.75])
    assert organiser.ask("measure:test", {"model": model, "ray": ray}, 2) is None
    assert organiser.ask("measure:test", {"model": model}, 2) is not None
