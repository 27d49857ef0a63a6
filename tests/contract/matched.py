"""In what limit each matched algorithm equals which other one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from isonomy.algorithms.average.fedavg import FedAvg
from isonomy.algorithms.matched.fedma import FedMA
from isonomy.algorithms.matched.pfnm import PFNM
from isonomy.algorithms.personal.local import Local
from isonomy.blocks.descent import descend
from isonomy.contract.checks import check_same_run
from isonomy.contract.running import Outcome, Transport, field, run
from isonomy.contract.world import world
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message
from isonomy.core.cohort import Cohort
from isonomy.core.phase import Part, phase
from isonomy.core.task import Task

ALONE = [torch.tensor([5])] * 3


def _model(got: Outcome) -> Any:
    return field(got.server, "params"), got.outputs


@dataclass(frozen=True)
class LayerByLayer(Algorithm[Global]):
    """FedMA with nothing to match: each layer of the network is averaged as it stands, those
    below it frozen. For networks in which every layer is a weight and a bias.
    """

    name: ClassVar[str] = "layer_by_layer"
    paper: ClassVar[str] = "a reference for tests"
    family: ClassVar[str] = "matched"
    reveals: ClassVar[str] = "means of the clients' layers"

    def init_client(self, task: Task, params: Any) -> Any:
        return dict(params)

    def init_server(self, task: Task, params: Any, clients: int) -> Global:
        return Global(params)

    def round(self, server: Global, cohort: Cohort) -> Global:
        fixed: dict[str, Tensor] = {}
        cohort.sum(self.take, {"params": server.params})
        for _ in range(len(server.params) // 2):
            got = cohort.mean(self.layer, {"fixed": fixed}, weight="equal")
            fixed = {**fixed, **got["layer"]}
        return Global(fixed)

    @phase("sum")
    def take(self, task: Task, message: Message, client: Client) -> Any:
        return {}, dict(message["params"])

    @phase("mean", layer=Part("model"))
    def layer(self, task: Task, message: Message, client: Client) -> Any:
        fixed = message["fixed"]
        free = {k: v for k, v in client.state.items() if k not in fixed}
        free = descend(lambda p, batch: task.loss({**fixed, **p}, batch), free, client)
        sent = list(free)[:2]
        return {"layer": {k: free[k] for k in sent}}, {**client.state, **free}


def pfnm(transport: Transport) -> None:
    """Without prior, growth and weights by class, PFNM is FedAvg where neurons match as they are.

    They do in this world, as the clients start from one model. One client's model is its own.
    """
    plain = PFNM(sigma0=math.inf, grow=1.0, output="equal")
    _nothing_moved(run(plain, transport, world()))
    check_same_run(plain, FedAvg(weight="equal"), transport, exactly=False, part=_model)
    one = PFNM(sigma0=math.inf)
    check_same_run(
        one, Local(), transport, cohorts=ALONE, exactly=False, part=lambda got: got.outputs[5]
    )


def fedma(transport: Transport) -> None:
    """Where neurons match as they are, FedMA averages layer by layer as they stand."""
    plain = FedMA(output="equal")
    _nothing_moved(run(plain, transport, world()))
    check_same_run(plain, LayerByLayer(), transport, exactly=False, part=_model)
    check_same_run(FedMA(), LayerByLayer(), transport, cohorts=ALONE, exactly=False, part=_model)


def _nothing_moved(got: Outcome) -> None:
    for at in field(got.server, "assigned").values():
        order: Tensor = torch.arange(at.shape[1]).expand_as(at)
        assert torch.equal(at, order), "in this world neurons were to stay where they are"
