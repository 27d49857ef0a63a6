"""Fronts as a run measures and keeps them, and what can be done with them afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import isonomy
from isonomy.algorithms.preference.praffl import PraFFL
from isonomy.errors import ConfigError, RunError
from isonomy.metrics import hypervolume
from isonomy.report import front_choice, front_parts, page
from isonomy.runs import front
from isonomy.runs.build import build, engine_of
from isonomy.runs.folder import RunFolder

BASE: dict[str, Any] = {
    "rounds": 2,
    "seed": 1,
    "data": {"name": "synthetic", "examples": 400, "clients": 2, "seed": 0},
    "model": {"name": "mlp", "hidden": [4]},
    "local": {"epochs": 2, "batch": 64, "optimiser": "adam", "lr": 0.01},
    "evaluate": {"every": 1, "bootstrap": 0},
    "excess": {"clusters": "none"},
    "front": {"rays": 20},
    "engine": "loop",
}
OPTIONS: dict[str, dict[str, Any]] = {
    "hetpfl": {
        "fusion": "net",
        "fusion_steps": 10,
        "preferences": 4,
        "shown": 50,
        "select": 10,
    },
    "praffl": {"preferences": 4, "select": 10},
    "fedavg": {},
    "local": {},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for name, options in OPTIONS.items():
        made[name] = tmp_path_factory.mktemp("fronts") / name
        isonomy.run(isonomy.make_config(**BASE, algorithm={"name": name, **options}), made[name])
    return made


def test_heads_are_made_once_for_all_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were made again for every page of 256 rows, which took most of the time."""
    setting = build(isonomy.make_config(**BASE, algorithm={"name": "praffl"}))
    method, engine = setting.algorithm, engine_of(setting)
    engine.reset(method.init_client(setting.task, setting.params))
    server = method.init_server(setting.task, setting.params, 2)
    made, at = [], PraFFL.at

    def counting(*given: Any) -> Any:
        made.append(1)
        return at(*given)

    monkeypatch.setattr(PraFFL, "at", counting)
    found, names = [], front.names_of(setting) or ()
    for page_size in (1000, 16):
        monkeypatch.setattr(front, "PAGE", page_size)
        made.clear()
        measured = front.learnt(setting, server, engine, "train", names, 0, others=False)
        assert measured is not None
        found.append((len(made), measured.local))
    assert found[0][0] == found[1][0]
    assert np.array_equal(found[0][1], found[1][1])


def by_hand(chosen: np.ndarray, y: np.ndarray, z: np.ndarray) -> tuple[float, float]:
    """The error, and the largest distance of a group's positive rate to everyone's."""
    gap = max(abs(chosen[z == k].mean() - chosen.mean()) for k in (0, 1))
    return float((chosen != y).mean()), float(gap)


def points(folder: Path, client: int | None, rows: list[slice]) -> np.ndarray:
    """The front of a client's model (or of all) on some rows, by the predictor, ray by ray."""
    data = build(RunFolder(folder).config()).federation
    x, y = (torch.cat([t[at] for at in rows]) for t in (data.x, data.y))
    z = torch.cat([data.groups[at, 0] for at in rows]).numpy()
    found = []
    for i in range(21):
        use = isonomy.predictor(folder, client, preference=(i / 20, 1 - i / 20), force=True)
        found.append(by_hand(use.predict(x).numpy(), y.numpy(), z))
    return np.array(found)


def test_local_front_is_what_the_clients_models_do(runs: dict[str, Path]) -> None:
    record = isonomy.load(runs["hetpfl"])[0]
    data = build(RunFolder(runs["hetpfl"]).config()).federation
    volumes = []
    for k in range(2):
        at = points(runs["hetpfl"], k, [data.rows(k, "test")])
        part = front_parts.parts(record.front)[k]
        assert part.points == pytest.approx(at, abs=1e-6)
        assert part.preferences[5].tolist() == pytest.approx([0.25, 0.75])
        volumes.append(hypervolume(at))
    last = [v for v, r in zip(record.clients["hv"], record.clients["round"], strict=True) if r == 2]
    assert last == pytest.approx(volumes, abs=1e-6)
    # over all clients: the authors divide by three, whatever their number
    assert record.metrics["hv.local"] == pytest.approx(np.mean(volumes), abs=1e-6)


def test_global_front_of_a_method_that_has_one(runs: dict[str, Path]) -> None:
    record = isonomy.load(runs["hetpfl"])[0]
    data = build(RunFolder(runs["hetpfl"]).config()).federation
    at = points(runs["hetpfl"], None, [data.rows(k, "test") for k in range(2)])
    assert front_parts.parts(record.front)[-1].points == pytest.approx(at, abs=1e-6)
    assert record.metrics["hv.global"] == pytest.approx(hypervolume(at), abs=1e-6)
    assert "hv.global" not in record.rounds[0]["metrics"]  # before the fusion there is none
    assert "hv.local" in record.rounds[0]["metrics"]


def test_global_front_of_a_method_without_one(runs: dict[str, Path]) -> None:
    """The mean over clients of the hypervolume of theirs on everyone's examples."""
    record = isonomy.load(runs["praffl"])[0]
    data = build(RunFolder(runs["praffl"]).config()).federation
    rows = [data.rows(k, "test") for k in range(2)]
    each = [hypervolume(points(runs["praffl"], k, rows)) for k in range(2)]
    assert record.metrics["hv.global"] == pytest.approx(np.mean(each), abs=1e-6)
    assert -1 not in front_parts.parts(record.front)


def test_methods_of_one_model_have_one_point(runs: dict[str, Path]) -> None:
    for name in ("fedavg", "local"):
        record = isonomy.load(runs[name])[0]
        assert record.metrics["hv.global"] == pytest.approx(record.metrics["group.z.hypervolume"])
        own = record.clients["group.z.hypervolume"][-2:]
        assert record.metrics["hv.local"] == pytest.approx(np.mean(own))
        assert [len(p.points) for p in front_parts.parts(record.front).values()] == [1, 1, 1]
        with pytest.raises(RunError, match="learnt one model"):
            front_choice.choose(record.front, limits={"dp": 0.1})
        with pytest.raises(ConfigError, match="learnt one model"):
            isonomy.predictor(runs[name], 0, preference=(0.5, 0.5))


def test_other_engines_measure_the_same(runs: dict[str, Path]) -> None:
    config = isonomy.make_config(
        **{**BASE, "engine": "batched"}, algorithm={"name": "praffl", **OPTIONS["praffl"]}
    )
    got = isonomy.run(config)
    record = isonomy.load(runs["praffl"])[0]
    for name in ("hv.local", "hv.global"):
        assert got.metrics[name] == pytest.approx(record.metrics[name], abs=0.02)
    assert len(got.front["client"]) == len(record.front["client"])


def test_a_bound_becomes_a_preference(runs: dict[str, Path]) -> None:
    """Without a margin: the least validation error among preferences whose gap there is small."""
    front = isonomy.load(runs["hetpfl"])[0].front
    there, evaluated = front_parts.parts(front, "validation")[0], front_parts.parts(front)[0]
    free = front_parts.undominated(there)
    most = float(np.median(there.points[free, 1]))
    found = front_choice.choose(front, 0, limits={"dp": most}, force=True)
    assert found.split == "validation"
    allowed = there.points[there.points[:, 1] <= most]
    assert found.chosen[0] == allowed[:, 0].min()
    at = np.flatnonzero((there.preferences == found.preference).all(1))[0]
    assert found.measured == tuple(evaluated.points[at])
    (bound,) = found.bounds
    assert (bound.metric, bound.upper) == ("group.z.demographic_parity_overall", None)
    with pytest.raises(ConfigError, match=r"dp\.z = -0\.1 cannot be met"):
        front_choice.choose(front, limits={"dp.z": -0.1})
    with pytest.raises(ConfigError, match="coordinate"):
        front_choice.choose(front, limits={"eo": 0.1})


def test_metrics_are_those_of_each_clients_least_error(runs: dict[str, Path]) -> None:
    """The preference is chosen on validation examples and stated; the other end is beside it."""
    for name in ("hetpfl", "praffl"):
        record = isonomy.load(runs[name])[0]
        data = build(RunFolder(runs[name]).config()).federation
        wrong, rows, ends = 0, 0, np.zeros(2)
        for k in range(2):
            there = front_parts.parts(record.front, "validation")[k]
            evaluated = front_parts.parts(record.front)[k]
            at = int(np.lexsort(there.points.T[::-1])[0])
            size = int(data.sizes("test")[k])
            wrong, rows = wrong + evaluated.points[at, 0] * size, rows + size
            constant = 1 - max(there.labels) / there.rows
            useless = there.points[:, 0] > max(constant, there.points[:, 0].min())
            fair = int(np.lexsort([*there.points.T, useless])[0])
            ends += np.array([evaluated.points[fair, 0] * size, 0])
            last = {c: v[-2 + k] for c, v in record.clients.items() if c.startswith("preference.")}
            assert list(last.values()) == pytest.approx(there.preferences[at])
            use = isonomy.predictor(runs[name], k)
            test = data.rows(k, "test")
            found = (use.predict(data.x[test]) != data.y[test]).double().mean()
            assert float(found) == pytest.approx(evaluated.points[at, 0], abs=1e-6)
        assert 1 - record.metrics["accuracy"] == pytest.approx(wrong / rows, abs=1e-9)
        assert record.metrics["front.least.error.error"] == pytest.approx(wrong / rows, abs=1e-9)
        assert record.metrics["front.least.dp.z.error"] == pytest.approx(ends[0] / rows, abs=1e-9)
        said = "each client's own preference of least error on its validation examples"
        assert said in isonomy.table(record)
        assert "error where dp.z is least" in isonomy.table(record)
        assert "preference of least error on its validation examples" in page.render([record])
        assert said in record.rounds[0]["metrics_at"]


def test_a_fixed_preference_is_stated_and_used(runs: dict[str, Path]) -> None:
    options = {**OPTIONS["praffl"], "preference": [3.0, 1.0]}
    made = isonomy.run(isonomy.make_config(**BASE, algorithm={"name": "praffl", **options}))
    assert "preference (error 0.75, dp 0.25) for every client" in isonomy.table(made)
    at = front_parts.parts(made.front)
    sizes = [made.clients["size"][-2 + k] for k in range(2)]
    error = sum(at[k].points[15, 0] * n for k, n in enumerate(sizes)) / sum(sizes)
    assert 1 - made.metrics["accuracy"] == pytest.approx(error, abs=1e-9)


def test_a_client_that_joins_later_gets_a_front(runs: dict[str, Path]) -> None:
    data = build(RunFolder(runs["hetpfl"]).config()).federation
    at = data.rows(1)
    mine = (data.x[at], data.y[at], data.groups[at])
    new = isonomy.predictor(runs["hetpfl"], examples=mine, preference=(0.8, 0.2))
    old = isonomy.predictor(runs["hetpfl"], 0)
    assert torch.equal(
        new.model.server.psi["linear1.weight"], old.model.server.psi["linear1.weight"]
    )
    fair = isonomy.predictor(runs["hetpfl"], examples=mine, preference=(0.0, 1.0))
    assert not torch.allclose(new.outputs(data.x[:5]), fair.outputs(data.x[:5]))
    with pytest.raises(RunError, match="need their groups"):
        isonomy.predictor(runs["hetpfl"], examples=mine[:2])


def test_reports_draw_fronts(runs: dict[str, Path], tmp_path: Path) -> None:
    records = isonomy.load(*runs.values())
    text = page.render(records)
    assert 'data-figure="learnt"' in text
    assert "hypervolume of local fronts" in isonomy.table(records)
    assert "hypervolume" not in isonomy.table(records[2:])  # without a front that was learnt
    assert page.write_front(records[:1], tmp_path / "front.html").stat().st_size > 10_000


def test_what_was_learnt_about_preferences_is_kept_and_drawn(runs: dict[str, Path]) -> None:
    """Facts are those of the clients' states and of FusionNet; the figure shows preferences."""
    from isonomy.blocks.fusion import fusion_weights
    from isonomy.report.figures import learnt_preferences
    from isonomy.report.svg import Band

    record, saved = isonomy.load(runs["hetpfl"])[0], RunFolder(runs["hetpfl"]).model()
    drawn = record.facts["preference_distributions"]
    mixture = saved.clients["mixture"]
    assert np.array(drawn["alpha"]) == pytest.approx(mixture["alpha"].numpy())
    assert (np.array(drawn["alpha"]) != 1.05).any()  # they were learnt
    assert np.array(drawn["weight"]) == pytest.approx(np.ones((2, 1)))
    facts, server = record.facts["fusion_weights"], saved.server
    weights = np.array(facts["weights"])
    assert weights.sum(1) == pytest.approx(1)
    wanted = [fusion_weights(server.net, torch.tensor(ray), server.has) for ray in facts["rays"]]
    assert weights == pytest.approx(torch.stack(wanted).numpy(), abs=1e-6)

    sampled, fused = (view.chart.marks for view in learnt_preferences.draw([record]))
    densities, bands = sampled[:2], [mark for mark in fused if isinstance(mark, Band)]
    for k, line in enumerate(densities):
        share, density = np.array(line.x), np.array(line.y)
        assert density.mean() == pytest.approx(1, abs=0.02)  # over [0, 1]
        alpha = drawn["alpha"][k][0]
        mean = (share * density).sum() / density.sum()
        assert mean == pytest.approx(alpha[1] / sum(alpha), abs=0.01)  # the share of the error
    assert len(bands) == 2
    assert list(bands[0].x) == sorted(bands[0].x)
    assert list(bands[0].high) == pytest.approx(weights[::-1, 0], abs=1e-5)
    assert list(bands[1].low) == list(bands[0].high)  # stacked
    assert list(bands[1].high) == pytest.approx(np.ones(len(weights)), abs=1e-5)
    assert 'data-figure="preferences"' in page.render([record])
    assert not learnt_preferences.draw(isonomy.load(runs["praffl"]))


def test_no_fronts_where_there_is_nothing_to_measure() -> None:
    off = isonomy.run(isonomy.make_config(**{**BASE, "front": {"rays": 0}, "rounds": 1}))
    assert "hv.local" not in off.metrics
    assert not off.front
    with pytest.raises(ConfigError, match="at least two"):
        isonomy.run(isonomy.make_config(**{**BASE, "front": {"objectives": ["error"]}}))
    with pytest.raises(ConfigError, match="attribute"):
        isonomy.run(isonomy.make_config(**{**BASE, "front": {"objectives": ["error", "dp.sex"]}}))


def test_a_sweep_of_single_models_is_drawn_as_a_front(runs: dict[str, Path]) -> None:
    """Settings of one series form a line, the union of their points, beside a learnt front."""
    from dataclasses import replace

    from isonomy.report.figures import learnt_fronts
    from isonomy.report.svg import Points

    learnt, single = (isonomy.load(runs[name])[0] for name in ("hetpfl", "fedavg"))
    swept = []
    for lr, point in ((0.1, (0.2, 0.3)), (0.2, (0.3, 0.1)), (0.3, (0.4, 0.4))):
        config = {**single.config, "series": "fedavg", "local": {"lr": lr}}
        front = {**single.front, "error": [point[0]] * 3, "dp.z": [point[1]] * 3}
        swept.append(replace(single, config=config, front=front))
    marks = learnt_fronts.draw([learnt, *swept])[0].chart.marks
    line = next(mark for mark in marks if mark.name == "fedavg (3 settings)")
    assert (list(line.x), list(line.y)) == ([0.2, 0.3], [0.3, 0.1])  # (.4, .4) is dominated
    tips = [tip for mark in marks if isinstance(mark, Points) for tip in mark.tips]
    assert len([tip for tip in tips if "on validation" in tip]) == 2
