"""The page of a decision: made from decision.json alone, offline, without a script."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from isonomy.report.decision import render
from isonomy.report.decision_figure import trade_off

NASTY = "<script>alert('x')</script>"


def row(name: str, objective: float, value: float | None, standing: str = "clear") -> dict:
    return {
        "name": name,
        "method": name.split(",")[0],
        "trial": 0,
        "settings": {"local.lr": 0.25},
        "preference": [],
        "rule": "",
        "objective": objective,
        "values": [value],
        "margins": [0.01],
        "standing": standing,
        "chance": 0.9 if standing == "clear" else 0.2,
    }


def facts(**changes: Any) -> dict[str, Any]:
    """The content of a decision.json with one requirement."""
    answer = {
        "requirement": "demographic_parity(sex) <= 0.1",
        "title": "demographic parity gap between the groups of sex",
        "status": "met",
        "value": 0.04,
        "low": 0.02,
        "high": 0.06,
        "examples": 5000,
        "needed": None,
        "unmeasured": [],
    }
    made = {
        "format": 1,
        "outcome": "met",
        "lines": ["Yes: FedAvg, trial 0 meets the requirement.", "More."],
        "asked": {
            "requirements": ["demographic_parity(sex) <= 0.1"],
            "objective": "maximise accuracy",
            "titles": ["demographic parity gap between the groups of sex"],
        },
        "level": 0.95,
        "power": 0.8,
        "chosen": row("FedAvg, trial 0", 0.85, 0.04),
        "answers": [answer],
        "objective": {"name": "accuracy", "title": "accuracy", "validation": 0.85, "test": 0.84},
        "constant": row("Constant prediction", 0.76, 0.0),
        "nearest": [],
        "proved": [],
        "also_known": [],
        "impossible": "",
        "likeliest": None,
        "better_unshown": None,
        "cautions": [],
        "candidates": [row("FedAvg, trial 0", 0.85, 0.04), row(NASTY, 0.8, None, "missed")],
        "points": [row("FedAvg, trial 0", 0.85, 0.04), row(NASTY, 0.8, 0.2, "missed")],
        "methods": [
            {
                "label": "FedAvg",
                "algorithm": "fedavg",
                "trials": 2,
                "failures": ["trial 1: the loss is not finite"],
                "reveals": "the mean of models",
            }
        ],
        "left_out": {"FedMA": "it needs an MLP"},
        "by_group": [
            {
                "attribute": "sex",
                "group": NASTY,
                "examples": 100,
                "accuracy": 0.8,
                "positive_rate": 0.2,
                "true_positive_rate": 0.5,
                "false_positive_rate": None,
            }
        ],
        "by_client": [
            {"client": NASTY, "examples": 10, "accuracy": 0.8, "low": 0.4, "high": 0.97},
            {"client": "empty", "examples": 0, "accuracy": None, "low": None, "high": None},
        ],
        "too_few": [],
        "data": {
            "source": "adult",
            "clients": 10,
            "sizes": {"train": 100, "validation": 20, "test": 30},
            "attributes": {"sex": ["f", "m"]},
            "labels": ["0", "1"],
            "notes": [],
            "warnings": ["A warning."],
        },
        "models": ["model"],
        "passes": 2,
        "seconds": 12.0,
        "repeat": {"command": "isonomy decide x.toml", "seed": 0, "versions": {"torch": "2"}},
        "config": {},
    }
    return {**made, **changes}


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "rect", "line", "circle", "path", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag in ("rect", "line", "circle", "path"):
            return
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_needs_neither_script_nor_network():
    page = render(facts())
    tags = _Tags()
    tags.feed(page)
    assert tags.open == []
    names = {tag for tag, _ in tags.seen}
    assert "script" not in names
    links = [
        value for _, given in tags.seen for key, value in given.items() if key in ("src", "href")
    ]
    assert links == ["data:,"]
    assert "default-src 'none'" in page
    assert NASTY not in page
    assert html.escape(NASTY) in page


def test_the_page_says_what_was_asked_answered_and_tried():
    text = re.sub(r"<[^>]+>", " ", render(facts()))
    for part in (
        "Decision: yes",
        "demographic_parity(sex) &lt;= 0.1",
        "0.020 to 0.060",
        "local.lr = 0.25",
        "FedMA was left out: it needs an MLP",
        "trial 1: the loss is not finite",
        "isonomy decide x.toml",
        "not a statement of compliance",
        "A warning.",
        "not defined",
    ):
        assert part in text, part


def test_a_no_without_a_candidate_says_that_nothing_was_measured_on_test():
    page = render(
        facts(outcome="none", chosen=None, answers=[], models=[], by_group=[], by_client=[])
    )
    assert "Decision: no" in page
    assert "not measured on test examples" in page
    assert "By group" not in page
    assert "What is proved" not in page
    assert "The nearest trade-offs" not in page


def test_a_no_says_what_is_proved_and_what_is_near():
    likely = {**row("Local", 0.8, 0.09, "possible"), "needed": "about 9,000", "number": 3}
    changes = {
        "outcome": "none",
        "chosen": None,
        "answers": [],
        "proved": [f"No model meets {NASTY}."],
        "nearest": [row(NASTY, 0.8, 0.12, "missed"), row("FedFB", 0.85, 0.2, "missed")],
        "likeliest": likely,
    }
    page = render(facts(**changes))
    assert NASTY not in page
    assert "No model meets &lt;script&gt;" in page
    assert "The nearest trade-offs" in page
    assert page.index("0.120") < page.index("FedFB")
    assert "3 of them meet every requirement there" in page
    assert "about 9,000 test examples would be needed" in page
    assert "they can still be used" in page


def test_an_uncertain_choice_states_its_chance():
    page = render(facts(chosen=row("FedAvg, trial 0", 0.85, 0.09, "possible")))
    assert "with a probability of about 20%" in page


def test_a_requirement_on_the_objective_has_no_picture_beside_others():
    given = facts()
    given["asked"]["requirements"].append("accuracy >= 0.5")
    given["asked"]["titles"].append("accuracy")
    given["answers"] = []
    for one in [*given["points"], *given["candidates"], given["constant"], given["chosen"]]:
        one["values"] = [one["values"][0], one["objective"]]
        one["margins"] = [0.01, 0.01]
    assert render(given).count("<svg") == 1
    assert render(facts()).count("<svg") == 1


@pytest.mark.parametrize(
    ("asked", "left"), [("demographic_parity(sex) <= 0.1", True), ("x >= 0.1", False)]
)
def test_the_feasible_side_is_shaded(asked, left):
    given = facts()
    given["asked"]["requirements"] = [asked]
    svg = trade_off(given, 0)
    x, width = (
        float(v) for v in re.search(r'class="area" x="([\d.]+)".*?width="([\d.]+)"', svg).groups()
    )
    bound = float(re.search(r'class="bound" x1="([\d.]+)"', svg).group(1))
    assert bound == pytest.approx(x + width if left else x, abs=0.2)
    assert 'class="chosen"' in svg


def test_statuses_have_their_own_marks():
    given = facts()
    for status, kind in [("met", "yes"), ("not met", "no"), ("cannot be told", "open")]:
        given["answers"][0]["status"] = status
        assert f'<td class="{kind}">{status}</td>' in render(given)
