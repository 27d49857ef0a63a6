"""Notions of group fairness: lookup, the examples they compare, and the gap."""

from __future__ import annotations

import doctest

import pytest
import torch

from isonomy.core import notions
from isonomy.core.notions import NOTIONS, find_notion, find_objectives, gap_to_everyone
from isonomy.errors import ConfigError


def test_a_notion_is_found_by_code_and_by_name() -> None:
    for code, notion in NOTIONS.items():
        assert find_notion(code) is find_notion(notion.name) is notion
        assert notion.meaning.endswith(".")
    with pytest.raises(ConfigError, match="demographic_parity"):
        find_notion("demographic_party")


def test_demographic_parity_compares_all_examples_and_equal_opportunity_the_positive_ones() -> None:
    y = torch.tensor([0, 1, 1])
    weight = torch.tensor([1.0, 1.0, 0.0])
    assert NOTIONS["dp"].restrict(weight, y).tolist() == [1, 1, 0]
    assert NOTIONS["eo"].restrict(weight, y).tolist() == [0, 1, 0]
    assert NOTIONS["eo"].restrict(weight > 0, y).tolist() == [False, True, False]
    cells = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert NOTIONS["dp"].compared(cells).sum(0).tolist() == [4, 6]
    assert NOTIONS["eo"].compared(cells).sum(0).tolist() == [3, 4]
    assert NOTIONS["eo"].compared(cells, 1).sum(1).tolist() == [2, 4]


def test_equalised_odds_has_no_single_rate() -> None:
    with pytest.raises(ValueError, match="compares 2 rates"):
        _ = NOTIONS["equalised_odds"].label


def test_the_gap_to_everyone_leaves_out_what_is_not_defined() -> None:
    rate, everyone = torch.tensor([0.5, 0.25, 0.0]), torch.tensor(0.375)
    assert gap_to_everyone(rate, everyone, torch.tensor([True, True, False])) == 0.125
    assert gap_to_everyone(rate, everyone, torch.tensor([False, False, False])) == 0


@pytest.mark.parametrize(
    ("name", "attributes", "message"),
    [
        ("equalised_odds", ["sex"], "objective"),
        ("error.sex", ["sex"], "objective"),
        ("dp.age", ["sex"], "age"),
        ("dp", [], "data.protected"),
    ],
)
def test_an_unknown_objective_is_refused(name: str, attributes: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_objectives([name], attributes)


def test_objectives_are_named_in_full() -> None:
    found = find_objectives(["error", "dp", "eo.race"], ["sex", "race"])
    assert [each.name for each in found] == ["error", "dp.sex", "eo.race"]
    assert found[2].metric == "group.race.equal_opportunity_overall"


def test_the_examples_in_docstrings() -> None:
    assert doctest.testmod(notions).failed == 0
