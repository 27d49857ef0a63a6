"""The processes that compute a run: this one alone, those of torchrun, or workers of this machine.

With `engine.workers = N` this process is rank 0 and starts N - 1 others. They read the config from
their standard input, and end when it closes, so that none outlives this process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

from isonomy.config.schema import Config
from isonomy.engines.devices import place_of
from isonomy.engines.distributed import ranks
from isonomy.engines.distributed.ranks import RankLost, Ranks
from isonomy.errors import ConfigError, RunError

T = TypeVar("T")

_POLL = 0.02  # seconds between looks at processes that start
_LEAVE = 10.0  # seconds that workers have to end
HOST = "127.0.0.1"
_INTERFACE = "GLOO_SOCKET_IFNAME"  # by which network interface gloo's processes reach each other

_BOOT = """
import json, sys
told = json.loads(sys.stdin.buffer.readline())
sys.path[:] = told["path"]
from isonomy.runs.worker import work
work(told)
"""


class Processes:
    """The processes of a run, before and while it is computed."""

    def __init__(self, connect: Callable[[], Any] | None = None, found: Ranks | None = None):
        self._connect = connect
        self._found = found

    @property
    def leads(self) -> bool:
        """Whether this process writes the run's folder."""
        return self._found is None or self._found.leads

    def same(self, value: T) -> T:
        """Rank 0's value, in every process that is connected."""
        return value if self._found is None else self._found.everyone(lambda: value)[0]

    @contextmanager
    def connected(self, to_continue: str | None) -> Iterator[None]:
        """Connect to workers, if there are any; `to_continue` is the command for an error."""
        with ExitStack() as stack:
            if self._connect is not None:
                try:
                    stack.enter_context(self._connect())
                except RankLost as error:
                    raise explained(error, to_continue) from error
            yield


def several_by_torchrun() -> bool:
    """Whether torchrun started this process and others."""
    return ranks.started_by_torchrun() and int(os.environ["WORLD_SIZE"]) > 1


def leads() -> bool:
    """Whether this process is the only one, or rank 0 of those that torchrun started."""
    return not several_by_torchrun() or os.environ["RANK"] == "0"


def restarted() -> bool:
    """Whether torchrun started this process again, after one of its processes had ended."""
    return several_by_torchrun() and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


def refuse_under_torchrun(command: str) -> None:
    """Raise ConfigError if several processes of torchrun execute a command that is for one."""
    if several_by_torchrun():
        raise ConfigError(
            f"{command} makes several runs, and torchrun starts the processes of one run; start it "
            "without torchrun, with engine.workers to use several processes for each run."
        )


@contextmanager
def of_run(config: Config | None) -> Iterator[Processes]:
    """The processes that compute a run with this config, which only rank 0 needs to know."""
    if ranks.current() is not None:  # inside of a worker
        yield Processes()
        return
    engine = None if config is None else config.engine
    if several_by_torchrun():
        if engine is not None and (engine.name != "distributed" or engine.workers > 1):
            several = engine.workers > 1
            wrong = f"workers = {engine.workers}" if several else f"name = '{engine.name}'"
            raise ConfigError(
                f"engine.{wrong}, but torchrun started "
                f"{os.environ['WORLD_SIZE']} processes, which would all make the same run; set "
                "engine.name = 'distributed' and no engine.workers, or start it without torchrun."
            )
        seconds = 1800.0 if engine is None else engine.timeout
        with ranks.joined_by_torchrun(seconds=seconds) as found:
            wanted = found.gathered("cpu" if engine is None else engine.device)[0]
            found.use(place_of(wanted).device)
            yield Processes(found=found)
        return
    if engine is None or config is None or engine.workers == 1:
        yield Processes()
        return
    with _workers(config) as connect:
        yield Processes(connect)


# --- workers of this machine ----------------------------------------------------------------------


@contextmanager
def _workers(config: Config) -> Iterator[Callable[[], Any]]:
    """Start workers; yields what connects this process to them."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    _refuse_main(config)
    size, seconds = config.engine.workers, config.engine.timeout
    store = TCPStore(
        HOST, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=seconds)
    )
    told = {
        "path": sys.path,
        "size": size,
        "port": store.port,
        "config": config.plain(),
    }
    started = [_start({**told, "rank": rank}) for rank in range(1, size)]

    @contextmanager
    def connect() -> Iterator[None]:
        while not store.check([f"ready/{rank}" for rank in range(1, size)]):
            _check_alive(started)
            time.sleep(_POLL)
        with by_loopback(), ranks.joined(0, size, seconds=seconds, store=store):
            yield

    _started.extend(started)
    try:
        yield connect
    finally:
        _started.clear()
        for process in started:
            _end(process)


_started: list[subprocess.Popen[bytes]] = []  # the workers of this process's run


def _refuse_main(config: Config) -> None:
    """Refuse classes that are defined in the program itself, which workers cannot import."""
    for name in (config.algorithm.name, config.model.name):
        if name.startswith("__main__:"):
            raise ConfigError(
                f"engine.workers = {config.engine.workers}: '{name}' is defined in the program "
                "that you started, where other processes do not find it; move it to a module."
            )


def _start(told: dict[str, Any]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", _BOOT], stdin=subprocess.PIPE)
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # `_check_alive` reports it
        process.stdin.write(json.dumps(told).encode() + b"\n")
        process.stdin.flush()  # it stays open: a worker ends when it is closed
    return process


def _check_alive(started: list[subprocess.Popen[bytes]], wait: float = 0.0) -> None:
    """Raise a RunError if a worker has ended."""
    until = time.monotonic() + wait
    while True:
        for rank, process in enumerate(started, 1):
            code = process.poll()
            if code:
                how = f"signal {-code}" if code < 0 else f"exit code {code}"
                why = ", perhaps because memory ran out" if code == -9 else ""
                raise RankLost(f"worker {rank} of the run ended with {how}{why}")
        if time.monotonic() >= until:
            return
        time.sleep(_POLL)


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
    try:
        process.wait(_LEAVE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def by_loopback() -> Iterator[None]:
    """Let processes of one machine reach each other without a network or a known host name."""
    if _INTERFACE in os.environ:
        yield
        return
    os.environ[_INTERFACE] = "lo0" if sys.platform == "darwin" else "lo"
    try:
        yield
    finally:
        del os.environ[_INTERFACE]


def explained(error: RankLost, to_continue: str | None) -> RunError:
    """The error with which worker ended, if that is known, and with what to do about it."""
    try:
        _check_alive(_started, wait=1.0 if _started else 0.0)
    except RankLost as found:
        error = found
    what = f"; continue from the last checkpoint with {to_continue}" if to_continue else ""
    return RunError(f"{str(error).rstrip('.')}{what}.")
