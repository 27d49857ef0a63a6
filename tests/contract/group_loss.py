"""In what limit PFFL and its baselines equal which other algorithm."""

from __future__ import annotations

from typing import Any

import torch

from isonomy.algorithms.average.fedavg import FedAvg
from isonomy.algorithms.group_fair.group_fedavg import GroupFedAvg
from isonomy.algorithms.group_fair.local_bgl import LocalBGL
from isonomy.algorithms.group_fair.pffl import PFFL
from isonomy.contract.checks import check_same_run
from isonomy.contract.running import Outcome, Transport, field

EQUAL = FedAvg(weight="equal")


def _model(got: Outcome) -> Any:
    return field(got.server, "params")


def pffl(transport: Transport) -> None:
    """Without multipliers PFFL is FedAvg; without anybody else's data it is its local form."""
    check_same_run(PFFL(B=0.0, report="last"), EQUAL, transport, part=lambda got: got.outputs)
    check_same_run(PFFL(B=0.0, constraint="cbgl"), EQUAL, transport, part=_model)
    check_same_run(PFFL(B=0.0, beta=3.0), EQUAL, transport, exactly=False, part=_model)
    alone = [torch.tensor([5])] * 3
    check_same_run(
        PFFL(margin=0.0), LocalBGL(), transport, cohorts=alone, exactly=False, part=_model
    )


def local_bgl(transport: Transport) -> None:
    """Without multipliers it is FedAvg."""
    check_same_run(LocalBGL(B=0.0, report="last"), EQUAL, transport, part=lambda got: got.outputs)
    check_same_run(LocalBGL(B=0.0, constraint="cbgl"), EQUAL, transport, part=_model)


def group_fedavg(transport: Transport) -> None:
    """Power 0 is FedAvg."""
    check_same_run(GroupFedAvg(power=0.0), FedAvg(), transport, part=_model)
    check_same_run(GroupFedAvg(power=0.0, weight="equal"), EQUAL, transport, part=_model)
