"""What a config asks for takes effect in a served run as in a simulated one, or is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from federation.participants import CONFIG, NAMES, NODES, Room, participant, write_tables
from isonomy import api
from isonomy.algorithms.average.fedavg import FedAvg
from isonomy.cli import app
from isonomy.config.files import read
from isonomy.config.privacy import PrivacyConfig
from isonomy.core import tree
from isonomy.core.cohort import Ask
from isonomy.core.work import Work
from isonomy.errors import ConfigError, RunError
from isonomy.federation import charter as charters
from isonomy.federation import organiser
from isonomy.federation.consent import consent_text
from isonomy.federation.flower import superlink
from isonomy.privacy.accounting import Event, epsilon
from isonomy.privacy.clipping import ClippedReplies
from isonomy.privacy.example_ledger import training_events
from isonomy.privacy.example_plan import Training
from isonomy.privacy.ledger import BudgetSpent
from isonomy.privacy.own_examples import OwnExamples
from isonomy.runs import saved_model
from isonomy.runs.folder import RunFolder
from isonomy.runs.training import resume

NULL = ["algorithm=pffl", "algorithm.zeta=0.0", "algorithm.B=50.0", "model=logistic"]
NULL += ["local.steps=3", "local.batch=0", "local.lr=1.0"]


@pytest.fixture
def here(tmp_path: Path) -> Path:
    write_tables(tmp_path / "tables")
    (tmp_path / "config.toml").write_text(CONFIG)
    return tmp_path


def model(folder: Path) -> dict[str, Any]:
    saved = saved_model.read(folder / "model")
    return {"server": saved.server, "clients": saved.clients}


def same(a: object, b: object) -> bool:
    pairs = zip(tree.leaves(a), tree.leaves(b), strict=True)
    return all(torch.allclose(s, t, rtol=1e-5, atol=1e-6) for s, t in pairs)


def serve(here: Path, overrides: list[str], room: Room | None = None) -> Any:
    plan = organiser.begin(read(here / "config.toml", overrides), here / "served", NAMES)
    room = room or Room({name: participant(here, name) for name in NAMES})
    return organiser.conduct(plan, room, nodes=NODES, wait=0.0, timeout=5.0)


def simulate(here: Path, overrides: list[str], name: str = "simulated") -> Any:
    return api.run(read(here / "config.toml", [*overrides, "engine=loop"]), here / name)


@pytest.mark.parametrize(
    "overrides",
    [
        ["defence=median"],
        ["defence=krum", "defence.expected=1"],
        ["defence=k_loss", "defence.expected=1"],  # asks clients for their losses
        ["attack=sign_flip", "attack.clients=[1]", "attack.factor=3.0"],
        ["attack=gaussian", "attack.fraction=0.4", "defence=median"],
        ["attack=replacement", "attack.clients=[0]", "algorithm=fmtl"],
    ],
    ids=" ".join,
)
def test_defences_and_attacks_take_effect(here: Path, overrides: list[str]) -> None:
    got = serve(here, overrides)
    expected = simulate(here, overrides)
    other = [f for f in overrides if f.startswith("algorithm")]
    simulate(here, other, "plain")
    assert same(model(here / "served")["server"], model(here / "simulated")["server"])
    assert not same(model(here / "served")["server"], model(here / "plain")["server"])
    for key, value in expected.metrics.items():
        assert got.metrics[key] == pytest.approx(value, abs=1e-6, nan_ok=True), key
    lines = [RunFolder(here / f).lines("rounds.jsonl") for f in ("served", "simulated")]
    for key in ("attacked", "combined", "bytes_up", "phases"):
        assert [r.get(key) for r in lines[0]] == [r.get(key) for r in lines[1]], key
    assert got.facts.get("malicious") == expected.facts.get("malicious")
    assert got.notes == expected.notes
    assert got.label == expected.label


def test_metrics_of_scores_are_not_measured_and_the_notes_say_so(here: Path) -> None:
    overrides = ["evaluate.scores=last", "rounds=2"]
    got, expected = serve(here, overrides), simulate(here, overrides)
    assert {"auc", "brier", "calibration_error"} <= set(expected.metrics)
    assert not any("auc" in name or "brier" in name for name in got.metrics)
    assert "auc" in expected.clients
    assert "auc" not in got.clients
    assert got.metrics["f1"] == pytest.approx(expected.metrics["f1"])  # from counts
    assert any("are not measured in a real federation" in text for text in got.notes)


FRONTS = ["local.optimiser=adam", "local.lr=0.01", "front.rays=20"]
STOPS = ["algorithm=pffl", "algorithm.zeta=0.9", "model=logistic", "rounds=5"]
STOPS += ["algorithm.track=2", "algorithm.stop=20.0", "evaluate.every=3"]


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm=praffl", *FRONTS],
        ["algorithm=hetpfl", "algorithm.fusion_steps=3", "algorithm.refit=2", *FRONTS],
        ["algorithm=hetpfl", "algorithm.fusion=none", "evaluate.split=validation", *FRONTS],
        ["algorithm=focus", "algorithm.models=2", "algorithm.warmup=1", "cohort.size=2"],
        STOPS,
    ],
    ids=lambda words: f"{words[0]} {words[1]}",
)
def test_participants_answer_every_question_of_an_honest_run(
    here: Path, overrides: list[str]
) -> None:
    """Fronts and preferences, the last phases of all clients, verdicts and an early end."""
    members = {name: participant(here, name, share_rows=True) for name in NAMES}
    got = serve(here, overrides, Room(members))
    expected = simulate(here, overrides)
    assert not any("faults" in line for line in RunFolder(here / "served").lines("rounds.jsonl"))
    assert len(got.rounds) == len(expected.rounds)
    assert len(got.rounds) == (2 if overrides is STOPS else 3)
    assert all(one.complete for one in members.values())
    if got.verdict is not None:
        assert got.verdict["status"] == expected.verdict["status"]
    for key, value in expected.metrics.items():
        if key in got.metrics:  # a federation does not measure clients' fronts on others' examples
            assert got.metrics[key] == pytest.approx(value, abs=1e-4, nan_ok=True), key


def test_a_reply_that_is_not_finite_is_refused_by_the_engine(here: Path) -> None:
    got = serve(here, ["attack=broken", "attack.clients=[1]"])
    simulate(here, ["attack=broken", "attack.clients=[1]"])
    assert same(model(here / "served")["server"], model(here / "simulated")["server"])
    assert any("'north' was left out" in note for note in got.notes)
    assert not any("changed no reply" in note for note in got.notes)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["attack=little"], r"attack\.name = 'little'.*several clients.*isonomy run.*sign_flip"),
        (["attack=inner_product"], r"attack\.name = 'inner_product'.*isonomy run"),
        (["attack=broken", "attack.what=shape"], r"attack\.name = 'broken'.*wrong shape"),
        (["attack=labels"], r"attack\.labels = 'auto'.*does not change the labels"),
        (["attack=gaussian", "attack.labels=flip"], r"attack\.labels = 'flip'"),
        (["attack=gaussian", "attack.clients=[3]"], r"attack\.clients.*0 to 2"),
        (["defence=median", "algorithm=fedeba"], "defence 'median'"),
        (["defence.expected=1"], r"defence\.expected"),
        (["cohort.size=4"], r"cohort\.size = 4.*3 clients"),
    ],
)
def test_what_a_federation_cannot_do_is_refused_before_anything_is_written(
    here: Path, overrides: list[str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        serve(here, overrides)
    assert not (here / "served").exists()


def test_consent_covers_simulated_attacks_and_defences(here: Path) -> None:
    def text(*overrides: str) -> str:
        config = read(here / "config.toml", list(overrides))
        return "\n".join(consent_text(charters.make(config, NAMES)[0]))

    assert "attack" not in text()
    assert "defence" not in text()
    shown = text("attack=gaussian", "attack.clients=[1]", "defence=median")
    assert "simulated attack ('gaussian')" in shown
    assert "north" in next(line for line in shown.splitlines() if "simulated attack" in line)
    assert "defence 'median'" in shown


# --- a model that is withheld ---------------------------------------------------------------------


def test_a_withheld_model_ends_a_served_run_in_order(here: Path) -> None:
    participants = {name: participant(here, name) for name in NAMES}
    got = serve(here, NULL, Room(participants))
    expected = simulate(here, NULL)
    assert got.verdict == expected.verdict
    assert got.verdict["status"] == "infeasible"
    assert RunFolder(here / "served").withheld
    assert not (here / "served" / "model").exists()
    for one in participants.values():
        assert one.ended.is_set()
        assert one.complete
        assert one.withheld
        assert one.verdict == "infeasible"
        assert one.error is None
        place = RunFolder(one.result)
        assert place.withheld
        assert place.verdict() == expected.verdict
        with pytest.raises(RunError, match="verdict"):
            api.predictor(one.result, 0)
    with pytest.raises(RunError, match="withheld"):
        resume(here / "served", keep=True)
    assert RunFolder(here / "served").complete


def test_a_served_run_ends_early_where_the_simulation_does(here: Path) -> None:
    words = [*NULL[:1], "algorithm.zeta=5.0", "algorithm.track=1", "algorithm.stop=0.5"]
    words += [*NULL[3:], "rounds=20"]
    got, expected = serve(here, words), simulate(here, words)
    assert len(got.rounds) == len(expected.rounds) < 20
    assert got.notes == expected.notes
    assert got.verdict["status"] == "met"
    assert got.verdict["facts"]["gap"] == pytest.approx(expected.verdict["facts"]["gap"], rel=1e-3)


def test_serve_ends_with_the_same_exit_code_as_run(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = Room({name: participant(here, name) for name in NAMES})

    @contextmanager
    def running(*_args: object, **_more: object) -> Iterator[Any]:
        yield room, NODES

    monkeypatch.setattr(superlink, "running", running)
    words = ["serve", str(here / "config.toml"), *NULL, "--insecure", "--address", "127.0.0.1:9092"]
    words += ["--clients", ",".join(NAMES), "--to", str(here / "served"), "--quiet", "--no-report"]
    got = CliRunner().invoke(app, words)
    assert got.exit_code == 3, got.output
    assert "verdict: infeasible" in got.output


# --- model cards ----------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["fedavg", "fmtl"])
def test_participants_have_the_model_card_of_a_simulation(here: Path, algorithm: str) -> None:
    participants = {name: participant(here, name) for name in NAMES}
    serve(here, [f"algorithm={algorithm}"], Room(participants))
    simulate(here, [f"algorithm={algorithm}"])
    expected = json.loads((here / "simulated" / "model" / "model.json").read_text())
    organisers = json.loads((here / "served" / "model" / "model.json").read_text())
    total = dict.fromkeys(expected["splits"], 0)
    own_parts = {"sha256", "data"}  # the tensors' bytes, and where the rows came from
    for name, one in participants.items():
        card = json.loads((one.result / "model" / "model.json").read_text())
        assert list(card) == list(expected)
        for key in set(expected) - own_parts - {"clients", "splits"}:
            assert card[key] == expected[key], key
        assert card["attributes"] == {"sex": ["Female", "Male"]}
        assert card["clients"] == [name]
        total = {split: total[split] + rows for split, rows in card["splits"].items()}
    assert total == expected["splits"]
    for key in set(expected) - own_parts - {"shapes"}:  # the organiser has no clients' states
        assert organisers[key] == expected[key], key


PRIVATE = ["privacy.level=client", "privacy.clip=0.05", "privacy.noise=0.5", "privacy.seed=4"]
PRIVATE += ["privacy.allow=['preprocessing', 'evaluation']"]


def test_privacy_of_clients_takes_effect(here: Path) -> None:
    """Participants clip, the organiser clips again and adds the noise; the ledger is the same."""
    sent: list[float] = []
    plain = ClippedReplies._part

    def seen(self: Any, declared: Any, name: str, value: Any, message: Any) -> Any:
        out = plain(self, declared, name, value, message)
        sent.append(float(tree.sq_norm(tree.sub(out, message["params"])).sqrt()))
        return out

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClippedReplies, "_part", seen)
        got = serve(here, PRIVATE)
    expected = simulate(here, PRIVATE)
    assert sent
    assert max(sent) == pytest.approx(0.05, rel=1e-4)  # the clip is reached, and not exceeded
    assert same(model(here / "served")["server"], model(here / "simulated")["server"])
    read = [json.loads((here / f / "privacy.json").read_text()) for f in ("served", "simulated")]
    assert read[0]["epsilon"] == read[1]["epsilon"] > 0
    assert read[0]["releases"] == read[1]["releases"]
    assert got.facts["privacy"]["budget"] is expected.facts["privacy"]["budget"] is None


ROWS = ["privacy.level=example", "privacy.clip=1.0", "privacy.noise=2.0", PRIVATE[-1]]
ROWS += ["local.batch=16", "local.steps=2"]


@pytest.mark.parametrize("more", [[], ["secure=true"]])
def test_participants_train_privately_and_count_by_themselves(here: Path, more: list[str]) -> None:
    serve(here, [*ROWS, *more])
    ledger = json.loads((here / "served" / "privacy.json").read_text())
    for k, name in enumerate(NAMES):
        own = json.loads(next((here / "homes" / name).rglob("privacy.json")).read_text())
        assert own["epsilon"] == ledger["clients"][str(k)] > 0
    simulate(here, [*ROWS, "privacy.seed=1"])
    served = model(here / "served")["server"]
    assert tree.finite(served)
    assert not same(served, model(here / "simulated")["server"])  # keys are the participants' own
    simulate(here, ROWS[-2:], "plain")
    assert not same(served, model(here / "plain")["server"])


def test_a_participant_refuses_to_exceed_its_budget(tmp_path: Path) -> None:
    work, training = Work(batch=10, steps=5), Training(rounds=1)
    one = epsilon(training_events(work, 100, 2.0, "passes"), 1e-5)
    options = PrivacyConfig(
        level="example", clip=1.0, noise=2.0, epsilon=one * 1.0001, batches="passes"
    )
    ask = Ask(FedAvg().local, {}, work, 0, 0.1, torch.tensor([0]))
    side = OwnExamples(options, training, 100, tmp_path / "privacy.json")
    side(ask, ask.phase)
    assert json.loads(side.file.read_text())["epsilon"] == pytest.approx(one, rel=1e-5)
    again = OwnExamples(options, training, 100, side.file)  # after a restart
    with pytest.raises(BudgetSpent, match="allows no further training on your rows"):
        again(ask, ask.phase)
    assert again.epsilon() == side.epsilon() == pytest.approx(one)


def test_the_consent_says_what_privacy_promises(here: Path) -> None:
    """Level, epsilon before anything is sent, delta, what is covered and what is not."""
    overrides = [*PRIVATE[:-2], "privacy.noise=5.0", "privacy.epsilon=4.0", PRIVATE[-1]]
    config = read(here / "config.toml", overrides)
    text = " ".join(consent_text(charters.make(config, NAMES)[0]))
    spent = epsilon({Event(5.0): 3}, 1e-5)
    assert f"epsilon is {spent:.3g} at delta = 1e-05 after all 3 rounds" in text
    assert "training ends before it exceeds 4" in text
    assert "to a norm of 0.05" in text
    assert "You trust the organiser" in text
    assert "Not covered, and sent without noise: the preparation" in text
    some = [w for w in PRIVATE if "noise" not in w]  # the noise is found after preparation
    config = read(here / "config.toml", [*some, "privacy.epsilon=4.0"])
    text = " ".join(consent_text(charters.make(config, NAMES)[0]))
    assert "epsilon is at most 4 at delta = 1e-05" in text
    plain = charters.make(read(here / "config.toml", []), NAMES)[0]
    assert "Differential privacy: none." in " ".join(consent_text(plain))


def test_the_consent_says_the_epsilon_of_the_participants_own_rows(here: Path) -> None:
    """It is what the participant's own count has after all rounds."""
    shown: list[str] = []
    members = {name: participant(here, name) for name in NAMES}

    def agree(charter: Any) -> bool:
        shown.extend(consent_text(charter, members["north"].rows))
        return True

    members["north"]._decide = agree
    serve(here, [*ROWS, "privacy.epsilon=80.0"], Room(members))
    own = json.loads(next((here / "homes/north").rglob("privacy.json")).read_text())
    text = " ".join(shown)
    assert f"epsilon is {own['epsilon']:.3g} at delta = 1e-05 after all 3 rounds" in text
    assert "You need not trust the organiser" in text
    assert "and refuses to answer beyond 80" in text
    charter = charters.make(read(here / "config.toml", ROWS), NAMES)[0]
    text = " ".join(consent_text(charter))
    assert "epsilon depends on how many rows you have" in text
