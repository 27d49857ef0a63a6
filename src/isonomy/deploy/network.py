"""A model as a torch module, and as a graph for other programs (torch.export and ONNX)."""

from __future__ import annotations

import copy
import importlib.util
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from isonomy.core import tree
from isonomy.core.mixture import Mixture, mixed
from isonomy.core.task import Params, Task, probabilities
from isonomy.errors import RunError, missing_extra

EXTRA = "onnx"


class Network(nn.Module):
    """Features in, probabilities out; margins or numbers if the loss defines no probabilities."""

    share: Tensor

    def __init__(self, task: Task, model: Params | Mixture) -> None:
        super().__init__()
        self.task = task
        self.mixed = isinstance(model, Mixture)
        each, share = [model], torch.ones(1)
        if isinstance(model, Mixture):
            each = [tree.take(model.models, m) for m in range(len(model.share))]
            share = model.share
        self.members = nn.ModuleList(_with_parameters(task.net, params) for params in each)
        self.register_buffer("share", share.clone())

    def forward(self, features: Tensor) -> Tensor:
        """The predictions of rows of features [n, ...]."""
        outputs = [member(features) for member in self.members]
        whole = mixed(self.task, torch.stack(outputs), self.share) if self.mixed else outputs[0]
        found = probabilities(self.task.loss_name, whole)
        return whole if found is None else found


def _with_parameters(net: nn.Module, params: Params) -> nn.Module:
    copied = copy.deepcopy(net)
    copied.load_state_dict(params, strict=False)
    return copied.requires_grad_(False).eval()


def save_pt2(network: nn.Module, inputs: tuple[int, ...], path: Path) -> None:
    """Write the network as a `torch.export` program for any number of rows."""
    with _quiet():
        torch.export.save(_program(network, inputs), path)


def save_onnx(network: nn.Module, inputs: tuple[int, ...], path: Path) -> None:
    """Write the network as ONNX for any number of rows."""
    need_onnx()
    with _quiet():
        made = torch.onnx.export(
            _program(network, inputs),
            input_names=["features"],
            output_names=["predictions"],
            dynamo=True,
            verbose=False,
        )
        assert made is not None
        made.save(path, external_data=False)


def need_onnx() -> None:
    """Raise a RunError if the packages that write ONNX are not installed."""
    for name in ("onnx", "onnxscript"):
        if importlib.util.find_spec(name) is None:
            raise RunError(missing_extra("--onnx", name, EXTRA))


def _program(network: nn.Module, inputs: tuple[int, ...]) -> torch.export.ExportedProgram:
    rows = torch.export.Dim("rows", min=1)
    example = torch.zeros(3, *inputs)
    return torch.export.export(network, (example,), dynamic_shapes=({0: rows},), strict=False)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings and logs of torch that are meant for its developers."""
    level = logging.getLogger("torch").level
    logging.getLogger("torch").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.getLogger("torch").setLevel(level)
