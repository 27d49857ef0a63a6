"""Devices: where clients' data and states are, and where their phases run.

The server's side of an algorithm always runs on the CPU. A question is sent to the device once per
exchange; of a mean or a sum, only the sum of each chunk of clients comes back.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from isonomy.core import tree
from isonomy.core.task import Task
from isonomy.core.tree import Tree
from isonomy.errors import ConfigError

Name = Literal["cpu", "cuda", "mps", "auto"]


class Place:
    """A device, with what an engine needs of it."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)

    @property
    def host(self) -> bool:
        """Whether this is the CPU."""
        return self.device.type == "cpu"

    def put(self, value: Tree) -> Tree:
        """A tree of tensors on the device."""
        if self.host:
            return value
        return tree.tmap(lambda t: t.to(self.device) if isinstance(t, Tensor) else t, value)

    def task(self, task: Task) -> Task:
        """A task whose network is on the device."""
        return task.on(self.device)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make new tensors on the device inside the `with` block, unless they name another."""
        if self.host:
            yield
            return
        with self.device:
            yield

    def wait(self) -> None:
        """Wait until the device has done what it was given; for measuring time."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()


def place_of(name: Name) -> Place:
    """The place that a config names; of several GPUs, each rank of a machine takes its own.

    Raises a ConfigError if this machine, or this build of torch, has no such device.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if _has_mps() else "cpu"
    if name == "cuda":
        if not torch.cuda.is_available():
            built = torch.version.cuda is not None or getattr(torch.version, "hip", None)
            why = "torch finds no GPU here" if built else "this build of torch is for the CPU only"
            raise ConfigError(
                f"engine.device = 'cuda', but {why}; install a build of torch for your GPU and its "
                "driver, or choose engine.device = 'cpu'."
            )
        rank = int(os.environ.get("LOCAL_RANK", "0"))
        return Place(torch.device("cuda", rank % torch.cuda.device_count()))
    if name == "mps" and not _has_mps():
        raise ConfigError(
            "engine.device = 'mps', but torch finds no such device here (it is the GPU of a Mac); "
            "choose engine.device = 'cpu'."
        )
    return Place(name)


def _has_mps() -> bool:
    backend: Any = getattr(torch.backends, "mps", None)
    return backend is not None and bool(backend.is_available())


def to_host(value: Tree) -> Tree:
    """A tree of tensors on the CPU."""
    return tree.tmap(lambda t: t.cpu() if isinstance(t, Tensor) else t, value)
