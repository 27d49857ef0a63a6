"""States on disk hold what states in memory hold, of the clients that have changed."""

import torch

from isonomy.core import tree
from isonomy.engines.devices import Place
from isonomy.engines.states import SMALL, SparseStates, States, make_states

INITIAL = {"w": torch.arange(6.0).reshape(2, 3), "n": (torch.tensor(3), torch.zeros(0))}


def equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True))


def test_states_on_disk_are_those_in_memory():
    draw = torch.Generator().manual_seed(1)
    held = torch.tensor([1, 4, 5, 7, 20, 21, 22])
    memory, disk = States(INITIAL, 30, held), SparseStates(INITIAL, 30, held)
    for _ in range(40):
        ids = held[torch.randperm(len(held), generator=draw)[:3]]
        new = memory.take(ids)
        if torch.rand((), generator=draw) < 0.7:
            new = {"w": torch.randn(3, 2, 3, generator=draw), "n": (new["n"][0] + 1, new["n"][1])}
        memory.put(ids, new)
        disk.put(ids, new)
        assert equal(memory.take(held), disk.take(held))
        assert equal(memory.stacked, disk.stacked)


def test_only_changed_states_take_space():
    disk = SparseStates(INITIAL, 10**6)
    some = torch.tensor([3, 999_999])
    disk.put(torch.arange(1000), disk.take(torch.arange(1000)))  # as an evaluation does
    assert len(disk.known()) == 0
    disk.put(some, {"w": torch.ones(2, 2, 3), "n": (torch.tensor([1, 2]), torch.zeros(2, 0))})
    assert disk.known().tolist() == [3, 999_999] == disk.changed().tolist()
    disk.settle()
    disk.put(some[:1], disk.take(some[:1]))
    assert disk.changed().tolist() == []
    disk.put(some[:1], tree.take(disk.take(some[1:]), slice(None)))
    assert disk.changed().tolist() == [3]
    assert disk.take(some)["n"][0].tolist() == [2, 2]


def test_where_states_are_kept():
    enough = SMALL // tree.nbytes(INITIAL)
    place = Place()
    assert not make_states(INITIAL, enough, None, place, "auto", None).sparse
    assert make_states(INITIAL, enough + 1, None, place, "auto", None).sparse
    assert make_states(INITIAL, 2, None, place, "disk", None).sparse
    assert not make_states((), 10**6, None, place, "disk", None).sparse  # there are none


def test_the_states_of_no_clients():
    initial = {"a": torch.zeros(2, 3), "b": torch.zeros((), dtype=torch.int64)}
    none = torch.arange(0)
    for held in (None, torch.tensor([1, 4])):
        states = SparseStates(initial, 5, held)
        states.put(torch.tensor([4]), tree.tmap(lambda t: t.unsqueeze(0) + 1, initial))
        found = states.take(none)
        assert found["a"].shape == (0, 2, 3)
        assert found["b"].shape == (0,)
        assert found["b"].dtype == torch.int64
        states.put(none, found)
        assert states.known().tolist() == [4]
