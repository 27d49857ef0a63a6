"""A run measures what it says, in memory and in a folder."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from sklearn.metrics import accuracy_score, log_loss

from isonomy.config.schema import parse
from isonomy.data import load
from isonomy.engines.batched import engine as batched
from isonomy.errors import ConfigError, DataError, FetchError, TrainingError
from isonomy.runs import build as building
from isonomy.runs.build import build, engine_of
from isonomy.runs.folder import RunFolder
from isonomy.runs.training import Listener, run

SMALL = {
    "rounds": 4,
    "data": {"name": "synthetic", "clients": 5, "examples": 500},
    "model": {"name": "mlp", "hidden": [6]},
    "local": {"batch": 16},
    "evaluate": {"every": 2, "bootstrap": 50},
    "excess": {"steps": 20},
}


class Notes(Listener):
    def __init__(self):
        self.notes, self.rounds = [], []

    def note(self, text):
        self.notes.append(text)

    def round(self, done, rounds, metrics):
        self.rounds.append((done, rounds, metrics is not None))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    return folder, run(parse(SMALL), folder)


def test_the_last_metrics_are_those_of_the_saved_model(made):
    """Recomputed with plain torch and scikit-learn from the model's file."""
    folder, record = made
    params = load_file(folder / "model" / "model.safetensors")
    setting = build(parse(SMALL))
    net = setting.task.net
    net.load_state_dict({k.removeprefix("server/params/"): v for k, v in params.items()})
    federation = setting.federation
    rows = torch.cat([torch.arange(*federation._bounds(k, "test")) for k in range(5)])
    with torch.no_grad():
        scores = net(federation.x[rows]).softmax(-1).double()
    scores = scores / scores.sum(1, keepdim=True)
    y = federation.y[rows]
    assert record.metrics["accuracy"] == pytest.approx(accuracy_score(y, scores.argmax(1)))
    assert record.metrics["loss"] == pytest.approx(log_loss(y, scores), rel=1e-5)


def test_the_folder_holds_the_record(made):
    folder, record = made
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert lines == record.rounds
    assert [line["round"] for line in lines] == [1, 2, 3, 4]
    assert ["metrics" in line for line in lines] == [False, True, False, True]
    table = pq.read_table(folder / "clients.parquet").to_pydict()
    assert table["round"] == [2] * 5 + [4] * 5
    assert {"client", "name", "split", "size", "accuracy", "loss", "excess_loss"} <= set(table)
    last = np.array(table["accuracy"][5:])
    assert record.metrics["client.accuracy.std"] == pytest.approx(last.std())
    assert record.metrics["faa"] == pytest.approx(
        max(table["excess_loss"][5:]) - min(table["excess_loss"][5:])
    )
    assert any(note.startswith("FAA: ") and "20 sgd steps" in note for note in record.notes)
    assert (
        record.facts["data"]["sizes"]
        == load("synthetic", clients=5, options={"examples": 500}).sizes().tolist()
    )


def test_traffic_by_hand(made):
    """MLP 3-6-2: 18 + 6 + 12 + 2 = 38 numbers of 4 bytes, to and from each of 5 clients."""
    _, record = made
    for line in record.rounds:
        assert (line["bytes_down"], line["bytes_up"]) == (5 * 38 * 4, 5 * 38 * 4)
        assert (line["messages"], line["phases"], line["answered"]) == (10, 1, 5)


def test_in_memory_and_in_a_folder_are_the_same(made):
    _, stored = made
    listener = Notes()
    direct = run(parse(SMALL), listeners=[listener])
    assert direct.metrics == pytest.approx(stored.metrics, nan_ok=True)
    assert direct.rounds == stored.rounds
    assert direct.clients.keys() == stored.clients.keys()
    assert direct.clients["loss"] == stored.clients["loss"]
    assert listener.rounds == [(1, 4, False), (2, 4, True), (3, 4, False), (4, 4, True)]


def test_engines_give_the_same_record():
    small = {**SMALL, "rounds": 2}
    a, b = (run(parse({**small, "engine": name})) for name in ("loop", "batched"))
    assert a.metrics == pytest.approx(b.metrics, abs=1e-5, nan_ok=True)


def test_the_seed_changes_the_run_and_nothing_else_does():
    one, again, other = (
        run(parse({**SMALL, "rounds": 2, "seed": seed})).metrics["loss"] for seed in (1, 1, 2)
    )
    assert one == again != other


def test_sampling_and_dropout_are_counted(tmp_path):
    changes = {"rounds": 8, "cohort": {"size": 3, "dropout": 0.6}}
    record = run(parse({**SMALL, **changes}), tmp_path / "run")
    answered = [line["answered"] for line in record.rounds]
    assert all(line["cohort"] == 3 for line in record.rounds)
    assert 0 in answered, "this seed has a round in which nobody answers"
    assert max(answered) >= 1
    assert any("no client answered" in note for note in record.notes)


def test_divergence_is_one_sentence_and_leaves_no_result(tmp_path):
    folder = tmp_path / "run"
    config = parse({**SMALL, "local": {"lr": 1e30, "batch": 16}})
    with pytest.raises(
        TrainingError, match=r"round 1: .* not finite; lower local\.lr \(now 1e\+30\)"
    ):
        run(config, folder)
    assert not folder.exists()


def test_divergence_after_a_checkpoint_keeps_what_was_done(tmp_path):
    """The rate grows until the model overflows; rounds before that stay on the disk."""
    folder = tmp_path / "run"
    changes = {"local": {"lr": 1e3, "batch": 16}, "rounds": 60, "checkpoint": {"every": 1}}
    changes["model"] = {"name": "mlp", "hidden": [6, 6, 6, 6]}
    with pytest.raises(TrainingError, match=r"not finite"):
        run(parse({**SMALL, **changes}), folder)
    assert RunFolder(folder).newest() is not None
    assert not (folder / "summary.json").exists()


def test_a_compiler_that_fails_is_told_and_the_run_goes_on(monkeypatch):
    from isonomy.engines.batched import engine, program

    def broken(graph, inputs):
        raise RuntimeError("no space on the compiler's disk\nand more")

    engine.shared.cache_clear()
    monkeypatch.setattr(program, "_compiled", broken)
    listener = Notes()
    got = run(parse({**SMALL, "engine": {"compile": True}}), listeners=[listener])
    engine.shared.cache_clear()
    (text,) = listener.notes
    assert "compilation failed" in text
    assert text.endswith("no space on the compiler's disk")
    assert got.metrics == run(parse(SMALL)).metrics


def test_nothing_is_written_when_the_config_cannot_run(tmp_path):
    for changes, error in (
        ({"model": "cnn"}, DataError),
        ({"cohort": {"size": 9}}, ConfigError),
        ({"algorithm": {"name": "fedprox", "mux": 1}}, ConfigError),
        ({"algorithm": {"name": "fedprox", "mu": "strong"}}, ConfigError),
        ({"data": "adlt"}, ConfigError),
    ):
        with pytest.raises(error):
            run(parse({**SMALL, **changes}), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_faa_of_fedavg_is_the_closed_form():
    """E = 10, R = 1, r = 0: (E - 2) / E = 0.8 (FOCUS, with equal weights), loss .01 + .09."""
    config = parse(
        {
            "rounds": 30,
            "data": {"name": "linear", "clients": 10, "r": 0.0},
            "model": "linear",
            "algorithm": {"name": "fedavg", "weight": "equal"},
            "local": {"steps": 10, "batch": 0, "lr": 0.1},
            "evaluate": {"every": 30},
            "excess": {"steps": 300, "batch": 0},
        }
    )
    record = run(config)
    assert record.metrics["faa"] == pytest.approx(0.8, abs=0.08)
    assert record.metrics["client.loss.mean"] == pytest.approx(0.1, abs=0.01)
    assert "2 true clusters" in record.notes[-1]


def test_without_network_the_fallback_is_used_and_told(monkeypatch):
    def unreachable(name, **options):
        if name == "adult":
            tries.append(name)
            raise FetchError("cannot get adult: no network.")
        return load(name, **options)

    tries = []
    monkeypatch.setattr(building, "load", unreachable)
    monkeypatch.setattr(building, "_unreachable", {})
    building._load.cache_clear()
    listener = Notes()
    changes = {"rounds": 1, "data": {"name": "adult", "clients": 4, "fallback": "synthetic"}}
    for seed in (0, 1):
        record = run(parse({**SMALL, **changes, "seed": seed}), listeners=[listener])
    assert "no network" in listener.notes[0]
    assert "'synthetic'" in listener.notes[0]
    assert record.config["data"] == {"name": "synthetic", "clients": 4}, "what was really run"
    assert tries == ["adult"], "a source that is out of reach is tried once"
    with pytest.raises(FetchError):
        run(parse({**SMALL, "data": {"name": "adult"}}))
    with pytest.raises(ConfigError, match=r"data\.fallback: .*Did you mean 'synthetic'"):
        run(parse({**SMALL, "data": {"name": "adult", "fallback": "syntetic"}}))
    building._load.cache_clear()


def test_without_a_compiler_it_says_so_and_goes_on(monkeypatch):
    monkeypatch.setattr(batched.shutil, "which", lambda name: None)
    listener = Notes()
    setting = build(parse({**SMALL, "engine": {"compile": True}}))
    engine = engine_of(setting, listener.note)
    assert not engine.programs.compile
    assert "needs a C++ compiler" in listener.notes[0]


def test_small_models_use_one_thread():
    before = torch.get_num_threads()
    try:
        engine_of(build(parse(SMALL)))
        assert torch.get_num_threads() == 1
        engine_of(build(parse({**SMALL, "engine": {"threads": 2}})))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
