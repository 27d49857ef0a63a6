"""A dishonest organiser asks for more than the charter says: everything else is refused."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from attacks.organiser import SESSION, Dishonest
from federation.participants import NAMES, participant
from isonomy.config.files import read
from isonomy.federation import charter as charters
from isonomy.federation.consent import consent_text
from isonomy.federation.flower import codec


@pytest.fixture
def organiser(tmp_path: Path) -> Dishonest:
    """The charter's limits are the defaults; the victim has a name that is in no charter."""
    return Dishonest(tmp_path)


def with_names(table: Path) -> list[str]:
    """Add a column that identifies everybody, and that the charter does not name."""
    lines = table.read_text().splitlines()
    out = [f"{lines[0]},patient"]
    out += [f"{line},Person {i:03d}" for i, line in enumerate(lines[1:])]
    table.write_text("\n".join(out) + "\n")
    return [f"Person {i:03d}" for i in range(len(lines) - 1)]


# --- tables ---------------------------------------------------------------------------------------


def test_no_column_outside_of_the_charter_is_reported(organiser: Dishonest) -> None:
    people = with_names(organiser.folder / "tables" / "east.csv")
    organiser.target._table = None  # it is read again
    survey = organiser.charter["survey"]
    other = copy.deepcopy(survey)
    other["schema"]["label"] = {"name": "patient", "classes": [people[7]]}
    dense = {"column": "age", "train": False, "marks": [x / 4 for x in range(400)]}
    questions: list[tuple[str, dict[str, Any]]] = [
        ("look", {}),
        ("values", {"columns": {"patient": 1000}}),
        ("values", {"columns": {"age": 1000}}),
        ("span", {"column": "age", "train": False}),
        ("below", dense),
        ("survey", other),
        ("survey", survey | {"seed": survey["seed"] + 1}),
        ("survey", survey | {"fractions": [0.98, 0.01, 0.01]}),
        ("survey", survey | {"least": 1}),
        ("grid", {"column": "age", "low": 17.0, "high": 90.0, "least": 10}),  # no median is asked
    ]
    answers = [organiser.table(name, message) for name, message in questions]
    assert answers == [None] * len(questions)
    assert len(organiser.refused) == len(questions)
    assert not any(name in text for text in organiser.refused for name in ("Person", "Female"))
    assert organiser.table("survey", survey) is not None  # the charter's own


def test_small_categories_are_not_named_and_have_no_feature(tmp_path: Path) -> None:
    """One person is the only astronaut: the organiser neither learns it nor can select the row."""
    rare = Dishonest(tmp_path)
    table = tmp_path / "tables" / "east.csv"
    lines = table.read_text().splitlines()
    cells = lines[5].split(",")
    lines[5] = ",".join([*cells[:2], "astronaut", *cells[3:]])
    table.write_text("\n".join(lines) + "\n")
    made = copy.deepcopy(rare.plan.about["fitted"]["preprocessing"])
    job = next(e for e in made["encoders"] if e["name"] == "job")
    job["levels"] = [*job["levels"], "astronaut"]
    victim = participant(tmp_path / "second", "east", rows=1, cell=1)
    victim.data, rare.participants["east"] = table, victim
    head = {"kind": "hello", "run": rare.charter["run"], "session": SESSION, "done": 0}
    assert rare.send(head | {"charter": rare.charter, "number": 0, "prepared": made}) is not None
    told = rare.table("survey", rare.charter["survey"])
    assert "astronaut" not in json.dumps(told)
    assert told["categories"]["job"]["rest"] == 1
    place = list(rare.target._setting.federation.features).index("job=astronaut")
    assert float(rare.rows()[0][:, place].sum()) == 0.0


def test_medians_are_asked_at_even_marks_once(tmp_path: Path) -> None:
    asks = Dishonest(tmp_path, "data.impute=median")
    good = {"column": "age", "low": 17.0, "high": 90.0, "least": 10}
    assert asks.table("grid", good) is None  # the honest start asked with other ends
    assert "already answered" in asks.refused[-1]
    for wrong in (
        good | {"low": 40.0, "high": 41.0},
        good | {"marks": [1.0, 2.0]},
        good | {"least": 1},
        good | {"column": "approved"},
        good | {"column": "job"},
    ):
        assert asks.table("grid", wrong) is None
    assert len(asks.refused) == 6


def test_the_preprocessing_is_of_the_charters_columns(organiser: Dishonest, tmp_path: Path) -> None:
    good = organiser.plan.about["fitted"]["preprocessing"]

    def greeted(change: Any) -> str:
        bad = copy.deepcopy(good)
        change(bad)
        head = {"kind": "hello", "run": organiser.charter["run"], "session": SESSION, "done": 0}
        head |= {"charter": organiser.charter, "number": 0, "prepared": bad}
        organiser.send(head)
        return organiser.refused[-1]

    def other_label(p: Any) -> None:
        p["table"]["label"]["name"] = "job"

    def other_column(p: Any) -> None:
        p["encoders"][0]["name"] = "approved"

    def one_more(p: Any) -> None:
        extra = {"kind": "category", "name": "sex", "levels": ["Male"]}
        p["encoders"].append(extra)

    def a_sum(p: Any) -> None:
        p["encoders"][0] = {"kind": "sum", "name": "age", "shares": [{"column": "sex"}]}

    for change in (other_label, other_column, one_more, a_sum):
        assert "preprocessing" in greeted(change)

    def shifted(p: Any) -> None:
        p["encoders"][0]["shift"] = 3.0

    assert "already answered" in greeted(shifted)  # the first one counts


# --- training and evaluation beyond the charter --------------------------------------------------


def test_work_seed_rate_rounds_and_splits_are_the_charters(organiser: Dishonest) -> None:
    params = organiser.setting.params
    local = organiser.plan.config.local
    sent = {"params": params}
    assert organiser.ask("local", sent, work=replace(local, steps=1, batch=1)) is None
    assert organiser.ask("local", sent, seed=17) is None
    assert organiser.ask("local", sent, rate=1.0) is None
    assert organiser.ask("local", sent, 3) is None  # there are 3 rounds, from 0
    assert organiser.ask("local", sent, -1) is None
    assert organiser.ask("measure:train", {"model": params}, 2) is None
    assert organiser.ask("measure:test", {"model": params}, 1) is None  # evaluated after 2 and 3
    assert organiser.ask("measure:loss", {"model": params}, 0) is None  # there is no defence
    assert len(organiser.refused) == 8
    assert organiser.ask("local", sent) is not None
    other = {"params": {k: v + 1 for k, v in params.items()}}
    assert organiser.ask("local", sent) is None  # once
    assert organiser.ask("local", other, exchange=1) is None
    assert organiser.ask("local", sent, 1) is not None
    assert organiser.ask("local", other) is None  # the round is over
    assert "over" in organiser.refused[-1]


def test_a_model_is_of_the_charters_network(organiser: Dishonest) -> None:
    """A wider network than the agreed one would tell more of the rows in one reply."""
    params = organiser.setting.params
    wide = {
        "linear1.weight": params["linear1.weight"].repeat(500, 1),
        "linear1.bias": params["linear1.bias"].repeat(500),
        "linear2.weight": params["linear2.weight"].repeat(1, 500),
        "linear2.bias": params["linear2.bias"],
    }
    for sent in (
        {"params": wide},
        {"params": params | {"more": torch.ones(3)}},
        {"params": {k: v.double() for k, v in params.items()}},
        {"params": {k: v.expand(1000, *v.shape) for k, v in params.items()}},
    ):
        assert organiser.ask("local", sent) is None
    assert set(organiser.refused) == {"its model is not of the charter's network"}
    assert organiser.ask("local", {"params": params}) is not None  # nothing was used up


def test_a_message_carries_the_charters_digest(organiser: Dishonest) -> None:
    sent = {"params": organiser.setting.params}
    assert organiser.ask("local", sent, charter="0" * 64) is None
    assert organiser.ask("local", sent, charter=None) is None
    assert {"it is not of the charter that was agreed to"} == set(organiser.refused)


def test_another_charter_rebuilds_the_participant(organiser: Dishonest) -> None:
    """mu = 0 was agreed to first, then mu = 50, by a process that stayed up."""
    config = read(organiser.folder / "config.toml", ["algorithm=fedprox", "algorithm.mu=50.0"])
    charter, _ = charters.make(config, NAMES)
    assert organiser.target._setting.algorithm.name == "fedavg"
    head = {"kind": "hello", "run": charter["run"], "session": SESSION, "done": 0}
    head |= {"charter": charter, "number": 0}
    fitted = organiser.plan.about["fitted"]["preprocessing"]
    assert organiser.send(head | {"prepared": fitted}) is not None
    assert organiser.target._setting.algorithm.name == "fedprox"
    assert organiser.target._setting.algorithm.mu == 50.0
    assert organiser.ask("local", {"params": organiser.setting.params}) is None  # the old charter's


def test_the_number_that_decides_the_split_cannot_change(organiser: Dishonest) -> None:
    head = {"kind": "hello", "run": organiser.charter["run"], "session": SESSION, "done": 0}
    head |= {"charter": organiser.charter, "number": 2, "prepared": None}
    assert organiser.send(head) is None
    assert "number" in organiser.refused[-1]


# --- restarts -------------------------------------------------------------------------------------


def test_a_repeated_round_is_answered_the_same_and_another_question_few_times(
    tmp_path: Path,
) -> None:
    organiser = Dishonest(tmp_path, "privacy.repeats=2", "algorithm=local", "rounds=4")
    first = organiser.ask("local", {}, 0)
    organiser.ask("local", {}, 1)
    for session in range(5):
        organiser.greeting(f"{session:032x}", 0)
        again = organiser.ask("local", {}, 0)
        assert torch.equal(again["trained"], first["trained"])
    assert not organiser.refused  # nothing new was told

    organiser = Dishonest(tmp_path / "other", "privacy.repeats=2", "rounds=4")
    params = organiser.setting.params
    answers = 0
    for session in range(6):
        organiser.greeting(f"{session:032x}", 0)
        moved = {k: v + session for k, v in params.items()}
        answers += organiser.ask("local", {"params": moved}, 0) is not None
    assert answers == 3  # the first one, and two repeats
    assert "such rounds" in organiser.refused[-1]


def test_what_was_answered_survives_a_restart_of_the_participant(organiser: Dishonest) -> None:
    sent = {"params": organiser.setting.params}
    assert organiser.ask("local", sent) is not None
    fresh = participant(organiser.folder, "east", rows=1, cell=1)
    organiser.participants["east"] = fresh
    other = {"params": {k: v + 1 for k, v in sent["params"].items()}}
    assert organiser.ask("local", other) is None
    organiser.greeting(SESSION, 0)  # the same session: no rewind
    assert organiser.ask("local", other) is None


def test_a_server_does_not_go_back_behind_its_checkpoint(organiser: Dishonest) -> None:
    sent = {"params": organiser.setting.params}
    organiser.ask("local", sent, 0)
    organiser.ask("local", sent, 1, settled=1)
    head = {"kind": "hello", "run": organiser.charter["run"], "session": "6" * 32, "done": 0}
    head |= {"charter": organiser.charter, "number": 0, "prepared": None}
    assert organiser.send(head) is None
    assert "checkpoint" in organiser.refused[-1]


# --- texts and paths -----------------------------------------------------------------------------


@pytest.mark.parametrize("run", ["/tmp/any", "../../up", "x" * 32, "", None, 7])
def test_a_run_is_named_by_an_id(organiser: Dishonest, run: Any) -> None:
    charter = organiser.charter | {"run": run}
    head = {"kind": "hello", "run": run, "session": SESSION, "done": 0, "charter": charter}
    before = set(organiser.folder.rglob("*"))
    assert organiser.send(head | {"number": 0, "prepared": None}) is None
    assert set(organiser.folder.rglob("*")) == before


def test_the_consent_text_is_not_the_organisers(organiser: Dishonest) -> None:
    shown = "\n".join(consent_text(organiser.charter))
    assert "only the weighted sum" in shown  # the words of this installation
    assert "each of the 3 rounds: 'local'" in shown
    assert "2 evaluations" in shown
    assert "at least 32 training rows" in shown
    assert "fewer than 10 rows" in shown
    with pytest.raises(Exception, match="parts"):
        charters.check(organiser.charter | {"reveals": "nothing at all"})
    bad = copy.deepcopy(organiser.charter)
    bad["survey"]["schema"]["label"]["classes"] = ["no", "yes\x1b[2J\u202eharmless"]
    assert "\x1b" not in "\n".join(consent_text(bad))
    assert "\u202e" not in "\n".join(consent_text(bad))
    bad = copy.deepcopy(organiser.charter)
    bad["clients"][1] = "north\x1b[31m"
    with pytest.raises(Exception, match="letters, digits"):
        charters.check(bad)


@pytest.mark.parametrize("limit", ["rows", "cell", "rounding"])
def test_a_participant_insists_on_its_own_limits(tmp_path: Path, limit: str) -> None:
    own: dict[str, Any] = {"rows": 32, "cell": 10, "exact": False}
    value = {"rows": "5", "cell": "5", "rounding": "false"}[limit]
    with pytest.raises(Exception, match="not here"):
        Dishonest(tmp_path, f"privacy.{limit}={value}", **own)


def test_a_method_that_sends_rows_is_refused(tmp_path: Path) -> None:
    words = ["algorithm=hetpfl", "local.optimiser=adam", "algorithm.fusion_steps=3"]
    with pytest.raises(Exception, match="not here"):
        Dishonest(tmp_path, *words)


def test_every_refusal_names_its_reason_on_both_sides(organiser: Dishonest) -> None:
    said: list[str] = []
    organiser.target._note = said.append
    organiser.ask("local", {"params": organiser.setting.params}, seed=3)
    assert organiser.refused == ["its seed is not the charter's"]
    assert said == ["a message was refused: its seed is not the charter's."]
    answer = organiser.target.answer(codec.pack({"kind": "phase\x1b", "charter": "\x1b[2J"}))
    assert "\x1b" not in codec.header(answer)["why"]
