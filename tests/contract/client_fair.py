"""In what limit each client-fair algorithm equals which other one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from isonomy.algorithms.average.fedavg import FedAvg
from isonomy.algorithms.client_fair.aaggff import AAggFF
from isonomy.algorithms.client_fair.afl import AFL
from isonomy.algorithms.client_fair.fedeba import FedEBA
from isonomy.algorithms.client_fair.fedfv import FedFV
from isonomy.algorithms.client_fair.fedheal import FedHEAL
from isonomy.algorithms.client_fair.fedlf import FedLF
from isonomy.algorithms.client_fair.fedmdfg import FedMDFG
from isonomy.algorithms.client_fair.fedmgda import FedMGDA
from isonomy.algorithms.client_fair.fedpw import FedPW
from isonomy.algorithms.client_fair.prac_fedeba import PracFedEBA
from isonomy.algorithms.client_fair.propfair import PropFair
from isonomy.algorithms.client_fair.q_fedavg import QFedAvg
from isonomy.algorithms.client_fair.q_fedsgd import QFedSGD
from isonomy.algorithms.client_fair.term import TERM
from isonomy.contract.checks import check_same_run
from isonomy.contract.running import Outcome, Transport, check, close, field, run
from isonomy.contract.world import world
from isonomy.core.algorithm import Algorithm

EQUAL = FedAvg(weight="equal")
ALONE = [torch.tensor([5])] * 3


def _model(got: Outcome) -> Any:
    return field(got.server, "params"), got.outputs


@check
def check_one_step(one: Algorithm, other: Algorithm, transport: Transport, **work: Any) -> None:
    """Two algorithms leave the same model, to rounding, where the local work is a single step."""
    where = replace(world(), work=replace(world().work, steps=1, **work))
    got, expected = (_model(run(a, transport, where)) for a in (one, other))
    close(got, expected, f"{one} instead of {other}")


def fedeba(transport: Transport) -> None:
    """tau = inf, alpha = 0 is FedAvg; weights by the losses before training are TERM's."""
    check_same_run(FedEBA(tau=math.inf, alpha=0.0), EQUAL, transport)
    check_same_run(FedEBA(tau=math.inf, alpha=0.0, prior="size"), FedAvg(), transport)
    before = FedEBA(tau=2.0, align="none", weight_loss="global_before")
    check_same_run(before, TERM(t=0.5, weight="equal"), transport)
    check_same_run(FedEBA(alpha=0.0), FedEBA(align="none", theta=90.0), transport)


def prac_fedeba(transport: Transport) -> None:
    """Without alignment the cheap variant is the whole one; theta = 90 never aligns."""
    check_same_run(PracFedEBA(alpha=0.0), FedEBA(alpha=0.0), transport, part=_model)
    check_same_run(PracFedEBA(theta=90.0), FedEBA(align="none"), transport, part=_model)
    check_same_run(PracFedEBA(tau=math.inf, alpha=0.0), EQUAL, transport, part=_model)


def term(transport: Transport) -> None:
    """Without tilt, TERM is FedAvg."""
    check_same_run(TERM(t=0.0), FedAvg(), transport)
    check_same_run(TERM(t=0.0, weight="equal"), EQUAL, transport)


def q_fedavg(transport: Transport) -> None:
    """q = 0 is the mean of the clients' models."""
    check_same_run(QFedAvg(q=0.0), EQUAL, transport)
    check_same_run(QFedAvg(q=0.0, lipschitz=3.0), EQUAL, transport)


def q_fedsgd(transport: Transport) -> None:
    """With one local step, FedAvg for q = 0, and q-FedAvg for any q."""
    check_one_step(QFedSGD(q=0.0), EQUAL, transport)
    check_one_step(QFedSGD(q=0.0, step="static"), EQUAL, transport)
    check_one_step(QFedSGD(q=2.0), QFedAvg(q=2.0), transport)
    full = QFedSGD(q=2.0, gradient="full")
    check_one_step(full, QFedAvg(q=2.0), transport, batch=0)


def afl(transport: Transport) -> None:
    """Without steps of lambda, AFL is FedAvg; by gradients, of one step on all examples."""
    check_same_run(AFL(gamma=0.0, update="model", report="last"), EQUAL, transport, part=_model)
    still = AFL(gamma=0.0, report="last")
    check_one_step(still, EQUAL, transport, batch=0)


def fedmgda(transport: Transport) -> None:
    """With fixed weights and updates as they are, FedMGDA+ is FedAvg."""
    plain = FedMGDA(epsilon=0.0, normalise=False)
    check_same_run(plain, EQUAL, transport, exactly=False)
    sized = FedMGDA(epsilon=0.0, normalise=False, weight="size")
    check_same_run(sized, FedAvg(), transport, exactly=False)


def propfair(transport: Transport) -> None:
    """M = epsilon = 1: every loss is on the tangent, whose slope is 1."""
    check_same_run(PropFair(M=1.0, epsilon=1.0), FedAvg(), transport)
    check_same_run(PropFair(M=1.0, epsilon=1.0, weight="equal"), EQUAL, transport)


def fedfv(transport: Transport) -> None:
    """Where everybody keeps its update and nobody is remembered, FedFV is FedAvg."""
    check_same_run(FedFV(alpha=1.0, tau=0), EQUAL, transport, exactly=False)


def aaggff(transport: Transport) -> None:
    """One client: its response is the mean, so all weights stay equal, and it trains as FedAvg."""
    for setting in ("silo", "device"):
        one = AAggFF(setting=setting)  # type: ignore[arg-type]
        check_same_run(one, FedAvg(), transport, cohorts=ALONE, exactly=False, part=_model)


def fedmdfg(transport: Transport) -> None:
    """One client and one step size: gradient descent on all its examples."""
    where = replace(world(), work=replace(world().work, steps=1, batch=0))
    one, other = FedMDFG(s=0, history=False), FedAvg()
    got, expected = (_model(run(a, transport, where, cohorts=ALONE)) for a in (one, other))
    close(got, expected, "FedMDFG with one client")


def fedlf(transport: Transport) -> None:
    """One client, without memory of others: FedAvg, also layer by layer."""
    for layers in (True, False):
        one = FedLF(layers=layers)
        check_same_run(one, FedAvg(), transport, cohorts=ALONE, exactly=False, part=_model)


def fedheal(transport: Transport) -> None:
    """Neither a mask nor weights: FedAvg."""
    check_same_run(FedHEAL(tau=-1.0, beta=0.0), EQUAL, transport, exactly=False, part=_model)


def fedpw(transport: Transport) -> None:
    """Weights that do not move, and no change dropped: FedAvg."""
    check_same_run(FedPW(beta=0.0, r=0.0), EQUAL, transport, exactly=False, part=_model)
