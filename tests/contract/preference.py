"""In what limit each algorithm that learns a front equals which other one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from algorithms.fronts import PAPER, paper_praffl
from isonomy.algorithms.average.fedavg import FedAvg
from isonomy.algorithms.preference.hetpfl import HetPFL
from isonomy.algorithms.preference.praffl import PraFFL
from isonomy.contract.checks import check_same_run
from isonomy.contract.running import Outcome, Transport, check, close, field, run, same_bits
from isonomy.contract.world import FEATURES, world
from isonomy.core.task import Task
from isonomy.models import hypernet as nets


class FixedHead(nn.Module):
    """The contract's network with a last layer that does not learn."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.linear1 = nn.Linear(FEATURES, weight.shape[1])
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)

    def forward(self, x: Tensor) -> Tensor:
        return linear(torch.relu(self.linear1(x)), self.weight, self.bias)


@check
def praffl(transport: Transport) -> None:
    """If only the body learns, it is FedAvg of a network whose head is the middle preference's.

    To rounding: the head lies elsewhere in memory, and bits of MKL's products depend on where.
    """
    for weight in ("equal", "size"):
        where = world()
        alone = paper_praffl(share=1.0, select=0, weight=weight)
        got = run(alone, transport, where)
        start = nets.initial(where.task, where.params, 2)
        head = nets.make_head(start, torch.tensor([0.5, 0.5]), nets.head_of(where.task))
        fixed = Task(lambda head=head: FixedHead(*head), classes=3, levels=(2,))
        body = nets.split(where.task, where.params)[1]
        other = replace(where, task=fixed, params=body)
        expected = run(FedAvg(weight=weight), transport, other)  # type: ignore[arg-type]
        close(
            field(got.server, "psi"),
            field(expected.server, "params"),
            f"PraFFL's body, weight {weight}",
        )


def _common(got: Outcome) -> Any:
    server = {k: field(got.server, k) for k in ("psi", "kept", "score")}
    return server, field(got.states, "hypernet"), field(got.states, "kept"), got.outputs


@check
def hetpfl(transport: Transport) -> None:
    """Without learning where to sample and without fusion, HetPFL is PraFFL.

    And the model of the preference (0, 1) is FedAvg's.
    """
    for options in ({}, PAPER, {**PAPER, "select": 0, "scalar": "max", "fairness": "covariance"}):
        still: Any = HetPFL(kappa=0.0, alpha=1.0, fusion="none", **options)
        check_same_run(still, PraFFL(**options), transport, part=_common)
    got = run(HetPFL(select=0), transport, world())
    expected = run(FedAvg(), transport, world())
    same_bits(field(got.server, "psi"), field(expected.server, "params"), "HetPFL's shared model")
