"""The comparison with other frameworks: its arithmetic, and that it compares the same rounds."""

import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
_path = list(sys.path)
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS / "peer_rounds")]
peers, rounding, shared = map(importlib.import_module, ("peers", "rounding", "shared"))
sys.path[:] = _path  # benchmarks/privacy.py would hide the folder tests/privacy


def test_q_fedavg_by_hand():
    # two clients, one parameter, q = 1, L = 2: D = 2 (1 - 0.5) = 1 and 2 (1 - 2) = -2;
    # Delta = F D = 3 and -2; h = |D|^2 + L F = 1 + 6 and 4 + 2; w = 1 - 1 / 13
    w, trained = [np.array([1.0])], [[np.array([0.5])], [np.array([2.0])]]
    made = shared.q_fedavg(w, trained, [3.0, 1.0], 1.0, 2.0)
    assert made[0] == pytest.approx(1 - 1 / 13, abs=1e-9)


def test_q_fedavg_without_q_is_the_mean():
    generator = np.random.default_rng(0)
    w = [generator.normal(size=(3, 2)), generator.normal(size=4)]
    trained = [[p + generator.normal(size=p.shape) for p in w] for _ in range(5)]
    made = shared.q_fedavg(w, trained, generator.uniform(1, 2, size=5), 0.0, 10.0)
    for i, p in enumerate(made):
        np.testing.assert_allclose(p, np.mean([one[i] for one in trained], axis=0))


def test_steady_rounds_leave_out_the_first_ones():
    few = np.cumsum([5.0, 4.0, 3.0, 2.0, 1.0, 1.0, 1.0, 1.0])  # rounds of 4, 3, 2 and then 1 s
    assert peers.steady(few.tolist()) == pytest.approx([1.0] * 4)
    many = np.cumsum([1.0] * 51 + [0.5] * 49)  # 99 rounds after the first: the last 50 count
    assert peers.steady(many.tolist()) == pytest.approx([1.0] + [0.5] * 49)


def test_time_of_keeping_models_is_not_counted(tmp_path, monkeypatch):
    peers.write_work("W1", 3, tmp_path / "work.npz", kept=(1,))
    record = shared.Record(shared.Work(str(tmp_path / "work.npz")))
    clock = iter([10.0, 17.0, 18.0, 19.0])  # the first round ends at 10, keeping takes 7
    monkeypatch.setattr(shared.time, "time", lambda: next(clock))
    for _ in range(3):
        record.round(lambda: [np.zeros(2)])
    assert record.ends == [10.0, 11.0, 12.0]
    assert list(record.models) == [1]


def test_largest_difference_after_each_round():
    rounds = {n: [np.zeros(3), np.zeros((2, 2))] for n in peers.AGREE}
    other = {n: [a.copy() for a in models] for n, models in rounds.items()}
    other[2][1][0, 1], other[8][0][2] = -0.5, 0.25
    assert peers.apart(other, rounds) == [0.0, 0.5, 0.0, 0.25]


def test_missing_personal_models_are_refused():
    rounds = {n: [np.zeros(3), np.zeros(3)] for n in peers.AGREE}
    with pytest.raises(RuntimeError, match="1 arrays cannot be compared with 2"):
        peers.apart({n: models[:1] for n, models in rounds.items()}, rounds)


def test_units_at_a_kink_are_counted():
    net = torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.ReLU(), torch.nn.Linear(2, 2))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[1.0], [1.0]]))
        net[0].bias.copy_(torch.tensor([0.0, 1.0]))
    work = shared.Work.__new__(shared.Work)
    work.lr, work.lam, work.batch = 0.0, 0.0, 1
    x, y = torch.tensor([[1e-8]]), torch.tensor([0])
    both = [net, rounding.copy.deepcopy(net).double()]
    assert rounding.trained(both, x, y, work, [[], []]) == (0, 2)
    with torch.no_grad():
        both[1][0].bias[0] = -2e-8  # closer to 0 than float32 can tell
    assert rounding.trained(both, x, y, work, [[], []]) == (1, 2)


@pytest.mark.parametrize("name", ["W1", "Ditto", "qFFL"])
def test_the_plain_loop_and_isonomy_run_the_same_rounds(name, tmp_path, monkeypatch):
    small = peers.WORKLOADS[name]._replace(clients=4)
    monkeypatch.setitem(peers.WORKLOADS, name, small)
    work = tmp_path / "work.npz"
    peers.write_work(name, 8, work, kept=peers.AGREE)
    found = {}
    for peer in ("plain", "isonomy"):
        record, found[peer] = peers.run(peer, sys.executable, work, tmp_path / f"{peer}.npz", 1)
        assert record["first"] > 0
        assert len(record["each"]) == 4
    initial = shared.Work(str(work)).initial
    moved = max(np.abs(a - b).max() for a, b in zip(found["plain"][8], initial, strict=False))
    assert moved > 0.01
    assert len(found["plain"][8]) == 4 * (5 if name == "Ditto" else 1)
    assert max(peers.apart(found["isonomy"], found["plain"])) < 1e-5


def test_a_peer_that_fails_is_reported(tmp_path):
    work = tmp_path / "work.npz"
    peers.write_work("W1", 1, work)
    broken = dict(np.load(work))
    del broken["order"]
    np.savez(work, **broken)
    with pytest.raises(RuntimeError, match="plain failed"):
        peers.run("plain", sys.executable, work, tmp_path / "out.npz", 1)


def test_unknown_peers_are_refused():
    command = [sys.executable, BENCHMARKS / "peers.py", "--cache", "nowhere", "--peers", "plain,x"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "unknown peers: x" in done.stderr
