"""FedMDFG: a direction that lowers every client's loss and makes losses equal, by a line search.

Pan et al., "FedMDFG: federated learning with multi-gradient descent and fair guidance", AAAI 2023.
In a round, clients send the loss l_i and the gradient g_i on all of their examples. The server

1. omits gradients of norm below 1e-6 and scales the others to their mean norm;
2. if the angle between the losses and the vector of ones is above `theta`, or if the losses of some
   but not all clients exceed what was expected, adds the gradient sum_i h_i g_i of the guidance,
   with h the derivative of -cos(l, ones), also scaled to the mean norm;
3. adds the gradients of the round before of clients that are not in this cohort;
4. takes the shortest convex combination d of all these, scaled to the norm of the mean of the g_i;
5. tries steps t, beginning at 2^s times the learning rate if the cohort is that of the round
   before, else at the learning rate, halved down to 2^-s times it. The first t is taken for which
   every l_i falls by at least 1e-4 t <g_i, d> and, if there is guidance, cos(l, ones) rises;
   else that with the least total loss. w <- w - t d.

The loss that is expected of a client is the mean of its losses so far, to which only losses that
did not rise are added. One client with s = 0: gradient descent.

The guidance needs the gradients g_i as they are: only then is it the derivative of the angle, so
that d, which has a positive product with every row, makes losses more equal. The public code takes
the scaled ones (`guidance = "scaled"`), and a step along its d may turn the losses away from
equality. In its test of step 5 the sign is reversed, so that it accepts steps that raise losses,
and the cosine is compared with 1 / sqrt(m), which every cosine of m losses reaches; here both are
those of the formula.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from isonomy.blocks.equality import angle, towards_equal
from isonomy.blocks.measure import loss_and_gradient, train_loss
from isonomy.blocks.simplex import min_norm
from isonomy.blocks.vectors import gram, rows, unflattened
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort
from isonomy.core.options import option
from isonomy.core.phase import Part, phase
from isonomy.core.search_space import Grid
from isonomy.core.task import Params, Task
from isonomy.core.tree import Tree

SMALL = 1e-6  # the norm of a gradient that is omitted
ARMIJO = 1e-4


class Server(NamedTuple):
    """The model; of each client the expected loss, how many losses it is a mean of, and whether it
    was in the last cohort; the gradients of that cohort.
    """

    params: Params
    expected: Tensor  # [clients]
    count: Tensor  # type: ignore[assignment]  # [clients]
    last: Tensor  # [clients], 0 or 1
    gradients: Tree  # parameters [clients, ...]


@dataclass(frozen=True)
class FedMDFG(Algorithm[Server]):
    """Multi-gradient descent with fair guidance."""

    name: ClassVar[str] = "fedmdfg"
    family: ClassVar[str] = "client_fair"
    paper: ClassVar[str] = "Pan et al., AAAI 2023"
    reveals: ClassVar[str] = "each client's gradient, and its losses at the steps that are tried"

    theta: float = option(
        math.pi / 16,
        "angle of the losses, in radians, above which losses are made equal",
        search=Grid((math.pi / 16, math.pi / 32)),
    )
    s: int = option(
        5, "steps up to 2^s times the learning rate, and down to 2^-s", search=Grid((5, 3, 1))
    )
    history: bool = option(True, "whether gradients of clients of the last round are used")
    guidance: Literal["unscaled", "scaled"] = option(
        "unscaled", "gradients that make the guidance: as they are, or scaled as in the public code"
    )

    def __post_init__(self) -> None:
        if not 0 <= self.theta <= math.pi / 2:
            raise ValueError(f"theta = {self.theta}: give an angle from 0 to pi / 2.")
        if not 0 <= self.s <= 20:
            raise ValueError(f"s = {self.s}: give a whole number from 0 to 20.")

    @property
    def searches(self) -> int:
        """The most steps that are tried in a round."""
        return 2 * self.s + 1

    def init_server(self, task: Task, params: Params, clients: int) -> Server:
        """The initial model; nothing is expected yet."""
        zero = torch.zeros(clients, dtype=torch.float64)
        kept: Tree = ()
        if self.history:
            kept = tree.tmap(lambda p: torch.zeros(clients, *p.shape), params)
        return Server(params, zero, zero, zero, kept)

    def round(self, server: Server, cohort: Cohort) -> Server:
        """Direction and line search."""
        params = server.params
        got = cohort.gather(self.measure, {"params": params})
        ids, losses = got.ids, got.value["loss"].to(torch.float64)
        raw = rows(got.value["gradient"]).to(torch.float64)
        same = torch.equal(server.last.nonzero().squeeze(-1), ids.sort().values)
        vectors, guided = self._vectors(server, ids, losses, raw)
        server = self._remembered(server, ids, losses, got.value["gradient"])
        if not len(vectors):
            return server
        d = _shortest(vectors)
        length, wanted = d.norm(), raw.mean(0).norm()
        if length <= 1e-9 * vectors.norm(dim=1).mean():
            return server
        d = d * (wanted / length)
        return server._replace(params=self._searched(params, cohort, d, raw, losses, guided, same))

    def deployed(self, server: Server) -> Global:
        """The model only."""
        return Global(server.params)

    def _vectors(
        self, server: Server, ids: Tensor, losses: Tensor, raw: Tensor
    ) -> tuple[Tensor, bool]:
        """What is combined (steps 1 to 3), and whether there is guidance."""
        norms = raw.norm(dim=1)
        kept = norms > SMALL
        mean = norms[kept].mean() if bool(kept.any()) else norms.new_zeros(())
        own = raw[kept] * (mean / norms[kept]).unsqueeze(1)
        h = towards_equal(losses)[kept]
        known = server.count[ids] > 0
        above = known & (losses > server.expected[ids])
        guided = angle(losses) > self.theta or (bool(above.any()) and not bool(above.all()))
        guide = raw[kept].T @ h if self.guidance == "unscaled" else own.T @ h / h.norm()
        guided = guided and float(h.norm()) > 0 and float(guide.norm()) > 0 and len(own) > 1
        if guided and self.guidance == "unscaled":
            guide = guide * (mean / guide.norm())
        parts = [own, guide.unsqueeze(0)] if guided else [own]
        absent = server.last.clone()
        absent[ids] = 0
        if self.history and bool(absent.any()):
            parts.append(rows(tree.take(server.gradients, absent.nonzero().squeeze(-1))).double())
        return torch.cat(parts), guided

    def _remembered(self, server: Server, ids: Tensor, losses: Tensor, found: Tree) -> Server:
        """The expected losses, and the cohort's gradients."""
        count, expected = server.count[ids], server.expected[ids]
        lower = (count == 0) | (losses <= expected)
        mean = (expected * count + losses) / (count + 1)
        kept = server.gradients
        if self.history:
            kept = tree.tmap(lambda a, b: a.index_copy(0, ids, b), kept, found)
        return server._replace(
            expected=server.expected.index_copy(0, ids, torch.where(lower, mean, expected)),
            count=server.count.index_copy(0, ids, count + lower.to(count.dtype)),
            last=torch.zeros_like(server.last).index_fill(0, ids, 1.0),
            gradients=kept,
        )

    def _searched(
        self,
        params: Params,
        cohort: Cohort,
        d: Tensor,
        raw: Tensor,
        losses: Tensor,
        guided: bool,
        same: bool,
    ) -> Params:
        """The model after the step that the line search finds (step 5)."""
        slopes, asked = raw @ d, cohort.ids
        best, least = params, math.inf
        first = self.s if same else 0
        for power in range(first, -self.s - 1, -1):
            t = float(cohort.rate) * 2.0**power
            tried = tree.sub(params, unflattened((t * d).to(torch.float32), params))
            got = cohort.gather(self.attempt, {"params": tried})
            at = (asked == got.ids.unsqueeze(1)).to(torch.int64).argmax(1)  # some may drop out
            new, old = got.value["loss"].to(torch.float64), losses[at]
            falls = bool((old - new >= ARMIJO * t * slopes[at]).all())
            if falls and (not guided or angle(new) < angle(old)):
                cohort.record(step=t)
                return tried
            if float(new.sum()) < least:
                best, least = tried, float(new.sum())
        return best

    @phase("gather", loss="statistic", gradient=Part("gradient", of="params"))
    def measure(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The loss and the gradient on all examples."""
        params = message["params"]
        loss, found = loss_and_gradient(task, params, client)
        return {"loss": loss, "gradient": found}, client.state

    @phase("gather", times="searches", loss="statistic")
    def attempt(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The loss after a step that is tried."""
        return {"loss": train_loss(task, message["params"], client)}, client.state


def _shortest(vectors: Tensor) -> Tensor:
    """The shortest convex combination of the rows."""
    centre = torch.full((len(vectors),), 1 / len(vectors), dtype=torch.float64)
    return min_norm(gram(vectors), centre, 1.0) @ vectors
