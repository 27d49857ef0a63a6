"""The network of a card: as a task, as a module, and as a graph for other programs."""

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
from isonomy.core.task import Params, Task
from isonomy.data.federation import build
from isonomy.deploy.card import Architecture
from isonomy.errors import ConfigError, RunError
from isonomy.models import MODELS, make_task

EXTRA = "onnx"


def task_of(architecture: Architecture, *, trust: bool = False) -> Task:
    """The task of an architecture; no example is needed.

    A class of somebody's own is imported, which runs its code, only if it is trusted.
    """
    name = architecture.name
    if name not in MODELS and not trust:
        raise ConfigError(
            f"the model is of the class '{name}', whose code would be run to load it; if you trust "
            "it, say so with trust=True (--trust)."
        )
    rows, whole = torch.arange(2), torch.zeros(2, *architecture.inputs)
    y = torch.zeros(2, dtype=torch.int64 if architecture.classes else torch.float32)
    like = build(
        whole, y, torch.zeros(2, 0, dtype=torch.int64), {"train": [rows]},
        classes=architecture.classes, source="the card",
    )  # fmt: skip
    convert = architecture.convert
    return make_task(name, like, architecture.options, loss=architecture.loss, convert=convert)


def probabilities(loss: str, outputs: Tensor) -> Tensor | None:
    """The probability of each class [n, classes]; None where the loss knows none."""
    if loss == "cross_entropy":
        return outputs.softmax(-1)
    if loss == "logistic":
        return torch.cat([(-outputs).sigmoid(), outputs.sigmoid()], -1)
    return None


class Network(nn.Module):
    """Features in, probabilities out; margins or numbers where the loss knows no probability."""

    share: Tensor

    def __init__(self, task: Task, model: Params | Mixture) -> None:
        super().__init__()
        self.task = task
        several = isinstance(model, Mixture)
        every = range(len(model.share)) if isinstance(model, Mixture) else range(1)
        each = [tree.take(model.models, m) if isinstance(model, Mixture) else model for m in every]
        self.members = nn.ModuleList(_filled(task.net, params) for params in each)
        self.mixed = several
        share = model.share if isinstance(model, Mixture) else torch.ones(1)
        self.register_buffer("share", share.clone())

    def forward(self, features: Tensor) -> Tensor:
        """Rows of features [n, ...]."""
        outputs = [member(features) for member in self.members]
        whole = mixed(self.task, torch.stack(outputs), self.share) if self.mixed else outputs[0]
        found = probabilities(self.task.loss_name, whole)
        return whole if found is None else found


def _filled(net: nn.Module, params: Params) -> nn.Module:
    made = copy.deepcopy(net)
    made.load_state_dict(params, strict=False)
    return made.requires_grad_(False).eval()


def save_pt2(network: nn.Module, inputs: tuple[int, ...], path: Path) -> None:
    """The network as `torch.export` has it, for any number of rows."""
    with _quiet():
        torch.export.save(_program(network, inputs), path)


def save_onnx(network: nn.Module, inputs: tuple[int, ...], path: Path) -> None:
    """The network as ONNX, for any number of rows."""
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
    """Refuse where the packages that write ONNX are not installed."""
    for name in ("onnx", "onnxscript"):
        if importlib.util.find_spec(name) is None:
            raise RunError(
                f"ONNX needs the package {name}, which is not installed; install it with `pip "
                f"install 'isonomy[{EXTRA}]'`, or leave --onnx out."
            )


def _program(network: nn.Module, inputs: tuple[int, ...]) -> torch.export.ExportedProgram:
    rows = torch.export.Dim("rows", min=1)
    example = torch.zeros(3, *inputs)
    return torch.export.export(network, (example,), dynamic_shapes=({0: rows},), strict=False)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch has to say to its own developers."""
    level = logging.getLogger("torch").level
    logging.getLogger("torch").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.getLogger("torch").setLevel(level)
