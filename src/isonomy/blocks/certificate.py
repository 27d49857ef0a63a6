"""The verdict on bounded group losses: what was measured, what the theory adds, and in words.

Lemma 1 of PFFL: if (w, lambda) is within nu of a saddle point of G and some model w* meets all
constraints, then the largest violation of w is at most (beta M + 2 nu) / B, where M bounds the
risk. So a larger violation shows that no model meets them, and the answer is null. nu is measured:

    nu = max_lambda G(w, lambda) - min_w G(w, lambda_bar)
       = beta F(w) + B max(0, max_z r_z(w)) - min_w G(w, lambda_bar)

The minimum is found by Newton's method over all clients and bracketed: G at the point found is not
below it, and the dual bound of `isonomy.blocks.saddle` is not above it, converged or not. The
largest nu of the bracket counts, so that Lemma 1 holds with it. A large nu makes a large bound,
which certifies nothing: `satisfied` needs the constraints to hold as measured, or else the
violation to be within the bound, the bracket to be closed, and nu to be at most M.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from isonomy.blocks.constraints import Constraints, cell_sums, told, violations
from isonomy.blocks.measure import train_loss
from isonomy.blocks.saddle import below, newton_step
from isonomy.core.client import Client
from isonomy.core.task import Params, Task
from isonomy.core.tree import Tree, sq_norm
from isonomy.core.verdict import Status, Verdict

STEPS = 60  # of Newton's method, at most
CLOSED = 1e-4  # how far the ends of the measured gap may lie apart, times 1 + the gap
DELTA = 0.05  # the held-out and generalisation terms hold with probability 1 - DELTA, all at once
ROUNDING = 1e-6  # a violation that single precision can make


def empty(cells: int) -> dict[str, Tensor]:
    """The figures before they are measured; the same parts as afterwards."""
    each = ("violation", "count", "held", "held_count", "spread", "generalisation")
    one = ("risk", "upper", "gap_low", "gap_high", "measured")
    zeros: dict[str, Tensor] = {n: torch.zeros(cells, dtype=torch.float64) for n in each}
    return zeros | {name: torch.zeros((), dtype=torch.float64) for name in one}


def audit(inner: Constraints, task: Task, params: Params, client: Client, least: int) -> Tree:
    """A client's sums over cells, on its training and test examples, and its mean loss."""
    norms = torch.zeros_like(inner.bounds(task))
    for page in client.pages("train"):
        at = (inner.members(task, page) * page.weight.unsqueeze(-1)).double()
        norms = norms + at.T @ (1 + page.x.flatten(1).double().square().sum(-1))
    return {
        "train": cell_sums(inner, task, params, client, "train", least),
        "held": cell_sums(inner, task, params, client, "test", least),
        "risk": train_loss(task, params, client).double(),
        "norms": norms * told(inner, task, client, "train", least),
        "size": sq_norm(params).double(),
    }


def figures(seen: Tree, bounds: Tensor, clients: int, beta: float, B: float) -> dict[str, Tensor]:
    """Violations, the upper end of G, and the terms for unseen examples."""
    train, held = seen["train"], seen["held"]
    r = violations(train["losses"], train["count"], bounds)
    risk = seen["risk"] / clients
    count = held["count"].clamp(min=1)
    variance = held["squares"] / count - (held["losses"] / count).square()
    m = train["count"].clamp(min=1)
    # the Rademacher complexity of linear models no longer than this one, of a loss of slope 1
    complexity = (seen["size"] / clients).sqrt() * seen["norms"].sqrt() / m
    return empty(len(bounds)) | {
        "violation": r,
        "count": train["count"],
        "held": violations(held["losses"], held["count"], bounds),
        "held_count": held["count"],
        "spread": (variance.clamp(min=0) / count).sqrt(),
        "generalisation": complexity,
        "risk": risk,
        "upper": beta * risk + B * r.max().clamp(min=0),
    }


def gap(
    curve: Callable[[Tensor], Tree],
    floor: Callable[[Tensor, Tensor], Tree],
    start: Tensor,
    upper: Tensor,
) -> dict[str, Tensor]:
    """The ends of nu. `curve` gives G's sums at some weights, without the constants of the bounds;
    those are added to `upper`.
    """
    at, got = start, curve(start)
    move = newton_step(got["gradient"], got["hessian"])
    for _ in range(STEPS):
        slope = float((got["gradient"] * move).sum())
        if not slope < -1e-14 * (1 + abs(float(got["value"]))):
            break
        length, better = 1.0, None
        while length > 1e-6 and better is None:
            tried = curve(at + length * move)
            if float(tried["value"]) <= float(got["value"]) + 1e-4 * length * slope:
                better = tried
            else:
                length /= 2
        if better is None:
            break
        at, got = at + length * move, better
        move = newton_step(got["gradient"], got["hessian"])
    bound = floor(at, move)
    low = upper - got["value"]
    high = upper - below(bound["value"], bound["residual"])
    good = torch.isfinite(low) & torch.isfinite(high)
    zero = torch.zeros_like(upper)
    return {
        "gap_low": torch.where(good, low.clamp(min=0), zero),
        "gap_high": torch.where(good, high.clamp(min=0), zero),
        "measured": good.double(),
    }


# --- in words -------------------------------------------------------------------------------------


def verdict(
    found: dict[str, Tensor],
    bounds: Tensor,
    names: list[str],
    *,
    asks: bool,
    convex: bool,
    measurable: bool,
    beta: float,
    B: float,
    M: float,
    assumed: bool,
    least: int,
) -> Verdict:
    """The verdict on these figures."""
    cells = _cells(found, bounds, names, convex, M)
    known = [cell for cell in cells if cell["examples"]]
    if not known:
        return Verdict("no claim", "No client told anything of any group: nothing was measured.")
    worst = max(known, key=lambda cell: cell["violation"])
    gap_low, gap_high = float(found["gap_low"]), float(found["gap_high"])
    measured = bool(found["measured"])
    bound = (beta * M + 2 * gap_high) / B if measured and B and M == M else None
    facts: dict[str, Any] = {
        "worst": worst["constraint"],
        "violation": worst["violation"],
        "bound": bound,
        "infeasible": bound is not None and worst["violation"] > bound,
        "gap": gap_high if measured else None,
        "gap_low": gap_low if measured else None,
        "risk": float(found["risk"]),
        "beta": beta,
        "B": B,
        "M": M if M == M else None,
        "constraints": cells,
    }
    status, words = _judged(facts, asks, convex, measurable)
    return Verdict(status, " ".join([*words, *_beside(facts, assumed, least)]), facts)


def _judged(
    facts: dict[str, Any], asks: bool, convex: bool, measurable: bool
) -> tuple[Status, list[str]]:
    """The status, and the sentences that say why."""
    over, worst, bound = facts["violation"], facts["worst"], facts["bound"]
    if not asks:
        return "no claim", [f"No bound was asked for: the worst is {worst}, with loss {over:.4f}."]
    holds = over <= ROUNDING
    state = (
        "On the training examples every constraint holds"
        if holds
        else f"On the training examples {worst} is violated by {over:.4f}"
    )
    if not convex:
        return "no claim", [
            f"{state}.",
            "The model is not linear, so the theory says nothing of it: no certificate is claimed.",
        ]
    if not facts["B"]:
        return "no claim", [f"{state}.", "With B = 0 nothing was asked of the constraints."]
    if not measurable:
        return "no claim", [
            f"{state}.",
            "The duality gap cannot be measured for this loss or so many weights: no certificate "
            "is claimed.",
        ]
    if facts["M"] is None:
        return "no claim", [
            f"{state}.",
            "This loss has no natural bound: give M, a bound on the risk, to have a certificate.",
        ]
    if bound is None:
        if holds:
            return "satisfied", [f"{state}. {_AS_MEASURED}"]
        return "null", [f"{state}.", "Not certified: the duality gap could not be measured."]
    low, high = facts["gap_low"], facts["gap"]
    told = f"(beta M + 2 nu) / B = {bound:.4f}, with nu = {high:.4f} measured"
    if holds:
        return "satisfied", [f"{state}. {_AS_MEASURED} The bound is {told}."]
    if facts["infeasible"]:
        return "null", [
            f"{state}, more than the bound {told}.",
            "If some model met all constraints this could not be: as far as M holds, none does. "
            "Raise zeta, or take a richer model.",
        ]
    if high - low > CLOSED * (1 + high):
        return "null", [
            f"{state}.",
            f"Not certified: the duality gap is only known to lie between {low:.4f} and "
            f"{high:.4f}.",
        ]
    if high > facts["M"]:
        return "null", [
            f"{state}.",
            f"Not certified: the duality gap nu = {high:.4f} is larger than M, so that the bound "
            f"{told} says nothing; run more rounds, or change the step sizes.",
        ]
    return "satisfied", [
        f"{state}, within the bound {told}.",
        "The test is one-sided: a violation above the bound shows that no model meets the "
        "constraints; one within it does not show that some model does.",
    ]


_AS_MEASURED = "This is measured, and rests on no theory."


def _beside(facts: dict[str, Any], assumed: bool, least: int) -> list[str]:
    """What else belongs to the verdict."""
    words = []
    held = [cell for cell in facts["constraints"] if cell["held_violation"] is not None]
    if held:
        top = max(held, key=lambda cell: cell["held_violation"] + cell["held_term"])
        most = top["held_violation"] + top["held_term"]
        words.append(
            f"Held out, the worst is {top['constraint']}: loss less bound is "
            f"{top['held_violation']:+.4f} on {top['held_examples']} test examples, and with 95 % "
            f"confidence for all constraints at once at most {most:+.4f} among people like them."
        )
    if facts["bound"] is not None and assumed:
        words.append(
            f"M = {facts['M']:.4f} is the risk of knowing nothing, an assumption; give M to state "
            "your own."
        )
    if least > 1:
        words.append(f"Clients told nothing of cells with fewer than {least} examples.")
    return words


def _cells(
    found: dict[str, Tensor], bounds: Tensor, names: list[str], convex: bool, M: float
) -> list[dict[str, Any]]:
    """Each constraint's own figures."""
    number = max(len(names), 1)
    quantile = NormalDist().inv_cdf(1 - DELTA / number)
    tail = math.sqrt(math.log(2 * number / DELTA) / 2)
    out = []
    for z, name in enumerate(names):
        count, held = int(found["count"][z]), int(found["held_count"][z])
        over, bound = float(found["violation"][z]), float(bounds[z])
        out.append(
            {
                "constraint": name,
                "zeta": bound,
                "loss": over + bound if count else None,
                "violation": over if count else None,
                "examples": count,
                "held_violation": float(found["held"][z]) if held > 1 else None,
                "held_term": quantile * float(found["spread"][z]) if held > 1 else None,
                "held_examples": held,
                "generalisation": 2 * float(found["generalisation"][z]) + M * tail / count**0.5
                if convex and count and M == M
                else None,
            }
        )
    return out
