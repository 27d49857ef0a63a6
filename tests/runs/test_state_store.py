"""The store of many clients' states: every complete checkpoint can be read, whatever happens."""

import random

import pytest
import torch

from isonomy.runs import checkpoints
from isonomy.runs.state_store import LOG, ROWS, StateStore

INITIAL = {"w": torch.zeros(3), "n": torch.tensor(0)}
CLIENTS, KEEP = 12, 2


def block(values):
    ids = torch.tensor(sorted(values))
    w = torch.tensor([[values[int(k)]] * 3 for k in ids])
    return ids, {"w": w, "n": ids.clone()}


def read(folder, round):
    found = checkpoints.load(folder, round, INITIAL).store
    out = {}
    for ids, states in found.states():
        assert torch.equal(states["n"], ids)
        out |= {int(k): float(w[0]) for k, w in zip(ids, states["w"], strict=True)}
    return found, out


def test_every_checkpoint_is_what_it_was_after_any_interruption(tmp_path):
    draw = random.Random(0)
    store, now, kept = StateStore(tmp_path, INITIAL), {}, {}
    for round in range(1, 60):
        changed = {k: float(round + k / 128) for k in draw.sample(range(CLIENTS), 3)}
        if draw.random() < 0.4:  # killed before the description is written
            wrong = dict.fromkeys(draw.sample(range(CLIENTS), 5), -1.0)
            store.save([block(wrong)], checkpoints._oldest(tmp_path))
            store = read(tmp_path, max(kept))[0] if kept else StateStore(tmp_path, INITIAL)
        now |= changed
        checkpoints.save(tmp_path, round, {"server": {}}, {}, (), (store, [block(changed)]))
        kept[round] = dict(now)
        if draw.random() < 0.8:  # killed before older checkpoints are deleted
            checkpoints.prune(tmp_path, KEEP)
        kept = {r: kept[r] for r in checkpoints.rounds(tmp_path)}
        for r, expected in kept.items():
            assert read(tmp_path, r)[1] == expected
    width = store.layout.width
    assert (tmp_path / ROWS).stat().st_size <= width * (
        CLIENTS + 3 * (KEEP + 4)
    )  # slots are reused


def test_slots_are_the_same_after_reading(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
        draw, store = random.Random(3), StateStore(folder, INITIAL)
        for round in range(1, 30):
            changed = {k: float(round) for k in draw.sample(range(CLIENTS), 4)}
            checkpoints.save(folder, round, {"server": {}}, {}, (), (store, [block(changed)]))
            checkpoints.prune(folder, KEEP)
            if folder == two:
                store = read(folder, round)[0]
    assert (one / ROWS).read_bytes() == (two / ROWS).read_bytes()
    assert (one / LOG).read_bytes() == (two / LOG).read_bytes()


@pytest.mark.parametrize("name", [ROWS, LOG])
def test_a_damaged_byte_is_found(tmp_path, name):
    store = StateStore(tmp_path, INITIAL)
    checkpoints.save(tmp_path, 1, {"server": {}}, {}, (), (store, [block({1: 0.5, 4: 2.0})]))
    content = bytearray((tmp_path / name).read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        checkpoints.load(tmp_path, 1, INITIAL)
