"""What the contract suite runs over: one row per algorithm and one per engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from contract import client_fair, group_fair, group_loss, matched, personal, preference
from isonomy.algorithms import registry
from isonomy.algorithms.average.fedavg import FedAvg
from isonomy.algorithms.average.fedprox import FedProx
from isonomy.algorithms.clustered.focus import Focus
from isonomy.algorithms.personal.local import Local
from isonomy.contract.checks import check_same_run
from isonomy.contract.engines import transports
from isonomy.contract.running import Transport
from isonomy.contract.world import World, deep_world, linear_world, partial_world
from isonomy.core.algorithm import Algorithm

# --- engines --------------------------------------------------------------------------------------

ENGINES: dict[str, Transport] = transports()


# --- algorithms -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """How an algorithm is checked.

    `variants` are the options to check it with. All clauses run on the first, the main one, which
    must reach as much of the algorithm as possible. The others are only recorded and compared
    between engines. `limit` states in which limit it equals another algorithm, on a given engine.
    `classes` are the numbers of classes that the algorithm supports. `worlds` are further worlds
    in which it is recorded, for phases that the usual ones do not reach.
    """

    limit: Callable[[Transport], None] | None
    variants: tuple[dict[str, Any], ...] = ({},)
    classes: tuple[int, ...] = (3, 2)
    worlds: tuple[Callable[[], World], ...] = ()


_ALONE = [torch.tensor([5])] * 3


def _one_client_is_local(transport: Transport) -> None:
    """With one client, averaging is that client's own training."""
    check_same_run(FedAvg(), Local(), transport, cohorts=_ALONE, part=lambda got: got.outputs[5])


def _mu_zero_is_fedavg(transport: Transport) -> None:
    """Without the pull, FedProx is FedAvg."""
    check_same_run(FedProx(mu=0.0), FedAvg(), transport)
    check_same_run(FedProx(mu=0.0, weight="equal"), FedAvg(weight="equal"), transport)


def _one_model_is_fedavg(transport: Transport) -> None:
    """With one model there is nothing to cluster: FOCUS is FedAvg, by default of equal weights."""
    for weight in ("equal", "size"):
        one = Focus(models=1, weight=weight)  # type: ignore[arg-type]
        check_same_run(
            one,
            FedAvg(weight=weight),  # type: ignore[arg-type]
            transport,
            part=lambda got: got.outputs,
        )


ROWS: dict[str, Row] = {
    "agnosticfair": Row(
        group_fair.agnosticfair,
        variants=({"pace": 1.0}, {"basis": "cells", "tau": 0.01, "penalty": 5.0}),
        classes=(2,),
    ),
    "aaggff": Row(
        client_fair.aaggff, variants=({}, {"setting": "device", "cdf": "normal", "eta": 0.5})
    ),
    "afl": Row(client_fair.afl, variants=({"gamma": 0.5}, {"update": "model", "report": "last"})),
    "equifl": Row(
        group_fair.equifl,
        variants=({}, {"shared": "first_layer", "form": "product", "penalty": 0.1}),
        classes=(2,),
    ),
    "fair_fate": Row(
        group_fair.fair_fate,
        variants=({}, {"notion": "eo", "rho": -0.1, "least": 2}),
        classes=(2,),
    ),
    "fairfed": Row(
        group_fair.fairfed,
        variants=(
            {"local": "reweigh"},
            {"update": "exponential", "notion": "eo", "least": 2},
        ),
        classes=(2,),
    ),
    "fcfl": Row(
        group_fair.fcfl,
        variants=({"first": 1}, {"first": 2, "notion": "eo", "delta": 0.1}),
        classes=(2,),
    ),
    "apfl": Row(personal.apfl, variants=({"adaptive": True}, {"alpha": 0.3, "weight": "size"})),
    "blend": Row(
        personal.blend,
        variants=({"steps": 3}, {"alpha": 0.5, "shares": (0.0, 1.0), "epochs": 1, "lr": 0.05}),
    ),
    "ewc": Row(
        personal.ewc,
        variants=(
            {"steps": 3},
            {"fisher": "batches", "epochs": 2},
            {"steps": 3, "pull": "proximal"},
        ),
    ),
    "fedavg": Row(_one_client_is_local, variants=({}, {"weight": "equal"})),
    "fedeba": Row(
        client_fair.fedeba,
        variants=(
            {"alpha": 0.5, "theta": 0.0, "tau": 0.5, "gradient": "full"},
            {"alpha": 0.5, "align": "model", "tau": 0.5, "ideal_scale": "K", "eta": 0.5},
            {"alpha": 0.5, "align": "gradient", "prior": "size", "weight_loss": "global_before"},
            {"align": "none"},
        ),
    ),
    "fedfair": Row(
        group_fair.fedfair,
        variants=({"epsilon": 0.0}, {"epsilon": 0.01, "given": "all", "least": 2}),
        classes=(2,),
    ),
    "fedfb": Row(
        group_fair.fedfb,
        variants=({}, {"fairness": "eo", "least": 2}, {"fairness": "client"}),
        classes=(2,),
    ),
    "fedfairlab": Row(
        group_fair.fedfairlab,
        variants=(
            {"epochs": 2},
            {"budget": 0.9, "notion": "eo", "keep": "last", "epochs": 0, "attribute": "all"},
        ),
        classes=(2,),
    ),
    "fedfv": Row(client_fair.fedfv, variants=({"alpha": 0.3}, {"alpha": 0.0, "tau": 2})),
    "fedheal": Row(client_fair.fedheal, variants=({"tau": 0.6},)),
    "fedlf": Row(
        client_fair.fedlf,
        variants=({}, {"gradient": "full", "layers": False, "history": False, "fair": False}),
    ),
    "fedma": Row(
        matched.fedma,
        variants=(
            {"sigma": 0.05, "gamma": 50.0, "later": 50.0},
            {"average": "posterior", "start": "own", "output": "equal", "grow": 1.0},
        ),
        worlds=(deep_world,),
    ),
    "fedmdfg": Row(
        client_fair.fedmdfg,
        variants=({"theta": 0.01, "s": 2}, {"theta": 0.5, "s": 1, "history": False}),
    ),
    "fedmgda": Row(
        client_fair.fedmgda,
        variants=({"eta": 0.3}, {"epsilon": 1.0, "weight": "size", "normalise": False}),
    ),
    "fedpf": Row(
        group_fair.fedpf,
        variants=({"iterations": 2, "epsilon": 1.0}, {"iterations": 3, "slack": 0.0, "eta": 5.0}),
        classes=(2,),
    ),
    "fedprox": Row(_mu_zero_is_fedavg, variants=({"mu": 0.5},)),
    "fedpw": Row(client_fair.fedpw),
    "finetune": Row(
        personal.finetune, variants=({"lam": 0.5, "epochs": 2}, {"steps": 3, "lr": 0.05})
    ),
    "fmtl": Row(
        personal.fmtl,
        variants=(
            {"lams": (0.1, 1.0, 2.0), "anchor": "moving"},
            {"lam": 0.5},
            {"lam": 50.0, "pull": "proximal", "weight": "size"},
        ),
    ),
    "focus": Row(
        _one_model_is_fedavg,
        variants=(
            {"models": 2, "warmup": 0, "skip": 0.9},
            {"models": 3, "start": "independent"},
            {"warmup": 1, "weight": "size"},
        ),
    ),
    "hetpfl": Row(
        preference.hetpfl,
        variants=(
            {"fusion_steps": 3, "shown": 8, "preferences": 4},
            {"fusion": "net", "fusion_steps": 3, "shown": 8, "fit": "own", "network": "paper"},
            {
                "objectives": ("error", "dp", "eo"),
                "fusion": "tuned",
                "fusion_steps": 3,
                "shown": 8,
                "fairness": "gap",
                "body": "front",
                "alpha": 3.0,  # away from the corners, whose steps are long: nothing diverges
                "limits": (2.0, 6.0),
                "parts": 2,
                "refit": 1,
                "select": 9,
            },
        ),
        worlds=(partial_world,),
    ),
    "guardfed": Row(
        group_fair.guardfed,
        variants=({"tau": 1.0, "gamma": 0.0, "local": "reweigh"}, {"compare": "models"}),
        classes=(2,),
    ),
    "gifair": Row(group_fair.gifair, variants=({}, {"groups": "clients", "strength": 0.9})),
    "lft_ensemble": Row(group_fair.lft_ensemble, variants=({}, {"notion": "eo"}), classes=(2,)),
    "lft_fedavg": Row(group_fair.lft_fedavg, variants=({}, {"notion": "eo"}), classes=(2,)),
    "group_fedavg": Row(
        group_loss.group_fedavg, variants=({}, {"power": 0.5, "weight": "equal", "least": 2})
    ),
    "local_bgl": Row(
        group_loss.local_bgl,
        variants=({"zeta": 0.3}, {"constraint": "cbgl", "report": "last", "scale": False}),
    ),
    "pffl": Row(
        group_loss.pffl,
        variants=(
            {"zeta": 0.3, "least": 2},
            {"constraint": "cbgl", "factor": 1, "report": "last", "scale": False},
            {"constraint": "minmax", "beta": 0.0, "B": 1.0, "zeta": 0.0, "eta": 0.5},
        ),
        worlds=(linear_world,),
    ),
    "l2sgd": Row(personal.l2sgd, variants=({"p": 0.6}, {"lam": 0.5, "p": 0.2})),
    "l2sgd_running": Row(personal.l2sgd_running, variants=({"lam": 0.5},)),
    "local": Row(_one_client_is_local),
    "mapper": Row(personal.mapper, variants=({}, {"choose": "validation", "shares": (0.2, 0.9)})),
    "perfedavg": Row(
        personal.perfedavg,
        variants=({"alpha": 0.05}, {"alpha": 0.05, "first_order": True, "batches": "same"}),
    ),
    "pfedfair": Row(
        group_fair.pfedfair, variants=({}, {"notion": "eo", "weight": "equal"}), classes=(2,)
    ),
    "pfnm": Row(
        matched.pfnm,
        variants=(
            {"sigma": 0.05, "gamma": 20.0},
            {"start": "own", "output": "equal", "grow": 1.0},
        ),
    ),
    "praffl": Row(
        preference.praffl,
        variants=(
            {"preferences": 4},
            {"network": "paper", "fit": "own", "weight": "equal"},
            {"scalar": "max", "fairness": "covariance", "weight": "size", "select": 0},
        ),
        worlds=(partial_world,),
    ),
    "prac_fedeba": Row(client_fair.prac_fedeba, variants=({"theta": 0.0, "tau": 0.5},)),
    "propfair": Row(client_fair.propfair, variants=({"M": 2.0}, {"M": 1.2, "beyond": "flat"})),
    "puffle": Row(
        group_fair.puffle,
        variants=({"target": 0.02, "momentum": 0.5, "newest": 0.5}, {"lam": 0.3, "decay": 0.5}),
    ),
    "q_fedavg": Row(client_fair.q_fedavg, variants=({}, {"q": 5.0, "lipschitz": 2.0})),
    "q_fedsgd": Row(
        client_fair.q_fedsgd,
        variants=({}, {"gradient": "full", "step": "static"}, {"lipschitz": 4.0}),
    ),
    "symmetric_kl": Row(personal.symmetric_kl, variants=({"epochs": 2},)),
    "term": Row(client_fair.term, variants=({}, {"t": -2.0, "tau": 0.5, "weight": "equal"})),
}


# --- what the suite runs over ---------------------------------------------------------------------


def row(name: str) -> Row:
    """An algorithm's row; an algorithm without a row is checked with its default options."""
    return ROWS.get(name, Row(limit=None))


def variants(name: str) -> list[Algorithm]:
    """An algorithm in every variant, the main one first."""
    return [registry()[name](**options) for options in row(name).variants]


def algorithms(*, main: bool = False) -> dict[str, Algorithm]:
    """Every registered algorithm in every variant, or in its main one, by a readable name."""
    made: dict[str, Algorithm] = {}
    for name in registry():
        for options, algorithm in zip(row(name).variants, variants(name), strict=True):
            label = ",".join(f"{k}={v}" for k, v in options.items())
            made[f"{name}({label})"] = algorithm
            if main:
                break
    return made


NEVER_ASKED: dict[tuple[str, str], str] = {}
"""Phases (algorithm, phase) that no variant asks here, with the reason."""
