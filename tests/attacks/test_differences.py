"""Difference attacks: what follows from told cells, and from two answers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attacks.organiser import Dishonest
from federation.participants import CONFIG, NAMES, NODES, Room, participant, write_tables
from isonomy.blocks.groups import Cells, withhold_small
from isonomy.config.files import read
from isonomy.core.algorithm import Global
from isonomy.core.disclosure import even, even_predictions, told, withheld_counts
from isonomy.federation.organiser import begin, conduct

counts = st.lists(st.integers(0, 60), min_size=2, max_size=6)


@given(counts, st.integers(2, 20))
def test_what_is_hidden_has_no_number_that_follows(cells: list[int], least: int) -> None:
    """The sum of all minus the told cells is 0, or at least `least`, or everything is hidden."""
    count = torch.tensor(cells)
    shown = told(count, least)
    hidden = int(count[~shown].sum())
    assert bool((count[shown] >= least).all())
    assert hidden == 0 or hidden >= least or not bool(shown.any())


@given(st.lists(counts, min_size=2, max_size=2), st.integers(2, 20))
def test_by_label_and_in_total(pair: list[list[int]], least: int) -> None:
    """The sums of labels are known too, from evaluations: neither they nor the size tell a cell."""
    width = min(len(row) for row in pair)
    count = torch.tensor([row[:width] for row in pair]).double()
    sums = withhold_small(Cells(count, count, count), least)
    for label in range(2):
        hidden = float(count[label].sum() - sums.count[label].sum())
        assert hidden == 0 or hidden >= least or not bool(sums.count[label].any())


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 2**31))
def test_one_row_does_not_show_in_a_count_of_predictions(some: int, rest: int, seed: int) -> None:
    """A model that reacts to one row, and one that reacts to none, get the same answer."""
    part, whole = torch.tensor([0, 1, some]), torch.tensor([rest + 5, rest + 5, some + rest])
    near = even(part, whole)
    assert near[0] == near[1] == 0
    assert abs(int(near[2]) - some) <= 1
    generator = torch.Generator().manual_seed(seed)
    table = torch.randint(0, 30, (2, 3), generator=generator)
    rounded = even_predictions(table)
    assert bool((rounded >= 0).all())
    assert bool((rounded.sum(-1) == table.sum(-1)).all()) or bool((rounded == 0).any())


def test_small_cells_of_an_evaluation_are_withheld() -> None:
    """An attribute is told with all its cells or not at all; everyone's labels are told."""
    table = torch.zeros(3, 2, 2, dtype=torch.int64)
    table[1] = torch.tensor([[20, 2], [1, 7]])  # a group of 22 and 8 rows by label
    table[2] = torch.tensor([[3, 1], [15, 5]])  # of 4 and 20
    table[0] = table[1] + table[2]
    kept, _ = withheld_counts(table, None, (2,), 10)
    assert torch.equal(kept[0], table[0])  # 26 and 28 rows
    assert not bool(kept[1:].any())  # 4 and 22 of label 0, 8 and 20 of label 1
    assert not bool(withheld_counts(table, None, (2,), 5)[0][1:].any())
    assert torch.equal(withheld_counts(table, None, (2,), 4)[0], table)
    table[0, 0, 0] += 2  # two rows of unknown group
    assert not bool(withheld_counts(table, None, (2,), 4)[0][1:].any())
    table[1, 1] = 0  # no row in a cell is not a small cell
    table[0] = table[1] + table[2]
    assert torch.equal(withheld_counts(table, None, (2,), 4)[0], table)


def hidden_numbers(told_cells: torch.Tensor, sizes: torch.Tensor) -> list[float]:
    """What the organiser finds by subtraction: the number of a cell that is withheld alone."""
    found = []
    for label in range(2):
        gone = (told_cells[label] == 0).nonzero().flatten().tolist()
        if len(gone) == 1:
            found.append(float(sizes[label] - told_cells[label].sum()))
    return [number for number in found if number]


@pytest.mark.parametrize("victim", ["east", "north", "south"])
@pytest.mark.parametrize("name", ["fedfb", "fairfed", "fair_fate", "fedfair"])
def test_rows_minus_reported_cells(tmp_path: Path, name: str, victim: str) -> None:
    """Without complementary suppression, 4 of 4 withheld numbers followed."""
    organiser = Dishonest(tmp_path, f"algorithm={name}", "evaluate.split=train", victim=victim)
    assert organiser.plan.config.algorithm.options["least"] == 10  # the charter's cell
    params = organiser.setting.params
    cells = organiser.ask("measure", {"params": params}, 0)["cells"].count
    y = organiser.rows()[1]
    labels = torch.stack([(y == 0).sum(), (y == 1).sum()]).double()
    assert hidden_numbers(cells, labels) == []
    # the evaluation on the same rows withholds the same cells, round for round
    organiser.ask("train", {"params": params}, 1, exchange=1)
    counted = organiser.ask("measure:train", {"model": Global(params)}, 2)
    assert counted is not None
    by_group = counted["counts"][1:].sum(-1).T.double()
    assert torch.equal(by_group, cells) or bool(((by_group == cells) | (by_group == 0)).all())
    assert hidden_numbers(by_group, labels) == []


def test_a_served_run_says_what_it_did_not_count(tmp_path: Path) -> None:
    """With the default limits a run ends, and its notes say what metrics miss."""
    write_tables(tmp_path / "tables", times=4)
    (tmp_path / "config.toml").write_text(CONFIG)
    words = ["privacy.cell=10", "privacy.rounding=true", "rounds=2"]
    plan = begin(read(tmp_path / "config.toml", words), tmp_path / "run", NAMES)
    room = Room({name: participant(tmp_path, name) for name in NAMES})
    record = conduct(plan, room, nodes=NODES, wait=0.0, timeout=5.0)
    assert any("fewer than 10 rows" in note for note in record.notes)
    assert any("rounded" in note for note in record.notes)
    assert record.metrics["accuracy"] > 0.5
