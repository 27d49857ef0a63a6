"""A GPU that is not there: it finds phases that would fail on a real one, or make it wait.

torch's fake tensors know their shape, type and device, but have no numbers. A phase that runs with
fake tensors of a fake GPU fails if it mixes in a tensor of the CPU, or if it reads a number from a
tensor, for which a real GPU would have to finish all of its work first.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from isonomy.core import tree
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Ask, Replies
from isonomy.core.phase import Phase
from isonomy.core.task import Task
from isonomy.core.tree import Tree
from isonomy.data.federation import Federation
from isonomy.engines.base import Engine
from isonomy.engines.batched.engine import Batched
from isonomy.engines.batched.program import Programs
from isonomy.engines.batched.runner import Untraced
from isonomy.engines.devices import Place
from isonomy.errors import IsonomyError


class NotOnDevice(IsonomyError):
    """A phase that does not run on a device alone."""


NAME = "fakegpu"


# A build of torch for the CPU cannot even index a fake tensor of the device "cuda". So this process
# gets a device of another name. It must be known before the first gradient is computed: import this
# module first, in a process of its own.
_setup_privateuseone_for_python_backend(NAME)


class _Constants(TorchFunctionMode):
    """Makes fake tensors of numbers, which torch would copy to the device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call `func`, on the CPU if it makes a constant."""
        kwargs = kwargs or {}
        wanted = torch.device(kwargs.get("device", "cpu"))
        if func not in (torch.tensor, torch.as_tensor) or wanted.type != self.device.type:
            return func(*args, **kwargs)
        if isinstance(args[0], Tensor):
            return func(*args, **kwargs)
        made = func(*args, **{**kwargs, "device": "cpu"})
        return torch.empty(made.shape, dtype=made.dtype, device=self.device)


class FakePlace(Place):
    """A fake GPU."""

    def __init__(self) -> None:
        super().__init__(NAME)
        self.mode = FakeTensorMode(allow_non_fake_inputs=False)

    def put(self, value: Tree) -> Tree:
        """A tree of fake tensors."""

        def moved(t: Any) -> Any:
            if not isinstance(t, Tensor) or t.device.type == self.device.type:
                return t
            with self.mode:
                return torch.empty(t.shape, dtype=t.dtype, device=self.device)

        return tree.tmap(moved, value)

    def task(self, task: Task) -> Task:
        """A task whose network has fake tensors."""
        made = copy.copy(task)
        net = copy.deepcopy(task.net)
        for module in net.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    module._parameters[name] = nn.Parameter(self.put(parameter.detach()))
            for name, buffer in module._buffers.items():
                module._buffers[name] = self.put(buffer)
        object.__setattr__(made, "net", net)
        return made

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make fake tensors of the fake GPU inside the `with` block."""
        with self.mode, _Constants(self.device), self.device:
            yield

    def wait(self) -> None:
        """There is nothing to wait for."""


class Shadowed(Engine):
    """Runs every phase twice: with numbers on the CPU, and without any on a fake GPU.

    The algorithm gets the replies of the first. NotOnDevice says what fails in the second, in which
    local loops are traced as on a real GPU.
    """

    name = "shadowed"

    def __init__(self, task: Task, federation: Federation, **options: Any) -> None:
        super().__init__(task, federation, seed=options.get("seed", 0))
        self.real = Batched(task, federation, **options)
        self.fake = Batched(task, federation, place=FakePlace(), **options)
        self.real.programs = Untraced()
        self.fake.programs = Programs(blind=True)

    def reset(self, initial: State) -> None:
        """Give every client its initial state, on both."""
        self.real.reset(initial)
        self.fake.reset(initial)
        self.states = self.real.states

    def exchange(self, ask: Ask) -> Iterator[Replies]:
        """The replies from the CPU."""
        both = zip(
            self.real.exchange(ask),
            self._faked(replace(ask, phase=on_device(ask.phase))),
            strict=True,
        )
        for real, fake in both:
            for a, b in zip(tree.leaves(real.value), tree.leaves(fake.value), strict=True):
                if (a.shape, a.dtype) != (b.shape, b.dtype):
                    raise NotOnDevice(
                        f"phase '{ask.declared.name}' replies {b.dtype} {list(b.shape)} on a "
                        f"device, but {a.dtype} {list(a.shape)} on the CPU; make them equal."
                    )
            yield real

    def _faked(self, ask: Ask) -> Iterator[Replies]:
        try:
            yield from self.fake.exchange(ask)
        except NotOnDevice:
            raise
        except Exception as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise NotOnDevice(
                f"phase '{ask.declared.name}' does not run on a device ({lines[0]}); make its "
                "tensors from those it is given, and read no number from a tensor."
            ) from error


def on_device(phase: Phase) -> Phase:
    """A phase that raises an error if what it returns is not on the fake GPU."""

    @functools.wraps(phase)
    def checked(task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        reply, state = phase(task, message, client)
        for what, value in (("reply", reply), ("state", state)):
            for leaf in tree.leaves(value):
                if isinstance(leaf, Tensor) and leaf.device.type != NAME:
                    raise NotOnDevice(f"a part of the {what} is a tensor of the CPU")
        return reply, state

    return checked
