"""The leaderboard: what follows from rows, by hand; and the page against its data."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from isonomy.errors import ConfigError
from isonomy.studies import board as boards
from isonomy.studies import leaderboard
from isonomy.studies.board import Board
from isonomy.studies.results import tables

ROOT = Path(__file__).parents[2]


def row(method: str, seed: int, one_class: bool = False, **metrics: float) -> dict[str, Any]:
    names = {"dp": "group.sex.demographic_parity", "worst": "client.accuracy.worst10"}
    return {
        "method": method,
        "seed": seed,
        "metrics": {names.get(name, name): value for name, value in metrics.items()},
        "complete": bool(metrics),
        "why": "" if metrics else "needs two groups",
        "one_class": one_class,
        "trials": 5,
        "seconds": 60.0,
        "commit": "abc",
        "versions": {"torch": "2"},
    }


@pytest.fixture
def board() -> Board:
    def rows(shift: float) -> list[dict[str, Any]]:
        found = [row("picky", 0)] if shift else []
        for seed, jitter in ((0, 0.0), (1, 0.01)):
            found += [
                row("fedavg", seed, accuracy=0.9 - jitter, dp=0.3, worst=0.5),
                row("fair", seed, accuracy=0.8 + shift, dp=0.1 + jitter, worst=0.6),
                row("bad", seed, accuracy=0.7, dp=0.3, worst=0.4),
                row("constant", seed, one_class=True, accuracy=0.75, dp=0.0, worst=0.4),
            ]
        return found

    return Board({"one": rows(0.0), "two": rows(0.05)})


def test_ranks_and_fronts(board: Board):
    ranks = board.ranking("accuracy")
    assert ranks is not None
    assert ranks.ranks == {"fedavg": 1.0, "fair": 2.0, "constant": 3.0, "bad": 4.0}
    parity = board.ranking("demographic_parity")
    assert parity is not None
    assert parity.ranks == {"constant": 1.0, "fair": 2.0, "bad": 3.5, "fedavg": 3.5}
    # the constant has the smallest gap, and is on no front
    assert board.fronts("demographic_parity") == {"fedavg": ["one", "two"], "fair": ["one", "two"]}


def test_the_page(board: Board):
    page = leaderboard.page(board)
    assert "| fair | 2.0 | 1.0 | 2.0 |" in page
    # in federation one fedavg leads by .1 and .09: t = .095 / .005; in two by .05 and .04
    assert "- accuracy: **fedavg** 0.895; fair 0.800, p = 0.033." in page
    assert "- accuracy: **fedavg** 0.895; fair 0.850, p = 0.07." in page
    assert "fedavg has the best mean on one in accuracy; on two in accuracy.\n" in page
    assert "local has the best mean nowhere.\n" in page
    # a rank of 1 instead of 3.5 is less than the critical difference of four methods on two
    assert "no method is significantly better in accuracy, worst 10 % client accuracy and" in page
    # paired differences .2 and .19: t = .195 / (.005), one degree of freedom
    gap = "- demographic-parity gap: **fair** 0.105; bad 0.300, p = 0.016; fedavg 0.300, p = 0.016."
    assert gap in page
    assert "| constant (one class) | 0.750 ± 0.000 |" in page
    assert page.count("picky: needs two groups") == 1
    assert "8 runs, 8 min in all; torch 2; commit abc" in page
    # .9 and .89: a standard error of .005, and 12.706 is Student's t of one degree of freedom
    assert "| fedavg | 0.895 ± 0.064 | 0.500 ± 0.000 |" in page
    assert "The constant predicts the most frequent class" in page


def test_a_constant_that_was_not_measured_is_not_mentioned(board: Board):
    rows = {data: [r for r in own if r["method"] != "constant"] for data, own in board.rows.items()}
    empty = {**row("constant", 0), "why": ""}
    page = leaderboard.page(Board({data: [*own, empty] for data, own in rows.items()}))
    assert "onstant" not in page
    assert "picky: needs two groups" in page


def combination(method: str, data: str, **metrics: float) -> dict[str, Any]:
    return {**row(method, 100, **metrics), "setting": data}


def test_the_combination_is_chosen_by_ranks_on_validation_examples():
    rows = [
        combination("a + r", "one", accuracy=0.9, dp=0.2, worst=0.5),
        combination("b + r", "one", accuracy=0.8, dp=0.1, worst=0.6),
        combination("a + r", "two", accuracy=0.9, dp=0.2, worst=0.7),
        combination("b + r", "two", accuracy=0.8, dp=0.1, worst=0.8),
        combination("c + r", "one", accuracy=0.99, dp=0.0, worst=0.9),
        combination("c + r", "two"),  # refused: not in every federation
    ]
    # a: ranks 1, 2, 2; b: 2, 1, 1
    assert boards.choice(rows) == "b + r"
    assert boards.choice([]) is None
    turned = [{**one, "metrics": {"accuracy": one["metrics"].get("accuracy", 0)}} for one in rows]
    assert boards.choice(turned[:4]) == "a + r"


def test_the_method_of_our_own_is_compared_with_its_parts(board: Board):
    assert "A method of our own" not in leaderboard.page(board)

    def ours(accuracy: float) -> list[dict[str, Any]]:
        return [
            row(leaderboard.OURS, seed, accuracy=accuracy, dp=0.3, worst=0.7) for seed in (0, 1)
        ]

    rows = {d: [*own, *ours(0.905 if d == "one" else 0.915)] for d, own in board.rows.items()}
    rows["two"] += [row("finetune", seed, accuracy=0.9, worst=0.7, dp=0.3) for seed in (0, 1)]
    page = leaderboard.page(Board(rows))
    assert "mean over 2 federations" in page
    # fedavg has .895: differences of .01 and .02, t = 3; fine-tuning was measured on one of them
    assert "| fedavg | +0.015, p = 0.2 | +0.200, no p, the differences are equal |" in page
    assert "| finetune | – | – |" in page
    # fair has a smaller gap and less accuracy, so both are on that front
    assert "worst 10 % client accuracy 2 of 2" in page
    assert "demographic-parity gap 2 of 2" in page
    assert (
        "Better with p < 0.05: worst 10 % client accuracy (minus fedavg); worse: nothing." in page
    )
    assert "best mean rank of all methods in accuracy and worst 10 % client accuracy:" in page
    assert "| accuracy | 1.0 | fedavg | 2.0 |" in page


def test_the_combination_is_compared_with_its_parts(board: Board):
    choices = [combination("fair + r", d, accuracy=0.9, dp=0.1, worst=0.5) for d in board.rows]
    choices += [combination("bad + r", d, accuracy=0.7, dp=0.2, worst=0.4) for d in board.rows]
    page = leaderboard.page(Board(board.rows, choices))
    assert "2 combinations of\na training method and a rule" in page
    assert "| fair + r | 1.0 | 1.0 | 1.0 | 1.0 |\n| bad + r | 2.0 | 2.0 | 2.0 | 2.0 |" in page
    assert "It has not been measured on test examples yet." in page

    def measured(accuracy: float) -> list[dict[str, Any]]:
        return [row("fair + r", seed, accuracy=accuracy, dp=0.05, worst=0.6) for seed in (0, 1)]

    rows = {d: [*own, *measured(0.82 if d == "one" else 0.86)] for d, own in board.rows.items()}
    page = leaderboard.page(Board(rows, choices))
    # fair has .80 and .85 with gaps of .105: differences of .02 and .01 in accuracy, t = 3, p = .2
    equal = "no p, the differences are equal"
    assert f"| fair | +0.015, p = 0.2 | +0.000, p = 1 | – | – | -0.055, {equal} |" in page
    # fedavg has .895: differences of -.075 and -.035, t = -2.75
    assert "| fedavg | -0.055, p = 0.22 |" in page
    assert "mean over 2 federations" in page
    assert "demographic-parity gap 2 of 2" in page
    assert "most federations for worst 10 % client accuracy and demographic-parity gap." in page
    # of the gap, there is a lead; fedavg's worst clients are at .5, those of the combination at .6
    assert "Better with p < 0.05: demographic-parity gap (minus fair), worst 10 %" in page
    assert "worse: nothing." in page
    assert "o lead over its parts" not in page

    def level(accuracy: float) -> list[dict[str, Any]]:
        return [row("fair + r", seed, accuracy=accuracy, dp=0.4, worst=0.3) for seed in (0, 1)]

    rows = {d: [*own, *level(0.79 if d == "one" else 0.86)] for d, own in board.rows.items()}
    for name in ("group.sex.demographic_parity", "client.accuracy.worst10"):
        rows["one"][-1]["metrics"].pop(name)  # so that accuracy alone is in both federations
    page = leaderboard.page(Board(rows, choices))
    assert "It is on the front of most federations for no notion." in page
    assert "No difference has a p-value below 0.05" in page

    rows = {d: [*own, *level(0.8 if d == "one" else 0.85)] for d, own in board.rows.items()}
    page = leaderboard.page(Board(rows, choices))
    assert "Better with p < 0.05: nothing; worse: worst 10 % client accuracy (minus fair)" in page
    assert "No lead over its parts is shown." in page


def test_a_method_ahead_of_fedavg_is_named():
    names = ["fair", "fedavg"]  # two methods: the critical difference on nine federations is .65
    rows = {
        f"data {i}": [row(name, 0, accuracy=0.9 - 0.1 * j) for j, name in enumerate(names)]
        for i in range(9)
    }
    page = leaderboard.page(Board(rows))
    assert "against FedAvg: ahead of it in accuracy: fair." in page


def test_the_table_of_one_method(board: Board):
    made = tables.federations(board, "fair", "fedavg")
    text = made.markdown()
    # in "one" .8 and .8 against .9 and .89: -.1 and -.09, t = .095 / .005
    equal = "no p, the differences are equal"
    assert f"| one | 0.800 | -0.095; p = 0.033 | +0.100; {equal} | -0.195; p = 0.016 |" in text
    assert "| two | 0.850 | -0.045; p = 0.07 |" in text
    assert "| mean rank |  | 2.0 of 4 | 1.0 of 4 | 2.0 of 4 |" in text
    assert "FAA" not in text
    assert "Differences from fedavg" in text
    assert "one class" not in text
    useless = tables.federations(board, "constant", "fair").markdown()
    assert "(one class)" in useless
    assert "the model predicts one class for everyone" in useless
    rows = {**board.rows, "two": [row("fair", 0), *board.rows["two"][2:]]}
    assert (
        "Refused or diverged: two."
        in tables.federations(
            Board({"one": rows["one"], "two": [r for r in rows["two"] if r["method"] != "bad"]}),
            "bad",
            "fedavg",
        ).markdown()
    )
    with pytest.raises(ConfigError, match="'absent' is not on the leaderboard"):
        tables.federations(board, "absent", "fedavg")


def test_the_picture_is_valid_and_has_every_method(board: Board):
    drawn = ElementTree.fromstring(leaderboard.picture(board))
    texts = [e.text for e in drawn.iter() if e.tag.endswith("text")]
    for name in ("fedavg", "fair", "bad", "constant", "demographic-parity gap"):
        assert name in texts


def test_the_page_in_the_documentation_is_that_of_its_data():
    found = boards.read(ROOT / "results" / "leaderboard")
    page = ROOT / "docs" / "leaderboard.md"
    assert page.read_text(encoding="utf-8") == leaderboard.page(found)
    picture = page.parent / "pictures" / "leaderboard.svg"
    assert picture.read_text(encoding="utf-8") == leaderboard.picture(found)


@pytest.fixture(scope="module")
def command() -> Any:
    path = ROOT / "benchmarks" / "leaderboard.py"
    spec = importlib.util.spec_from_file_location("leaderboard_command", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_constant_is_measured_with_fedavg(command: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(command, "TRIALS", 1)
    values = {
        "rounds": 1,
        "data": {"name": "synthetic", "clients": 3, "examples": 300},
        "model": "logistic",
        "excess": {"clusters": "none"},
        "algorithm": {"name": "fedavg"},
    }
    measured, constant = command.run_method(values, "fedavg", "z", [0])
    assert measured["method"] == "fedavg"
    assert constant["method"] == "constant"
    assert constant["complete"]
    assert 0 < constant["metrics"]["accuracy"] < measured["metrics"]["accuracy"]
    assert constant["metrics"]["group.z.demographic_parity"] == 0


def test_trials_and_measured_runs_have_the_same_split(command: Any):
    found = command.federations(Path("states.parquet"))
    assert len(found) == 9
    for values in found.values():
        trial = command.config_of({**values, "algorithm": {"name": "fedavg"}}, "fedavg")
        assert trial.data.seed is not None  # otherwise it is the run's, and splits differ
