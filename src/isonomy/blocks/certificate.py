"""The verdict on bounded group losses: the measurements, what follows from theory, and the text.

Lemma 1 of PFFL: if (w, lambda) is within nu of a saddle point of G and some model w* satisfies all
constraints, then the largest violation of w is at most (beta M + 2 nu) / B, where M bounds the
risk. A larger violation therefore shows that no model satisfies them, and the verdict is null. nu
is measured:

    nu = max_lambda G(w, lambda) - min_w G(w, lambda_bar)
       = beta F(w) + B max(0, max_z r_z(w)) - min_w G(w, lambda_bar)

The minimum is found by Newton's method over all clients and is bracketed: G at the point found is
an upper bound, and the dual bound of `isonomy.blocks.saddle` is a lower bound, whether or not the
method has converged. The largest nu in the bracket is used, so that Lemma 1 holds with it. A large
nu makes a large bound, which certifies nothing: `satisfied` requires that the constraints hold as
measured, or else that the violation is within the bound, the bracket is closed and nu is at most M.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from isonomy.blocks.confidence import FEWEST, upper_terms
from isonomy.blocks.constraints import Constraints, cell_sums, reported, violations
from isonomy.blocks.measure import train_loss
from isonomy.blocks.saddle import lower_bound, newton_step
from isonomy.core.client import Client
from isonomy.core.task import Params, Task
from isonomy.core.tree import Tree, sq_norm
from isonomy.core.verdict import Status, Verdict

STEPS = 60  # largest number of Newton steps
CLOSED = 1e-4  # the bracket is closed if its ends differ by at most this times (1 + nu)
DELTA = 0.05  # the generalisation terms hold jointly with probability 1 - DELTA
ROUNDING = 1e-6  # a violation of this size can be a rounding error of single precision


def empty(cells: int) -> dict[str, Tensor]:
    """The figures before they are measured: zeros, with the same keys as afterwards."""
    held = ("held", "held_count", "held_losses", "held_squares", "held_cubes")
    each = ("violation", "count", *held, "generalisation")
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
        "norms": norms * reported(inner, task, client, "train", least),
        "size": sq_norm(params).double(),
    }


def figures(sums: Tree, bounds: Tensor, clients: int, beta: float, B: float) -> dict[str, Tensor]:
    """Violations, the largest G over lambda, and the terms for unseen examples."""
    train, held = sums["train"], sums["held"]
    r = violations(train["losses"], train["count"], bounds)
    risk = sums["risk"] / clients
    m = train["count"].clamp(min=1)
    # Rademacher complexity of the linear models whose norm is at most that of this one, for a loss
    # with Lipschitz constant 1
    complexity = (sums["size"] / clients).sqrt() * sums["norms"].sqrt() / m
    return empty(len(bounds)) | {
        "violation": r,
        "count": train["count"],
        "held": violations(held["losses"], held["count"], bounds),
        "held_count": held["count"],
        "held_losses": held["losses"],
        "held_squares": held["squares"],
        "held_cubes": held["cubes"],
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
    """The bracket of nu.

    `curve` returns the sums that make up G at some weights, without the constant terms of the
    bounds; those are included in `upper`. `floor` returns the sums of the lower bound.
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
    high = upper - lower_bound(bound["value"], bound["residual"])
    good = torch.isfinite(low) & torch.isfinite(high)
    zero = torch.zeros_like(upper)
    return {
        "gap_low": torch.where(good, low.clamp(min=0), zero),
        "gap_high": torch.where(good, high.clamp(min=0), zero),
        "measured": good.double(),
    }


# --- the text of the verdict ----------------------------------------------------------------------


def verdict(
    found: dict[str, Tensor],
    bounds: Tensor,
    names: list[str],
    *,
    certifies: bool,
    convex: bool,
    measurable: bool,
    beta: float,
    B: float,
    M: float,
    assumed: bool,
    least: int,
) -> Verdict:
    """The verdict that follows from these figures."""
    cells = _cells(found, bounds, names, convex, M)
    known = [cell for cell in cells if cell["examples"]]
    if not known:
        return Verdict("no claim", "No client reported sums for any group: nothing was measured.")
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
    status, sentences = _judge(facts, certifies, convex, measurable)
    return Verdict(status, " ".join([*sentences, *_remarks(facts, assumed, least)]), facts)


def _judge(
    facts: dict[str, Any], certifies: bool, convex: bool, measurable: bool
) -> tuple[Status, list[str]]:
    """The status, and the sentences that explain it."""
    over, worst, bound = facts["violation"], facts["worst"], facts["bound"]
    if not certifies:
        return "no claim", [
            f"No bound was requested: the worst group is {worst}, with loss {over:.4f}."
        ]
    holds = over <= ROUNDING
    state = (
        "On the training examples, every constraint holds"
        if holds
        else f"On the training examples, the constraint on {worst} is violated by {over:.4f}"
    )
    if not convex:
        return "no claim", [
            f"{state}.",
            "The model is not linear, so the theory does not apply: no certificate is claimed.",
        ]
    if not facts["B"]:
        return "no claim", [f"{state}.", "With B = 0 the constraints have no effect."]
    if not measurable:
        return "no claim", [
            f"{state}.",
            "The duality gap cannot be measured for this loss or for so many weights: no "
            "certificate is claimed.",
        ]
    if facts["M"] is None:
        return "no claim", [
            f"{state}.",
            "This loss has no natural bound: set M, a bound on the risk, to get a certificate.",
        ]
    if bound is None:
        if holds:
            return "satisfied", [f"{state}. {_AS_MEASURED}"]
        return "null", [f"{state}.", "Not certified: the duality gap could not be measured."]
    low, high = facts["gap_low"], facts["gap"]
    formula = f"(beta M + 2 nu) / B = {bound:.4f}, with nu = {high:.4f} measured"
    if holds:
        return "satisfied", [f"{state}. {_AS_MEASURED} The bound is {formula}."]
    if facts["infeasible"]:
        return "null", [
            f"{state}, more than the bound {formula}.",
            "This is impossible if some model satisfies all constraints; so if M bounds the risk, "
            "no model does. Raise zeta, or use a more expressive model.",
        ]
    if high - low > CLOSED * (1 + high):
        return "null", [
            f"{state}.",
            f"Not certified: the duality gap is only known to be between {low:.4f} and {high:.4f}.",
        ]
    if high > facts["M"]:
        return "null", [
            f"{state}.",
            f"Not certified: the duality gap nu = {high:.4f} is larger than M, so the bound "
            f"(beta M + 2 nu) / B = {bound:.4f} is not informative; run more rounds, or change the "
            "step sizes.",
        ]
    return "satisfied", [
        f"{state}, within the bound {formula}.",
        "The test is one-sided: a violation above the bound shows that no model satisfies the "
        "constraints; a violation within it does not show that some model does.",
    ]


_AS_MEASURED = "This was measured directly and does not depend on the theory."


def _remarks(facts: dict[str, Any], assumed: bool, least: int) -> list[str]:
    """Further sentences of the verdict."""
    sentences = []
    sentences += _held_out(facts["constraints"])
    if facts["bound"] is not None and assumed:
        sentences.append(
            f"M = {facts['M']:.4f}, the risk of a uniform guess, is an assumption; set M to use "
            "another bound."
        )
    if least > 1:
        sentences.append(f"Clients withheld the sums of cells with fewer than {least} examples.")
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


def _cells(
    found: dict[str, Tensor], bounds: Tensor, names: list[str], convex: bool, M: float
) -> list[dict[str, Any]]:
    """The figures of each constraint."""
    number = max(len(names), 1)
    terms = upper_terms(
        found["held_count"], found["held_losses"], found["held_squares"], found["held_cubes"]
    )
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
                "held_violation": float(found["held"][z]) if held else None,
                "held_term": terms[z],
                "held_examples": held,
                "generalisation": 2 * float(found["generalisation"][z]) + M * tail / count**0.5
                if convex and count and M == M
                else None,
            }
        )
    return out
