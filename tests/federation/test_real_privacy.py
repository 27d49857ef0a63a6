"""Differential privacy of whole participants with real processes over loopback, TLS and keys."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")

from federation.real import Place, check_equal_to_loop, model, simulate
from isonomy.core import tree

TWO = ("east", "north")
PRIVATE = {
    "privacy.level": "client",
    "privacy.clip": 0.05,
    "privacy.noise": 0.5,
    "privacy.allow": "['preprocessing', 'evaluation']",
    "evaluate.every": 1,
}


def ledger(folder: Path) -> dict:
    return json.loads((folder / "privacy.json").read_text())


def distance(a: object, b: object) -> torch.Tensor:
    pairs = zip(tree.leaves(a), tree.leaves(b), strict=True)
    return torch.cat([(s - t).flatten().double() for s, t in pairs])


@pytest.mark.slow
def test_the_servers_noise_is_that_of_the_simulation(tmp_path: Path) -> None:
    """Level client without secure aggregation: model, traffic, metrics and ledger are the same."""
    changes = {**PRIVATE, "privacy.seed": 4, "rounds": 1}
    with Place(tmp_path, TWO, **changes) as place:
        check_equal_to_loop(place)
    served, simulated = ledger(tmp_path / "run"), ledger(tmp_path / "simulated")
    assert served["releases"] == simulated["releases"]
    assert served["epsilon"] == simulated["epsilon"] > 0
    said = " ".join(place.said("east").split())
    assert f"epsilon is {served['epsilon']:.3g} at delta = 1e-05 after all 1 rounds" in said
    assert said.index("epsilon is") < said.index("You agreed in advance")


@pytest.mark.slow
def test_shares_of_the_noise_have_the_stated_deviation(tmp_path: Path) -> None:
    """With secure aggregation: the difference to the simulation is the noise of both, no more.

    Keys are the participants' own, so bytes differ; 2,800 numbers show the deviation to 6 %.
    """
    changes = {**PRIVATE, "secure": "true", "rounds": 1, "model.hidden": "[400]"}
    with Place(tmp_path, TWO, **changes) as place:
        place.serve()
        for name in TWO:
            place.join(name)
        for name in ("organiser", *TWO):
            assert place.ends(name) == 0, place.logs()
        served, simulated = model(place.run)["server"], model(simulate(place))["server"]
    noise = ledger(tmp_path / "run")["releases"][0]["parts"]["params"]["noise"]
    assert noise == pytest.approx(0.5 * 0.05)
    moved = distance(served, simulated)
    both = math.sqrt(2) * noise * math.sqrt(2 / 1) / 2  # 2 replies, that of 1 is counted, a mean
    assert float(moved.std()) == pytest.approx(both, rel=4 / math.sqrt(2 * len(moved)))
    assert abs(float(moved.mean())) < 4 * both / math.sqrt(len(moved))
    for name in TWO:
        (own,) = (tmp_path / "homes" / name).rglob("privacy.json")
        assert json.loads(own.read_text())["epsilon"] == ledger(tmp_path / "run")["epsilon"]
    assert "your own program adds a share of the noise" in " ".join(place.said("north").split())


@pytest.mark.slow
@pytest.mark.parametrize("secure", [False, True])
def test_a_killed_organiser_continues_the_ledger(tmp_path: Path, secure: bool) -> None:
    """SIGKILL after the second of four rounds: the ledger ends with the bytes of a whole run."""
    changes: dict[str, object] = {**PRIVATE, "rounds": 4, "checkpoint.every": 1}
    changes |= {"secure": "true"} if secure else {"privacy.seed": 4}
    with Place(tmp_path, TWO, **changes) as place:
        place.serve()
        for name in TWO:
            place.join(name)
        place.until("two rounds are done", lambda: len(place.rounds()) >= 2)
        place.crash("organiser")
        place.serve("--resume", str(place.run))
        for name in ("organiser", *TWO):
            assert place.ends(name) == 0, place.logs()
        simulate(place)
    served, whole = (tmp_path / name / "privacy.json" for name in ("run", "simulated"))
    assert served.read_bytes() == whole.read_bytes()
    if not secure:
        away = distance(model(tmp_path / "run")["server"], model(tmp_path / "simulated")["server"])
        assert float(away.abs().max()) < 1e-6  # the interrupted round has the same noise again
        return
    for name in TWO:  # at least what the organiser counts; rounds that were asked twice, twice
        (own,) = (tmp_path / "homes" / name).rglob("privacy.json")
        counted = sum(event[-1] for event in json.loads(own.read_text())["events"])
        assert 4 <= counted <= 6
