"""A worker: a process that rank 0 started for its run (`isonomy.runs.processes`)."""

from __future__ import annotations

import os
import signal
import sys
import threading
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from isonomy.config.schema import parse
from isonomy.engines.distributed import ranks
from isonomy.engines.distributed.ranks import RankLost
from isonomy.errors import IsonomyError
from isonomy.runs import training
from isonomy.runs.build import build
from isonomy.runs.processes import HOST, by_loopback


def work(told: dict[str, Any]) -> None:
    """What a worker does: its part of the run."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # rank 0 receives them too, and decides
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    rank, size = int(told["rank"]), int(told["size"])
    code, connected = 0, False
    try:
        config = parse(told["config"])
        seconds = config.engine.timeout
        store = TCPStore(HOST, int(told["port"]), timeout=timedelta(seconds=seconds))
        setting = build(config)
        store.set(f"ready/{rank}", "")
        with by_loopback(), ranks.joined(rank, size, seconds=seconds, store=store):
            connected = True
            training.train(setting, None)
    except RankLost:  # rank 0 has ended, or reports it
        code = 1
    except IsonomyError as error:
        code = 2
        if not connected:  # otherwise rank 0 raises it too
            print(f"worker {rank}: {error}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(code)


def _end_with_stdin() -> None:
    """End this process when rank 0 is gone, also if that was killed."""
    sys.stdin.buffer.read()
    os._exit(1)
