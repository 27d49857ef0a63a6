"""In what limit each group-fair algorithm equals which other one."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from isonomy.algorithms.average.fedavg import FedAvg
from isonomy.algorithms.group_fair.agnosticfair import AgnosticFair
from isonomy.algorithms.group_fair.equifl import EquiFL
from isonomy.algorithms.group_fair.fair_fate import FairFate
from isonomy.algorithms.group_fair.fairfed import FairFed
from isonomy.algorithms.group_fair.fcfl import FCFL
from isonomy.algorithms.group_fair.fedfair import FedFair
from isonomy.algorithms.group_fair.fedfairlab import FedFairLAB
from isonomy.algorithms.group_fair.fedfb import FedFB
from isonomy.algorithms.group_fair.fedpf import FedPF
from isonomy.algorithms.group_fair.gifair import GIFAIR
from isonomy.algorithms.group_fair.guardfed import GuardFed
from isonomy.algorithms.group_fair.lft_ensemble import LFTEnsemble
from isonomy.algorithms.group_fair.lft_fedavg import LFTFedAvg
from isonomy.algorithms.group_fair.pfedfair import PFedFair
from isonomy.algorithms.group_fair.puffle import PUFFLE
from isonomy.algorithms.personal.fmtl import FMTL
from isonomy.algorithms.personal.local import Local
from isonomy.contract.checks import check_same_run
from isonomy.contract.running import Outcome, Transport, close, field, run
from isonomy.contract.world import world

ALONE = [torch.tensor([5])] * 3


def _model(got: Outcome) -> Any:
    return field(got.server, "params"), got.outputs


def fedfb(transport: Transport) -> None:
    """Weights that do not move are FedAvg's."""
    for fairness in ("dp", "eo", "client"):
        still = FedFB(alpha=0.0, fairness=fairness)  # type: ignore[arg-type]
        check_same_run(still, FedAvg(), transport, part=_model)


def fairfed(transport: Transport) -> None:
    """Without regard to distances, FairFed is FedAvg."""
    for update in ("running", "exponential"):
        blind = FairFed(beta=0.0, update=update)  # type: ignore[arg-type]
        check_same_run(blind, FedAvg(), transport, part=_model)


def guardfed(transport: Transport) -> None:
    """Where everyone is trusted: FedAvg with equal weights."""
    for compare in ("updates", "models"):
        blind = GuardFed(gamma=-1.0, local="plain", compare=compare)  # type: ignore[arg-type]
        check_same_run(blind, FedAvg(weight="equal"), transport, part=_model, exactly=False)


def pfedfair(transport: Transport) -> None:
    """Without fairness: FMTL with proximal pulls."""
    for weight in ("equal", "size"):
        plain = PFedFair(lam=0.0, gamma=0.7, weight=weight)  # type: ignore[arg-type]
        other = FMTL(lam=0.7, pull="proximal", weight=weight)  # type: ignore[arg-type]
        check_same_run(plain, other, transport)


def fedfairlab(transport: Transport) -> None:
    """One client, no bound that binds, no distillation: the client's own training."""
    loose = FedFairLAB(threshold=1.0, lam0=0.0, epochs=0, keep="last")
    check_same_run(loose, FedAvg(), transport, cohorts=ALONE, part=_model)


def agnosticfair(transport: Transport) -> None:
    """Neither an adversary nor a penalty: FedAvg."""
    for basis in ("kernels", "cells"):
        plain = AgnosticFair(penalty=0.0, most=1.0, basis=basis)  # type: ignore[arg-type]
        check_same_run(plain, FedAvg(), transport, part=_model)


def fedfair(transport: Transport) -> None:
    """A bound that always holds: FedAvg."""
    for given in ("positive", "all"):
        loose = FedFair(epsilon=math.inf, given=given)  # type: ignore[arg-type]
        check_same_run(loose, FedAvg(), transport, part=_model)


def gifair(transport: Transport) -> None:
    """Without penalty: FedAvg."""
    for groups in ("attribute", "clients"):
        free = GIFAIR(strength=0.0, groups=groups)  # type: ignore[arg-type]
        check_same_run(free, FedAvg(), transport, part=_model)


def lft_fedavg(transport: Transport) -> None:
    """Local weights that do not move: FedAvg."""
    for notion in ("dp", "eo"):
        still = LFTFedAvg(alpha=0.0, notion=notion)  # type: ignore[arg-type]
        check_same_run(still, FedAvg(), transport, part=_model)


def lft_ensemble(transport: Transport) -> None:
    """One client, whose weights do not move, predicts as it would by itself."""

    def likely(got: Outcome) -> Any:
        return got.outputs[5].softmax(-1)

    still = LFTEnsemble(alpha=0.0)
    check_same_run(still, Local(), transport, cohorts=ALONE, exactly=False, part=likely)


def equifl(transport: Transport) -> None:
    """Everything shared and nothing penalised: FedAvg."""
    for form in ("covariance", "product"):
        plain = EquiFL(penalty=0.0, shared="all", form=form)  # type: ignore[arg-type]
        check_same_run(plain, FedAvg(), transport, part=_model)


def fair_fate(transport: Transport) -> None:
    """Without momentum: FedAvg."""
    check_same_run(FairFate(lambda0=0.0), FedAvg(), transport, part=_model)


def fcfl(transport: Transport) -> None:
    """One client and no bound: gradient descent on all its examples, one step a round."""
    where = replace(world(2), work=replace(world(2).work, steps=1, batch=0))
    got, expected = (
        _model(run(a, transport, where, cohorts=ALONE)) for a in (FCFL(epsilon=math.inf), FedAvg())
    )
    close(got, expected, "FCFL without a bound")


def puffle(transport: Transport) -> None:
    """A regulariser of weight 0: FedAvg."""
    check_same_run(PUFFLE(lam=0.0), FedAvg(), transport, part=_model)


def fedpf(transport: Transport) -> None:
    """One iteration, whose multipliers had no effect yet: FedAvg, whatever the responses are."""
    check_same_run(FedPF(iterations=1, epsilon=0.5), FedAvg(), transport, part=_model)
