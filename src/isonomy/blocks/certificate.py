"""The verdict on bounded group losses: the measurements, what follows from theory, and the text.

`met` and `violated` are measured, for any model. The rest needs losses that are convex in w:

`infeasible`. If min_w sum_z lambda_z r_z(w) > 0 for some lambda >= 0, then no model meets all
bounds, because it would make the sum at most 0. `isonomy.blocks.feasibility` looks for such a
lambda, and `isonomy.blocks.saddle` bounds the minimum from below, whether or not Newton's method
has converged.

`not converged`. nu is the duality gap of the pair (w, lambda_bar) that training returns,

    nu = max_lambda G(w, lambda) - min_w G(w, lambda_bar)
       = beta F(w) + B max(0, max_z r_z(w)) - min_w G(w, lambda_bar),

bracketed in the same way; the upper end is used. If it is more than a tenth of beta F(w), neither
the violation nor the risk says much about the solution.

Lemma 1 of PFFL, tight. Let w* meet all bounds. Then min_w G(w, lambda_bar) <= G(w*, lambda_bar)
<= beta F(w*), and with nu from above

    B max_z r_z(w) <= beta (F(w*) - F(w)) + nu.

So a violation above (beta (M - F(w)) + nu) / B shows that no model with a risk of at most M meets
all bounds, and beta F(w*) >= beta F(w) + B max(0, max_z r_z(w)) - nu bounds the risk of every model
that does, without M. (The paper has (M + 2 nu) / B for beta = 1, where nu is either half of the
gap.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from isonomy.blocks.constraints import Constraints, cell_sums, violations
from isonomy.blocks.feasibility import Attainable
from isonomy.blocks.measure import train_loss
from isonomy.blocks.saddle import lower_bound, minimised
from isonomy.core.client import Client
from isonomy.core.confidence import FEWEST, upper_terms
from isonomy.core.task import Params, Task
from isonomy.core.tree import Tree
from isonomy.core.verdict import Status, Verdict

CONVERGED = 0.1  # the largest nu, as a share of beta F(w), with which training has converged
ROUNDING = 1e-6  # a violation of this size can be a rounding error of single precision


def empty(cells: int) -> dict[str, Tensor]:
    """The figures before they are measured: zeros, with the same keys as afterwards."""
    held = ("held", "held_count", "held_losses", "held_squares", "held_cubes")
    each = ("violation", "count", *held)
    gaps = ("gap_low", "gap_high", "measured", "least_low", "least_high", "searched")
    zeros: dict[str, Tensor] = {n: torch.zeros(cells, dtype=torch.float64) for n in each}
    one = ("clients", "risk", "upper", *gaps)
    return zeros | {name: torch.zeros((), dtype=torch.float64) for name in one}


def audit(inner: Constraints, task: Task, params: Params, client: Client, least: int) -> Tree:
    """A client's sums over cells, on its training and test examples, and its mean loss."""
    return {
        "train": cell_sums(inner, task, params, client, "train", least),
        "held": cell_sums(inner, task, params, client, "test", least),
        "risk": train_loss(task, params, client).double(),
    }


def figures(sums: Tree, bounds: Tensor, clients: int, beta: float, B: float) -> dict[str, Tensor]:
    """Violations, the largest G over lambda, and the violations on test examples."""
    train, held = sums["train"], sums["held"]
    r = violations(train["losses"], train["count"], bounds)
    risk = sums["risk"] / clients
    return empty(len(bounds)) | {
        "clients": torch.tensor(float(clients), dtype=torch.float64),
        "violation": r,
        "count": train["count"],
        "held": violations(held["losses"], held["count"], bounds),
        "held_count": held["count"],
        "held_losses": held["losses"],
        "held_squares": held["squares"],
        "held_cubes": held["cubes"],
        "risk": risk,
        "upper": beta * risk + B * r.max().clamp(min=0),
    }


def gap(
    curve: Callable[[Tensor], Tree],
    floor: Callable[[Tensor, Tensor], Tree],
    start: Tensor,
    upper: Tensor,
) -> dict[str, Tensor]:
    """The bracket of nu.

    `curve` returns the sums that make up G at some weights, without the constant terms of the
    bounds; those are included in `upper`. `floor` returns the sums of the lower bound.
    """
    found = minimised(curve, start)
    bound = floor(found.at, found.move)
    low = upper - found.sums["value"]
    high = upper - lower_bound(bound["value"], bound["residual"])
    good = torch.isfinite(low) & torch.isfinite(high)
    zero = torch.zeros_like(upper)
    return {
        "gap_low": torch.where(good, low.clamp(min=0), zero),
        "gap_high": torch.where(good, high.clamp(min=0), zero),
        "measured": good.double(),
    }


def attainable(found: Attainable) -> dict[str, Tensor]:
    """The figures of a search for the least violation."""
    low, high = (torch.tensor(at, dtype=torch.float64) for at in found)
    return {"least_low": low, "least_high": high, "searched": torch.isfinite(low + high).double()}


# --- the verdict ----------------------------------------------------------------------------------


class Given(NamedTuple):
    """What a verdict refers to beside the figures."""

    names: list[str]  # of the cells
    bounds: Tensor
    multipliers: Tensor  # the mean ones
    clients: str  # whom the figures cover
    convex: bool
    beta: float
    B: float
    M: float  # NaN if there is none
    least: int


def verdict(found: dict[str, Tensor], given: Given) -> Verdict:
    """The verdict that follows from these figures."""
    cells = _cells(found, given)
    known = [cell for cell in cells if cell["examples"]]
    missing = [cell["constraint"] for cell in cells if not cell["examples"]]
    facts: dict[str, Any] = {"clients": int(found["clients"]), "unmeasured": missing}
    if not known:
        text = f"No training examples of any group were reported by {given.clients}."
        return Verdict("not measured", text, facts | {"constraints": cells})
    worst = max(known, key=lambda cell: cell["violation"])
    facts |= {
        "worst": worst["constraint"],
        "violation": worst["violation"],
        "risk": float(found["risk"]),
        **_theory(found, given),
        "beta": given.beta,
        "B": given.B,
        "M": given.M if given.M == given.M else None,
        "constraints": cells,
    }
    status = _status(facts)
    sentences = [*_said[status](facts, given), *_remarks(facts, given)]
    return Verdict(status, " ".join(sentences), facts)


def _theory(found: dict[str, Tensor], given: Given) -> dict[str, Any]:
    """What convexity adds: nu with what follows from it, and the least violation of any model."""
    out: dict[str, Any] = dict.fromkeys(("gap", "gap_low", "converged", "bound", "least_risk"))
    if found["measured"]:
        nu, risk = float(found["gap_high"]), float(found["risk"])
        out |= {"gap": nu, "gap_low": float(found["gap_low"])}
        out["converged"] = nu <= CONVERGED * (given.beta or given.B) * risk
        if given.M == given.M:
            out["bound"] = (given.beta * (given.M - risk) + nu) / given.B
        if given.beta:
            out["least_risk"] = (float(found["upper"]) - nu) / given.beta
    searched = bool(found["searched"])
    out["least_violation"] = float(found["least_low"]) if searched else None
    out["least_violation_at_most"] = float(found["least_high"]) if searched else None
    return out


def _status(facts: dict[str, Any]) -> Status:
    if facts["violation"] <= ROUNDING:
        return "not measured" if facts["unmeasured"] else "met"
    if (facts["least_violation"] or 0) > ROUNDING:
        return "infeasible"
    return "not converged" if facts["converged"] is False else "violated"


# --- its text -------------------------------------------------------------------------------------


def _where(given: Given) -> str:
    return f"On the training examples of {given.clients},"


def _over(facts: dict[str, Any], given: Given) -> str:
    over, worst = facts["violation"], facts["worst"]
    amount = f"{over:.4f}" if over >= 5e-5 else f"{over:.1g}"  # never 0.0000
    return f"{_where(given)} the constraint on {worst} is violated by {amount}"


def _met(facts: dict[str, Any], given: Given) -> list[str]:
    out = [f"{_where(given)} every constraint holds."]
    if given.convex:
        out.append("This was measured directly.")
    else:
        out.append(
            "This was measured; the model is not linear, so there is no guarantee beyond this data."
        )
    if facts["least_risk"] is not None and facts["converged"]:
        out.append(
            f"The risk is {facts['risk']:.4f}, and no linear model that meets all bounds has one "
            f"below {facts['least_risk']:.4f}."
        )
    return out


def _not_measured(_facts: dict[str, Any], given: Given) -> list[str]:
    return [f"{_where(given)} every constraint that could be measured holds."]


def _infeasible(facts: dict[str, Any], given: Given) -> list[str]:
    low, high = facts["least_violation"], facts["least_violation_at_most"]
    return [
        f"{_over(facts, given)}.",
        f"No linear model meets all bounds: in every one, some constraint is violated by at least "
        f"{low:.4f} (and in the best one by at most {high:.4f}).",
        f"Raise the bounds by {high:.4f} or more, or use a more expressive model.",
    ]


def _violated(facts: dict[str, Any], given: Given) -> list[str]:
    out = [f"{_over(facts, given)}."]
    if not given.convex:
        return [*out, "The model is not linear, so it is not known whether any model meets them."]
    if facts["gap"] is None:
        return [*out, "The duality gap could not be measured for this loss or this model."]
    out.append(
        f"The duality gap nu is {facts['gap']:.4f}: training has converged, and a larger B lets "
        "the constraints weigh more."
    )
    return [*out, *_lemma(facts), *_possible(facts)]


def _not_converged(facts: dict[str, Any], given: Given) -> list[str]:
    low, high = facts["gap_low"], facts["gap"]
    about = f"{high:.4f}" if high - low < 5e-5 else f"between {low:.4f} and {high:.4f}"
    return [
        f"{_over(facts, given)}.",
        f"The duality gap nu is {about}, more than {CONVERGED:.0%} of the risk "
        f"{facts['risk']:.4f}, so training has not converged: run more rounds, or change local.lr.",
        *_possible(facts),
    ]


def _lemma(facts: dict[str, Any]) -> list[str]:
    """What Lemma 1 says about a violation."""
    out, bound, least = [], facts["bound"], facts["least_risk"]
    if bound is not None:
        which = "above" if facts["violation"] > bound else "within"
        then = "no" if facts["violation"] > bound else "a"
        could = "meets" if facts["violation"] > bound else "may still meet"
        out.append(
            f"The violation is {which} the bound (beta (M - F) + nu) / B = {bound:.4f}, so {then} "
            f"model with a risk of at most M = {facts['M']:.4f} {could} all bounds."
        )
    if least is not None:
        out.append(f"A model that meets them has a risk of at least {least:.4f}.")
    return out


def _possible(facts: dict[str, Any]) -> list[str]:
    """Whether some model meets all bounds, if a search found out."""
    low, high = facts["least_violation"], facts["least_violation_at_most"]
    if low is None:
        return []
    if high <= 0:
        return ["Some linear model does meet all bounds."]
    return [
        f"The least violation of any linear model is between {low:+.4f} and {high:+.4f}: it is not "
        "known whether one meets all bounds."
    ]


_said: dict[Status, Callable[[dict[str, Any], Given], list[str]]] = {
    "met": _met,
    "violated": _violated,
    "infeasible": _infeasible,
    "not converged": _not_converged,
    "not measured": _not_measured,
}


def _remarks(facts: dict[str, Any], given: Given) -> list[str]:
    """Further sentences of the verdict."""
    sentences = []
    if facts["unmeasured"]:
        names = ", ".join(facts["unmeasured"])
        why = "there are no training examples of it"
        if given.least > 1:
            why += f", or no client has {given.least} or more"
        sentences.append(f"Not measured: {names} ({why}).")
    sentences += _held_out(facts["constraints"])
    if given.least > 1:
        sentences.append(
            f"Clients withheld the sums of cells with fewer than {given.least} examples."
        )
    return sentences


def _held_out(cells: list[dict[str, Any]]) -> list[str]:
    """What the test examples say, and about the population that they are drawn from."""
    held = [cell for cell in cells if cell["held_violation"] is not None]
    if not held:
        return []
    sure = [cell for cell in held if cell["held_term"] is not None]
    worst = max(held, key=lambda cell: cell["held_violation"])
    out = [
        f"On test examples, the worst constraint is {worst['constraint']}: loss minus bound is "
        f"{worst['held_violation']:+.4f} on {worst['held_examples']} examples."
    ]
    if sure:
        top = max(sure, key=lambda cell: cell["held_violation"] + cell["held_term"])
        most = top["held_violation"] + top["held_term"]
        which = "every constraint" if len(sure) == len(held) else "the other constraints"
        out.append(
            f"In the population that they are drawn from, loss minus bound is at most {most:+.4f} "
            f"for {which} (this one for {top['constraint']}), with 95% confidence for all jointly."
        )
    few = [cell["constraint"] for cell in held if cell["held_examples"] < FEWEST]
    if few:
        out.insert(1, f"Too few test examples (n < {FEWEST}) to bound {', '.join(few)}.")
    elif not sure:
        out.append("All test losses of a cell are equal, so the population cannot be bounded.")
    return out


def _cells(found: dict[str, Tensor], given: Given) -> list[dict[str, Any]]:
    """The figures of each constraint."""
    terms = upper_terms(
        found["held_count"], found["held_losses"], found["held_squares"], found["held_cubes"]
    )
    out = []
    for z, name in enumerate(given.names):
        count, held = int(found["count"][z]), int(found["held_count"][z])
        over, bound = float(found["violation"][z]), float(given.bounds[z])
        out.append(
            {
                "constraint": name,
                "zeta": bound,
                "loss": over + bound if count else None,
                "violation": over if count else None,
                "examples": count,
                "multiplier": float(given.multipliers[z]),
                "held_violation": float(found["held"][z]) if held else None,
                "held_term": terms[z],
                "held_examples": held,
            }
        )
    return out
