"""Learning a local front: a body that clients share, and a hypernet that generates their heads.

This is what PraFFL and HetPFL have in common. The body is trained on the loss alone, at equal
preferences. Then the body is fixed and the hypernet is trained on latent features, which are
computed once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.func import grad, vmap

from isonomy.blocks import descent, objectives, preferences
from isonomy.blocks.objectives import Aim, Code, Examples, Fairness
from isonomy.blocks.pareto import Scalar, hypervolume2, hypervolume_drawn, tchebycheff
from isonomy.core.batches import Plan
from isonomy.core.client import Client
from isonomy.core.examples import Split
from isonomy.core.fold import fold
from isonomy.core.notions import SINGLE_RATE
from isonomy.core.preference import ray_of
from isonomy.core.task import Batch, Params, Task
from isonomy.core.tree import Tree
from isonomy.errors import ConfigError
from isonomy.models import hypernet as nets

DRAWS = 4096  # random points that estimate a hypervolume of more than two objectives
OBJECTIVES_OPTION = (
    f"the objectives: error, then one or more of {', '.join(SINGLE_RATE)}, with an attribute as in "
    "dp.sex"
)
"""The meaning of an algorithm's option `objectives`."""


class Terms(NamedTuple):
    """What is traded off, and how the objectives are combined into one number."""

    objectives: tuple[str, ...]
    scalar: Scalar = "logsumexp"
    fairness: Fairness = "squared"
    code: Code = "one-hot"

    def aims(self, task: Task) -> tuple[Aim, ...]:
        """The objectives with the columns of the task's attributes, named or else numbered."""
        numbers = tuple(str(i) for i in range(len(task.levels)))
        return objectives.aims(self.objectives, task.attributes or numbers)

    def widths(self, task: Task) -> list[int]:
        """The number of columns of each objective after the first."""
        return [objectives.columns(aim, task.levels, self.code) for aim in self.aims(task)[1:]]


UpdateSampler = Callable[[Tree, Tensor, Tensor], Tree]
"""A client's next sampler, from the current one, preferences [N, m] and their losses [N, m]."""


def check_options(
    terms: Terms, count: int, share: float, select: int, preference: tuple[float, ...]
) -> None:
    """Raise ValueError for options that neither method can work with."""
    names = terms.objectives
    objectives.check_names(names)
    if terms.fairness == "gap" and terms.code == "number":
        raise ValueError("fairness = 'gap' needs one column for each group; set code = 'one-hot'.")
    if count < 1:
        raise ValueError(f"preferences = {count}: give 1 or more.")
    if not 0 <= share <= 1:
        raise ValueError(f"share = {share}: give a number from 0 to 1.")
    if select < 0:
        raise ValueError(f"select = {select}: give a number of rays, or 0 for the last round.")
    if preference and (len(preference) != len(names) or min(preference) < 0 or not sum(preference)):
        raise ValueError(
            f"preference = {list(preference)}: give {len(names)} numbers, one for each objective, "
            "none below 0 and not all 0."
        )


def check_task(task: Task, params: Params, name: str) -> None:
    """Raise ConfigError unless the loss is the cross-entropy and the network ends in a head."""
    if task.loss_name != "cross_entropy" or not task.classes:
        raise ConfigError(
            f"algorithm '{name}' trades off the cross-entropy and fairness; choose data with "
            "classes and set model.loss = 'cross_entropy'."
        )
    nets.check_head(task, params)


def normalised(preference: tuple[float, ...], count: int) -> Tensor:
    """The ray of the preference that clients predict with; all equal if it is empty."""
    if not preference:
        return preferences.middle(count)
    at = torch.tensor(preference)
    return ray_of(at / at.sum())


def latents(task: Task, body: Params, client: Client, split: Split = "train") -> Tensor:
    """The latent features [n, d] of a client's examples."""
    return torch.cat([nets.features(task, body, page.x) for page in client.pages(split)])


def train_body(
    task: Task, body: Params, hypernet: Tensor, client: Client, plan: Plan, count: int
) -> Params:
    """Local descent on the loss at equal preferences (eq. 11), with a fixed hypernet."""
    where = nets.head_of(task)
    weight, bias = nets.make_head(hypernet, preferences.middle(count), where)
    head = {where.weight: weight, where.bias: bias}

    def loss(now: Params, batch: Batch) -> Tensor:
        return task.loss({**now, **head}, batch)

    return descent.descend(loss, body, client, plan)


def train_body_on_front(
    task: Task,
    body: Params,
    hypernet: Tensor,
    client: Client,
    plan: Plan,
    *,
    terms: Terms,
    count: int,
    mixture: Tree,
) -> Params:
    """Local descent on the hypernet's loss (eq. 12), with a fixed hypernet."""
    m, where, widths = len(terms.objectives), nets.head_of(task), terms.widths(task)
    work, rate, pool, aims = client.work, client.rate, client.pool, terms.aims(task)

    def loss(now: Params, batch: Batch, rays: Tensor) -> Tensor:
        latent = nets.features(task, now, batch.x)
        at = objectives.examples(latent, batch, aims, task.levels, terms.code)
        return front_loss(hypernet, at, rays, where=where, widths=widths, terms=terms)[0]

    def one(carry: Tree, step: Tree) -> Tree:
        now, memory = carry
        rows, weight, given = step
        rays = preferences.sample(mixture, given)
        g = grad(loss)(now, pool.batch(rows, weight), rays)
        return descent.step(work, rate, now, memory, g)

    given = preferences.draws(client, "body preferences", (plan.rows.shape[0], count), m)
    carry = (body, descent.start(work, body))
    return cast(Params, fold(one, carry, (plan.rows, plan.weight, given), plan.count)[0])


def front_loss(
    hypernet: Tensor,
    at: Examples,
    rays: Tensor,
    *,
    where: nets.Head,
    widths: list[int],
    terms: Terms,
) -> tuple[Tensor, Tensor]:
    """The mean Tchebycheff loss over preferences [N, m] (eq. 12), and the losses [N, m]."""
    weight, bias = nets.make_head(hypernet, rays, where)
    outputs = at.latent @ weight.mT + bias.unsqueeze(-2)  # [N, n, o]
    each = objectives.losses(outputs, at, widths, terms.fairness)
    return tchebycheff(each, rays, terms.scalar).mean(), each


def train_hypernet(
    task: Task,
    body: Params,
    hypernet: Tensor,
    client: Client,
    plan: Plan,
    *,
    terms: Terms,
    count: int,
    sampler: Tree,
    update_sampler: UpdateSampler | None = None,
) -> tuple[Tensor, Tree]:
    """Local descent of the hypernet at sampled preferences (eq. 12); the body is fixed.

    Preferences are drawn from `sampler["mixture"]`; `update_sampler` is called after every step.
    Returns the hypernet and the sampler.
    """
    m, where, widths = len(terms.objectives), nets.head_of(task), terms.widths(task)
    made = objectives.examples(
        latents(task, body, client), client.train, terms.aims(task), task.levels, terms.code
    )
    work, rate, start, table = client.work, client.rate, client.starts[0], made.table()
    columns = sum(widths)

    def loss(now: Tensor, at: Examples, rays: Tensor) -> tuple[Tensor, Tensor]:
        return front_loss(now, at, rays, where=where, widths=widths, terms=terms)

    def one(carry: Tree, step: Tree) -> Tree:
        now, memory, own = carry
        rows, weight, given = step
        rays = preferences.sample(own["mixture"], given)
        batch = objectives.take_rows(table, rows - start, weight, columns)
        g, each = grad(loss, has_aux=True)(now, batch, rays)
        now, memory = descent.step(work, rate, now, memory, g)
        return now, memory, update_sampler(own, rays, each) if update_sampler else own

    given = preferences.draws(client, "preferences", (plan.rows.shape[0], count), m)
    carry = (hypernet, descent.start(work, hypernet), sampler)
    hypernet, _, sampler = fold(one, carry, (plan.rows, plan.weight, given), plan.count)
    return hypernet, sampler


def validate(
    task: Task, body: Params, hypernet: Tensor, client: Client, terms: Terms, rays: int
) -> dict[str, Tensor]:
    """The hypervolume of a client's front on its validation examples, and 1 if it has some."""
    batch, wanted = client.validation, terms.aims(task)
    latent, where = nets.features(task, body, batch.x), nets.head_of(task)

    def point(ray: Tensor) -> Tensor:
        weight, bias = nets.make_head(hypernet, ray, where)
        return objectives.measures(task, latent @ weight.T + bias, batch, wanted)

    points = vmap(point)(preferences.grid(rays, len(wanted)))
    if len(wanted) == 2:
        volume = hypervolume2(points, torch.ones(2))
    else:
        volume = hypervolume_drawn(points, client.uniform("volume", (DRAWS, len(wanted))))
    some = (batch.weight.sum() > 0).to(volume.dtype)
    return {"volume": volume * some, "clients": some}


def improved(sums: Tree, best: Tensor) -> tuple[Tensor, Tensor]:
    """Whether the clients' mean validation volume is the best so far, as 0 or 1, and the best.

    If no client has validation examples, every round counts as an improvement.
    """
    if float(sums["clients"]) == 0:
        return torch.ones(()), best
    mean = sums["volume"] / sums["clients"]
    return (mean > best).to(torch.float32), torch.maximum(mean, best)
