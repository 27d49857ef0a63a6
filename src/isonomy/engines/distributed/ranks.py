"""The processes of one run (ranks), and how they exchange values, by `torch.distributed`.

Every rank calls the same methods in the same order. Values are pickled between the ranks of a run,
which trust each other: run them on machines and in a network that you trust, as torch advises for
`torch.distributed` in general.
"""

from __future__ import annotations

import importlib
import itertools
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from isonomy.engines.distributed.memory import SharedMemory, shared_memory
from isonomy.engines.distributed.wire import packed, unpacked
from isonomy.errors import ConfigError, IsonomyError, RunError

T = TypeVar("T")

FIRST = 4096  # bytes of a message that are sent together with its length, in the beginning
MOST = 1 << 17  # at most, if messages are larger
_LENGTHS = 32  # bytes with the lengths of the description and of the tensors, and where they are


class RankLost(RunError):
    """Another rank of the run ended, or did not answer in time."""


class Elsewhere(IsonomyError):
    """An error that another rank raised."""


class Ranks:
    """The ranks of a run, seen from one of them. Rank 0 leads: it writes the run's folder."""

    def __init__(
        self,
        rank: int,
        size: int,
        *,
        seconds: float,
        group: distributed.ProcessGroup | None = None,
    ) -> None:
        self.group = group  # of the first `size` processes; None: all processes
        self.rank = rank
        self.size = size
        self.seconds = seconds
        self.device = torch.device("cpu")  # where large messages are sent from
        self._first = FIRST
        self._memory: SharedMemory | None = None  # from the first long message on
        self._tried_memory = False

    def use(self, device: torch.device) -> None:
        """Send large messages by nccl if this is a GPU of CUDA, otherwise by gloo.

        It must be of the same kind in all ranks.
        """
        if device.type == "cuda":
            torch.cuda.set_device(device)
            self.device = device

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def everyone(self, own: Callable[[], T]) -> list[T]:
        """What `own` returns in each rank, by rank; if one raises an error, all of them do."""
        value: Any = None
        error: Exception | None = None
        try:
            value = own()
        except (Elsewhere, RankLost):  # the other ranks know it
            raise
        except Exception as raised:
            error = raised
        told = None if error is None else _told(error)
        parts = self.gathered((value, told))
        if error is not None:
            raise error
        for rank, (_, text) in enumerate(parts):
            if text is not None:
                raise Elsewhere(f"rank {rank} of {self.size}: {text}")
        return [part for part, _ in parts]

    def gathered(self, value: T) -> list[T]:
        """The values of all ranks, by rank.

        A message that is as long as an earlier one is sent together with its length. Long messages
        between ranks of one machine are written to memory that they share.
        """
        description, tensors = packed(value)
        described = torch.frombuffer(bytearray(description), dtype=torch.uint8)
        parts = [*tensors, described]
        size = sum(map(len, parts))
        area = None
        if self._memory is not None and _LENGTHS + size > MOST:
            area = self._memory.write(parts)
        where = -1 if area is None else area
        lengths = torch.tensor([len(description), size - len(description), where, 0])
        first = self._first
        short = [t.cpu() for t in parts] if _LENGTHS + size <= first else []
        head = torch.zeros(first, dtype=torch.uint8)
        torch.cat([lengths.view(torch.uint8), *short], out=head[: _LENGTHS + sum(map(len, short))])
        heads = self._all(head)
        told = [h[:_LENGTHS].view(torch.int64).tolist() for h in heads]
        longest = max(one[0] + one[1] for one in told)
        if all(_LENGTHS + one[0] + one[1] <= first or one[2] >= 0 for one in told):
            bodies = [self._body(rank, h, told[rank]) for rank, h in enumerate(heads)]
        else:
            body = torch.zeros(longest + 16, dtype=torch.uint8, device=self.device)
            torch.cat([t.to(self.device) for t in parts], out=body[:size])
            bodies = self._all(body)
            if _LENGTHS + longest <= MOST:  # known to all ranks, so that the next heads fit
                self._first = 1 << (_LENGTHS + longest - 1).bit_length()
            elif not self._tried_memory and self.device.type == "cpu":
                self._tried_memory = True
                self._memory = shared_memory(self.rank, self.gathered)
        return [
            value if rank == self.rank else _of_body(b, *told[rank][:2])
            for rank, b in enumerate(bodies)
        ]

    def _body(self, rank: int, head: Tensor, told: list[int]) -> Tensor:
        """The bytes of a rank's message, from its head or from the memory that ranks share."""
        description, content, area, _ = told
        if area < 0 or rank == self.rank or self._memory is None:
            return head[_LENGTHS:]
        return self._memory.read(rank, area, description + content)

    def _all(self, own: Tensor) -> list[Tensor]:
        """A tensor of each rank, of the same shape."""
        found = [torch.empty_like(own) for _ in range(self.size)]
        with self._reaching():
            distributed.all_gather(found, own, self.group)
        return found

    def moved(self, value: Any, source: int, target: int) -> Any:
        """A value of rank `source`, in rank `target`; None in the other ranks."""
        if source == target:
            return value if self.rank == source else None
        if self.rank == source:
            description, tensors = packed(value)
            content = _joined(tensors)
            described = torch.frombuffer(bytearray(description), dtype=torch.uint8)
            whole = torch.cat([content.cpu(), described])
            with self._reaching():
                distributed.send(torch.tensor([len(description), len(content)]), target)
                distributed.send(whole, target)
        if self.rank == target:
            lengths = torch.zeros(2, dtype=torch.int64)
            with self._reaching():
                distributed.recv(lengths, source)
                whole = torch.empty(int(lengths.sum()), dtype=torch.uint8)
                distributed.recv(whole, source)
            return _of_body(whole, *lengths.tolist())
        return None

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, distributed.DistError) as error:
            raise RankLost(
                f"rank {self.rank} of {self.size} cannot reach the others: one of them ended, or "
                f"did not answer within {self.seconds:g} s (engine.timeout)"
            ) from error


def _joined(tensors: list[Tensor]) -> Tensor:
    if not tensors:
        return torch.zeros(0, dtype=torch.uint8)
    kinds = {t.device for t in tensors}
    return torch.cat(tensors if len(kinds) == 1 else [t.cpu() for t in tensors])


def _of_body(body: Tensor, description: int, content: int) -> Any:
    return unpacked(bytes(body[content : content + description].cpu().numpy()), body[:content])


def _told(error: Exception) -> str:
    """What the other ranks say about an error of this one."""
    if isinstance(error, IsonomyError):
        return str(error)
    traceback.print_exception(error, file=sys.stderr)  # an error of the program, not of the user
    return f"{type(error).__name__}: {error}"


# --- the ranks that this process is one of --------------------------------------------------------

_current: Ranks | None = None


def current() -> Ranks | None:
    """The ranks of the run that this process is computing; None outside of such a run."""
    return _current


def on_this_machine() -> int:
    """How many ranks of the run are on this machine, which share its cores."""
    if _current is None:
        return 1
    return int(os.environ.get("LOCAL_WORLD_SIZE", _current.size))


def started_by_torchrun() -> bool:
    """Whether this process was started by torchrun, or by another launcher in the same way."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


@contextmanager
def joined_by_torchrun(*, seconds: float) -> Iterator[Ranks]:
    """Join the ranks that torchrun started with this one."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    with joined(rank, size, seconds=seconds, store=_store) as ranks:
        yield ranks


_joins = itertools.count()  # of this process


def _store(rank: int, size: int, wait: timedelta) -> Any:
    """The store of torchrun, without what ranks left there before a restart or for another run."""
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]
    from torch.distributed.rendezvous import rendezvous

    found, _, _ = next(iter(rendezvous("env://", rank, size, timeout=wait)))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"isonomy/{attempt}/{next(_joins)}", found)


@contextmanager
def joined(
    rank: int,
    size: int,
    *,
    seconds: float,
    store: Any = None,
) -> Iterator[Ranks]:
    """Join the ranks of a run by a store, or what makes one, and leave them at the end."""
    global _current
    if not distributed.is_available():
        raise ConfigError(
            "engine: this build of torch has no torch.distributed; install another build, or use "
            "engine.name = 'batched' with engine.workers = 1."
        )
    if distributed.is_initialized():
        raise ConfigError(
            "engine: torch.distributed is already in use in this process; start the run in a "
            "process of its own."
        )
    # Tracing imports this module. If a group exists by then, the default arguments of its functions
    # keep the group and its threads until the interpreter ends, which may abort the process.
    importlib.import_module("torch.distributed.nn.functional")
    try:
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
            rank=rank,
            world_size=size,
            store=store(rank, size, timedelta(seconds=seconds)) if callable(store) else store,
            timeout=timedelta(seconds=seconds),
        )
    except (RuntimeError, ValueError, distributed.DistError) as error:
        first = (str(error).strip().splitlines() or [""])[0]
        raise RankLost(
            f"rank {rank} of {size} cannot join the others ({first}); check MASTER_ADDR, "
            "MASTER_PORT and the network (GLOO_SOCKET_IFNAME chooses its interface)."
        ) from error
    _current = Ranks(rank, size, seconds=seconds)
    try:
        yield _current
    finally:
        _current = None
        distributed.destroy_process_group()
