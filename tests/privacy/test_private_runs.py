"""Runs with differential privacy: engines, resuming, budgets, refusals, reports."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.func import vmap
from typer.testing import CliRunner

from isonomy import api
from isonomy.cli import app
from isonomy.config.overrides import merge, parse_override
from isonomy.config.schema import Config, parse
from isonomy.core import tree
from isonomy.core.task import Batch, Task
from isonomy.errors import ConfigError, RunError
from isonomy.models.mlp import mlp
from isonomy.privacy import noise
from isonomy.privacy.accounting import Event, epsilon
from isonomy.privacy.gradients import by_example, clipped_sum
from isonomy.privacy.stream import key_stream, key_tensor, secret_normal, secret_uniform
from isonomy.report.page import render
from isonomy.runs import coverage
from isonomy.runs.build import build
from isonomy.runs.folder import RunFolder
from isonomy.runs.listener import Listener

BASE: dict[str, Any] = {
    "data": {"name": "synthetic", "clients": 8},
    "model": {"name": "logistic"},
    "algorithm": {"name": "fedavg"},
    "rounds": 4,
    "local": {"steps": 3, "batch": 8},
    "evaluate": {"scores": "never", "bootstrap": 0},
    "checkpoint": {"every": 2},
    "privacy": {"level": "client", "noise": 1.0, "allow": ["evaluation"], "seed": 3},
}
EXAMPLE = ("privacy.level=example", "privacy.clip=1.0", "privacy.batches=passes")


def config(*overrides: str) -> Config:
    found = BASE
    for text in overrides:
        found = merge(found, parse_override(text))
    return parse(found)


def model(folder: Path, *overrides: str) -> dict[str, torch.Tensor]:
    api.run(config(*overrides), folder)
    return dict(RunFolder(folder).model().server.params)


@pytest.mark.parametrize("level", [(), EXAMPLE, ("algorithm=fedeba", "privacy.bounds={loss=2.0}")])
def test_engines_agree(tmp_path, level):
    one = model(tmp_path / "loop", *level, "engine=loop")
    other = model(tmp_path / "batched", *level, "engine=batched", "engine.chunk=3")
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-4, atol=1e-5)
    read = [json.loads((tmp_path / e / "privacy.json").read_text()) for e in ("loop", "batched")]
    assert read[0]["epsilon"] == read[1]["epsilon"]
    assert [r["phase"] for r in read[0]["releases"]] == [r["phase"] for r in read[1]["releases"]]


ADAPTIVE, SLOW = ("privacy.clip=adaptive",), pytest.mark.slow


@pytest.mark.parametrize(
    "level",
    [
        ADAPTIVE,
        pytest.param(("privacy.clip=0.3",), marks=SLOW),
        pytest.param(("algorithm=fedeba", "privacy.bounds={loss=2.0}"), marks=SLOW),
        pytest.param(EXAMPLE, marks=SLOW),
    ],
)
def test_several_processes_give_the_bytes_of_one(tmp_path, level):
    for count in (1, 2):
        run = config(*level, "engine.shares=2", f"engine.workers={count}")
        api.run(run, tmp_path / str(count))
    for name in ("privacy.json", "rounds.jsonl"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()
    one, two = (RunFolder(tmp_path / name).model().server.params for name in "12")
    assert all(torch.equal(one[k], two[k]) for k in one)


def test_several_processes_have_one_secret_key():
    """Otherwise each would draw noise of its own, and the models of the ranks would differ."""
    values = merge(BASE, {"engine": {"workers": 2}})
    values["privacy"] = {k: v for k, v in BASE["privacy"].items() if k != "seed"}
    heard: list[str] = []

    class Notes(Listener):
        def note(self, text: str) -> None:
            heard.append(text)

    api.run(parse(values), listeners=[Notes()])
    assert not [text for text in heard if "ranks differ" in text]


def test_private_gradients_may_be_summed_securely(tmp_path):
    """Quantisation comes after the noise, so it changes the model by its steps only."""
    one, other = model(tmp_path / "a", *EXAMPLE), model(tmp_path / "b", *EXAMPLE, "secure=true")
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=1e-6)
    ledgers = [(tmp_path / name / "privacy.json").read_bytes() for name in "ab"]
    assert ledgers[0] == ledgers[1]


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_noise_has_the_stated_deviation_on_every_engine(tmp_path, engine):
    """Without learning, the model moves by noise only: one round of z C / clients per number."""
    still = ("local.lr=1e-12", "privacy.clip=0.7", "rounds=40", f"engine={engine}")
    moved = model(tmp_path / "run", *still, "model={name='mlp', hidden=[10]}")
    first = build(config(*still, "model={name='mlp', hidden=[10]}")).params
    got = torch.cat([(moved[k] - first[k]).flatten() for k in first]).double()
    expected = math.sqrt(40) * 1.0 * 0.7 / 8
    assert float(got.std()) == pytest.approx(expected, rel=4 / math.sqrt(2 * len(got)))


class Stop(Listener):
    def round(self, done: int, rounds: int, metrics: Any) -> None:
        if done == 3:
            raise KeyboardInterrupt


@pytest.mark.parametrize("level", [("privacy.epsilon=9.0",), EXAMPLE])
def test_a_resumed_run_has_the_same_ledger(tmp_path, level):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    api.run(config(*level), whole)
    with pytest.raises(KeyboardInterrupt):
        api.run(config(*level), cut, listeners=[Stop()])
    api.resume(cut)
    for name in ("privacy.json", "rounds.jsonl", "summary.json"):
        assert (whole / name).read_bytes() == (cut / name).read_bytes()


def test_the_key_is_secret_and_kept(tmp_path):
    values = merge(BASE, {})
    values["privacy"] = {"level": "client", "noise": 1.0, "allow": ["evaluation"]}
    with pytest.raises(KeyboardInterrupt):
        api.run(parse(values), tmp_path / "run", listeners=[Stop()])
    key = tmp_path / "run" / "noise.key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert len(key.read_text()) == 64
    shared = [p for p in (tmp_path / "run").rglob("*") if p.is_file() and p != key]
    assert not any(key.read_bytes() in p.read_bytes() for p in shared)
    kept = key.read_bytes()
    key.unlink()
    with pytest.raises(RunError, match="released again with other noise"):
        api.resume(tmp_path / "run")
    key.write_bytes(kept)
    assert api.resume(tmp_path / "run").complete
    ledger = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert "seed" not in ledger["not_covered"]


def test_the_budget_ends_training(tmp_path):
    limit = epsilon({Event(1.0): 3}, 1e-5) + 0.01
    settings = [f"privacy.epsilon={limit}", "rounds=6"]
    file = tmp_path / "run.toml"
    file.write_text(config(*settings).toml())
    done = CliRunner().invoke(app, ["run", str(file), "--to", str(tmp_path / "run"), "--quiet"])
    assert done.exit_code == 4, done.output
    ledger = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert ledger["status"] == "ended by the budget after 3 of 6 rounds"
    assert ledger["epsilon"] <= limit
    assert len((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()) == 3
    assert "ended by the budget" in (tmp_path / "run" / "report.html").read_text()


def test_noise_is_found_for_the_budget():
    values = merge(BASE, {})
    values["privacy"] = {"level": "client", "epsilon": 4.0, "allow": ["evaluation"]}
    values["cohort"] = {"size": 3}
    record = api.run(parse(values))
    spent = record.facts["privacy"]
    assert 3.98 < spent["epsilon"] <= 4.0
    asked = list(spent["clients"].values())
    assert asked == sorted(asked, reverse=True)
    assert asked[0] == spent["epsilon"] > asked[-1]


def test_poisson_cohorts_are_counted_as_sampled_and_not_told(tmp_path):
    values = merge(BASE, {"cohort": {"size": 2, "sampling": "poisson"}, "rounds": 6})
    values["privacy"] = {"level": "client", "noise": 1.0, "allow": ["evaluation"]}
    record = api.run(parse(values), tmp_path / "run")
    assert record.facts["privacy"]["epsilon"] == pytest.approx(
        epsilon({Event(1.0, 0.25): 6}, 1e-5), rel=1e-5
    )
    lines = RunFolder(tmp_path / "run").lines("rounds.jsonl")
    told = {(line["cohort"], line["answered"], line["bytes_up"]) for line in lines}
    assert len(told) == 1  # the same in every round, whoever was drawn


def test_example_level_counts_every_client(tmp_path):
    record = api.run(config(*EXAMPLE, "data.partition=power_law"))
    each = record.facts["privacy"]["clients"]
    assert set(each) == {str(k) for k in range(8)}
    assert list(each.values()) == sorted(each.values(), reverse=True)
    assert record.facts["privacy"]["epsilon"] == next(iter(each.values()))


REFUSED = [
    (("privacy.shares={training=0.5}",), "unknown name 'training'"),
    (("privacy.shares={evaluation=0.9}",), "nothing is left for training"),
    (("privacy.ranges={x1=[0.0, 1.0]}",), "fitted with noise"),
    (("privacy.allow=['evaluations']",), "unknown name 'evaluations'"),
    (("data=german", "data.clients=5"), "fewer than two values of the label"),
    (("data=german", "data.clients=5", "privacy.prepared=x"), "cannot be read"),
    (("defence=median",), "has no noise"),
    (("cohort.dropout=0.1",), "who drops out is not counted"),
    (("cohort.sampling=size", "cohort.size=3"), "tells the clients' sizes"),
    (("cohort.max_weight=0.5",), "depends on the sizes"),
    (("privacy.weights=size",), "belong together"),
    (("algorithm=fedeba",), "privacy.bounds has no entry for 'loss'"),
    (("privacy.bounds={lost=1.0}",), "collects no statistic of this name"),
    (("algorithm=lft_ensemble",), "cannot be clipped as an update"),
    (
        ("algorithm=fedeba", "privacy.bounds={loss=1.0}", "cohort={size=3, sampling='poisson'}"),
        "depends on it",
    ),
    (("privacy.epsilon=0.01",), "in the first round"),
    (("privacy.level=example",), "largest norm of one example's gradient"),
    ((*EXAMPLE, "algorithm=fedeba"), "needs the examples themselves"),
    ((*EXAMPLE, "algorithm=pffl"), "needs the examples themselves"),
    ((*EXAMPLE, "algorithm={name='fmtl', lams=[0.1, 1.0]}"), "the work of phase 'local'"),
    (("secure=true", "privacy.clip=adaptive"), "clients clip their replies themselves"),
    (("engine.device=cuda",), "on the CPU"),
    (("privacy.level=none",), "privacy.level is 'none'"),
    (("evaluate.threshold=f1",), "on validation examples without noise"),
]


@pytest.mark.parametrize(("overrides", "text"), REFUSED, ids=[t for _, t in REFUSED])
def test_what_cannot_be_private_is_refused(overrides, text):
    with pytest.raises(ConfigError, match=text):
        build(config(*overrides))


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        ((), "needs a fixed clip"),
        ((*EXAMPLE, "privacy.seed=3"), "secret keys of their own"),
        (("privacy.clip=1.0", "cohort.sampling=poisson", "cohort.size=4"), "traffic"),
        (("privacy.clip=1.0", "secure=true"), "secret keys of their own"),
    ],
)
def test_what_a_real_federation_cannot_do_is_refused(overrides, text):
    with pytest.raises(ConfigError, match=text):
        coverage.check(config(*overrides), remote=True)


def test_what_is_not_covered_is_listed_and_the_rest_left_out():
    record = api.run(config())
    ledger = record.facts["privacy"]
    assert set(ledger["not_covered"]) == {"evaluation", "seed"}
    assert "data" not in record.facts
    assert "faa" not in record.metrics
    assert not record.excess
    page = render([record])
    assert "Differential privacy" in page
    assert "whoever knows the seed can remove the noise" in page


def test_runs_without_privacy_keep_their_digest():
    plain = parse({k: v for k, v in BASE.items() if k != "privacy"})
    assert "allow" not in plain.plain()["privacy"] or plain.privacy.allow == []
    other = plain.model_copy(update={"privacy": plain.privacy.model_copy(update={"delta": 1e-6})})
    assert plain.digest == other.digest


# --- private gradients ----------------------------------------------------------------------------


def test_gradients_of_examples_are_clipped_by_either_method():
    torch.manual_seed(0)
    task = Task(lambda: mlp((6,), 3, hidden=(5,)), classes=3)
    x, y = torch.randn(7, 6) * 3, torch.randint(3, (7,))
    batch = Batch(x, y, torch.zeros(7, 1).long(), torch.ones(7))
    batch.x[2, 0] = math.inf  # contributes nothing
    weight = torch.tensor([1.0, 1, 1, 0, 1, 1, 1])
    params, expected = task.init(0), None
    for i in (0, 1, 4, 5, 6):
        one = Batch(*(t[i : i + 1] for t in batch))
        slope = torch.func.grad(task.loss)(params, one)
        norm = float(tree.sq_norm(slope).sqrt())
        short = tree.scale(slope, min(1.0, 0.4 / norm))
        expected = short if expected is None else tree.add(expected, short)
    got = clipped_sum(task, params, batch, weight, 0.4, torch.ones(()))
    slow = by_example(task, params, batch, weight, 0.4, torch.ones(()))
    for name in params:
        torch.testing.assert_close(got[name], expected[name], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(slow[name], expected[name], rtol=1e-4, atol=1e-5)


def test_noise_of_examples_is_standard_normal():
    key = key_tensor(noise.Key.of_seed(3).derived("examples"))
    drawn = secret_normal(key, torch.arange(40), torch.full((40,), 2.0), 5001).flatten() / 2
    count = len(drawn)
    assert abs(float(drawn.mean())) < 4 / math.sqrt(count)
    assert float(drawn.std()) == pytest.approx(1, abs=4 / math.sqrt(2 * count))
    assert float((drawn**4).mean()) == pytest.approx(3, abs=0.1)
    for bound, share in ((1.0, 0.31731), (2.0, 0.0455), (3.0, 0.0027)):
        seen = float((drawn.abs() > bound).double().mean())
        assert seen == pytest.approx(share, abs=4 * math.sqrt(share / count))
    rows = drawn.reshape(40, 5001)
    other = torch.corrcoef(rows)
    other.fill_diagonal_(0)
    assert float(other.abs().max()) < 5 / math.sqrt(5001)


def test_the_secret_key_decides_the_noise():
    one, other = noise.Key.fresh(), noise.Key.fresh()
    assert not torch.equal(one.normal((5,), "a"), other.normal((5,), "a"))
    assert torch.equal(one.normal((5,), "a"), noise.Key.read(one.text).normal((5,), "a"))
    assert not torch.equal(one.normal((5,), "a", 1), one.normal((5,), "a", 2))


def test_draws_do_not_depend_on_who_draws_beside():
    key = key_tensor(noise.Key.of_seed(4).derived("examples"))
    places, scale = torch.tensor([7, 2**40, 3]), torch.ones(())
    alone = torch.stack([secret_normal(key, p, scale, 11) for p in places])
    together = vmap(lambda p: secret_normal(key, p, scale, 11))(places)
    torch.testing.assert_close(alone, together, rtol=1e-6, atol=1e-6)
    alone = torch.stack([secret_uniform(key, p, 9) for p in places])
    assert torch.equal(alone, vmap(lambda p: secret_uniform(key, p, 9))(places))
    assert len(alone.unique()) == alone.numel()  # no place has the numbers of another


def test_the_stream_is_aes_of_distinct_counters():
    """FIPS 197's example: AES-256 with the key 0, 1, ..., 31 of the block 0x00112233...ff."""
    block = bytes.fromhex("00112233445566778899aabbccddeeff")
    place, position = (np.frombuffer(block, dtype="<u8")[i : i + 1] for i in (0, 1))
    found = key_stream(bytes(range(32)), place, position)
    assert found.tobytes().hex() == "8ea2b7ca516745bfeafc49904b496089"
