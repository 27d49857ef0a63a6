"""Values that ranks exchange arrive unchanged, by the network and by the memory that they share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from isonomy.engines.distributed.memory import shared_memory

SCRIPT = Path(__file__).parent / "exchange_ranks.py"


@pytest.mark.parametrize("size", [2, 3])
def test_values_arrive_unchanged(size: int) -> None:
    """Ranks of one machine read long messages from memory, and each receives the right ones."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    env["PYTHONPATH"] = os.pathsep.join(sys.path)
    started = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(rank), str(size), str(store.port)],
            env=env,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    ended = [process.communicate()[0] for process in started]
    assert [process.returncode for process in started] == [0] * size
    for found in map(json.loads, ended):
        assert found["wrong"] == []
        assert found["threads"] == []  # one that is left at the exit may abort the process
        if sys.platform == "linux":
            assert len(found["read"]) >= 7 * (size - 1)
            assert max(found["read"]) < 1 << 22


def test_memory_of_another_machine_is_not_used() -> None:
    """What is found under another process's number has to be its memory."""

    def gathered(value: object) -> list[object]:
        if isinstance(value, tuple):
            process, descriptors, _ = value
            return [value, (process, descriptors, b"another token...")]
        return [value, True]

    assert shared_memory(0, gathered) is None
    assert shared_memory(0, lambda value: [value]) is not None or sys.platform != "linux"
