"""Several processes give the result of one, for every algorithm (`contract.ranks`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from contract.ranks import PLANTED
from contract.table import algorithms

TESTS = Path(__file__).parent.parent
SIZE = 3


def reported(*more: str) -> dict[str, list[str]]:
    """What rank 0 prints."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    env |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "contract.ranks", str(rank), str(SIZE), str(store.port), *more],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(SIZE)
    ]
    ended = [process.communicate() for process in started]
    assert [process.returncode for process in started] == [0] * SIZE, [text for _, text in ended]
    return dict(json.loads(ended[0][0]))


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_several_ranks_give_the_result_of_one_process(every: bool) -> None:
    """The same bytes for the same shares, and equal to rounding with one share per rank."""
    found = reported(*(["all"] if every else []))
    assert set(found) == set(algorithms(main=not every)) | set(PLANTED)
    for name in PLANTED:
        assert found.pop(name), f"{name} was not found"
    assert {name: what for name, what in found.items() if what} == {}
