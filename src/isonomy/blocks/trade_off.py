"""Learning a local front: parameters that clients share, and hypernets that generate their heads.

This is what PraFFL and HetPFL have in common. The shared parameters are trained first, then they
are fixed and the hypernet is trained on latent features, which are computed once. With the paper's
hypernet the shared parameters are the body, which is trained on the loss at equal preferences. With
an interpolated one they are the whole model of the first objective, trained as in FedAvg.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.func import grad

from isonomy.blocks import descent, objectives, preferences
from isonomy.blocks.objectives import Aim, Code, Examples, Fairness
from isonomy.blocks.pareto import Scalar, hypervolume2, hypervolume_drawn, tchebycheff
from isonomy.core.batches import Plan, halves
from isonomy.core.client import Client, Message
from isonomy.core.examples import Split
from isonomy.core.fold import fold
from isonomy.core.notions import SINGLE_RATE
from isonomy.core.preference import ray_of
from isonomy.core.task import Batch, Params, Task
from isonomy.core.tree import Tree
from isonomy.core.work import Work
from isonomy.errors import ConfigError
from isonomy.models import hypernet as nets

ROWS = 256  # fewest rows in a step of an interpolated hypernet
MEASURED = 1024  # largest number of a client's validation rows on which rounds are compared
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
    terms: Terms,
    count: int,
    share: float,
    rate: float,
    select: int,
    preference: tuple[float, ...],
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
    if not 0 <= rate < math.inf:
        raise ValueError(
            f"hypernet_rate = {rate}: give a learning rate, or 0 for the local optimiser."
        )
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


def plans(psi: Params, task: Task, whole: Plan, share: float) -> tuple[Plan, Plan]:
    """The steps of the shared parameters and those of the hypernet.

    The steps are divided between them. If the shared parameters are a whole model, it is trained in
    all of the steps, as in FedAvg, and the hypernet in as many as `share` leaves.
    """
    first, second = halves(whole, share)
    return (whole if nets.head_of(task).weight in psi else first), second


def train_body(
    task: Task, psi: Params, hypernet: Tensor, client: Client, plan: Plan, count: int
) -> Params:
    """Local descent of the shared parameters on the loss.

    A body is trained with the hypernet's head at equal preferences (eq. 11), a whole model with its
    own head.
    """
    where = nets.head_of(task)
    if where.weight in psi:
        return descent.descend(task.loss, psi, client, plan)
    weight, bias = nets.make_head(hypernet, preferences.middle(count), where)
    head = {where.weight: weight, where.bias: bias}

    def loss(now: Params, batch: Batch) -> Tensor:
        return task.loss({**now, **head}, batch)

    return descent.descend(loss, psi, client, plan)


def train_body_on_front(
    task: Task,
    psi: Params,
    hypernet: Tensor,
    client: Client,
    plan: Plan,
    *,
    terms: Terms,
    count: int,
    mixture: Tree,
) -> Params:
    """Local descent of the shared parameters on the hypernet's loss (eq. 12), which is fixed.

    For a whole model, its own loss is added.
    """
    m, widths, own = len(terms.objectives), terms.widths(task), nets.head_of(task).weight in psi
    work, rate, pool, aims = client.work, client.rate, client.pool, terms.aims(task)

    def loss(now: Params, batch: Batch, rays: Tensor) -> Tensor:
        latent = nets.features(task, now, batch.x)
        at = objectives.examples(latent, batch, aims, task.levels, terms.code)
        make = nets.maker(task, now)
        found = front_loss(hypernet, at, rays, make=make, widths=widths, terms=terms)[0]
        return found + task.loss(now, batch) if own else found

    def one(carry: Tree, step: Tree) -> Tree:
        now, memory = carry
        rows, weight, given = step
        rays = preferences.sample(mixture, given)
        g = grad(loss)(now, pool.batch(rows, weight), rays)
        return descent.step(work, rate, now, memory, g)

    given = preferences.draws(client, "body preferences", (plan.rows.shape[0], count), m)
    carry = (psi, descent.start(work, psi))
    return cast(Params, fold(one, carry, (plan.rows, plan.weight, given), plan.count)[0])


def front_loss(
    hypernet: Tensor,
    at: Examples,
    rays: Tensor,
    *,
    make: nets.Make,
    widths: list[int],
    terms: Terms,
) -> tuple[Tensor, Tensor]:
    """The mean Tchebycheff loss over preferences [N, m] (eq. 12), and the losses [N, m]."""
    weight, bias = make(hypernet, rays)
    flat = weight.flatten(0, 1) @ at.latent.T + bias.flatten().unsqueeze(-1)  # [N o, n]
    outputs = flat.reshape(*bias.shape, -1).mT  # [N, n, o]
    each = objectives.losses(outputs, at, widths, terms.fairness)
    return tchebycheff(each, rays, terms.scalar).mean(), each


def train_hypernet(
    task: Task,
    psi: Params,
    hypernet: Tensor,
    client: Client,
    plan: Plan,
    *,
    terms: Terms,
    count: int,
    rate: float,
    sampler: Tree,
    update_sampler: UpdateSampler | None = None,
) -> tuple[Tensor, Tree]:
    """Local descent of the hypernet at sampled preferences (eq. 12); the rest is fixed.

    The optimiser is Adam with this rate, or the client's own if it is 0. Preferences are drawn from
    `sampler["mixture"]`; `update_sampler` is called after every step. A step of an interpolated
    hypernet uses several batches of the plan, because fairness in a small batch is mostly noise.
    Returns the hypernet and the sampler.
    """
    m, widths, make = len(terms.objectives), terms.widths(task), nets.maker(task, psi)
    aims, columns, pool, start = terms.aims(task), sum(widths), client.pool, client.starts[0]
    work, lr = client.work, client.rate
    if rate:
        work, lr = Work(optimiser="adam", lr=rate), torch.tensor(rate)
    if nets.head_of(task).weight in psi:
        plan = _wider(plan)
    once = plan.rows.numel() > 2 * client.widths[0]  # then rows are used several times
    table = torch.zeros(0)
    if once:
        latent = latents(task, psi, client)
        table = objectives.examples(latent, client.train, aims, task.levels, terms.code).table()

    def examples(rows: Tensor, weight: Tensor) -> Examples:
        if once:
            return objectives.take_rows(table, rows - start, weight, columns)
        batch = pool.batch(rows, weight)
        latent = nets.features(task, psi, batch.x)
        return objectives.examples(latent, batch, aims, task.levels, terms.code)

    def loss(now: Tensor, at: Examples, rays: Tensor) -> tuple[Tensor, Tensor]:
        return front_loss(now, at, rays, make=make, widths=widths, terms=terms)

    def one(carry: Tree, step: Tree) -> Tree:
        now, memory, own = carry
        rows, weight, given = step
        rays = preferences.sample(own["mixture"], given)
        g, each = grad(loss, has_aux=True)(now, examples(rows, weight), rays)
        now, memory = descent.step(work, lr, now, memory, g)
        return now, memory, update_sampler(own, rays, each) if update_sampler else own

    given = preferences.draws(client, "preferences", (plan.rows.shape[0], count), m)
    carry = (hypernet, descent.start(work, hypernet), sampler)
    hypernet, _, sampler = fold(one, carry, (plan.rows, plan.weight, given), plan.count)
    return hypernet, sampler


def _wider(plan: Plan) -> Plan:
    """The plan with `ROWS` or more rows in a step: successive steps are joined to one."""
    steps, batch = plan.rows.shape
    more = max(1, -(-ROWS // batch))
    fewer = -(-steps // more)
    first = more * torch.arange(fewer).unsqueeze(-1)
    at = (first + torch.arange(more)) % plan.count.clamp(min=1)  # the last one may begin again
    rows, weight = plan.rows[at].reshape(fewer, -1), plan.weight[at].reshape(fewer, -1)
    return Plan(rows, weight, -(-plan.count // more))


def front_volume(
    task: Task,
    make: Callable[[Tensor], tuple[Tensor, Tensor]],
    rows: Batch,
    terms: Terms,
    rays: int,
    draws: Tensor,
) -> Tensor:
    """The hypervolume, on rows of latent features, of the front of generated heads.

    `draws` are random points, used for more than two objectives.
    """
    wanted = terms.aims(task)
    weight, bias = make(preferences.grid(rays, len(wanted)))  # [R, o, d], [R, o]
    if bias.shape[-1] == 2:  # the difference of the two outputs decides
        weight, bias = weight[..., 1, :] - weight[..., 0, :], bias[..., 1] - bias[..., 0]
        chosen = weight @ rows.x.T > -bias.unsqueeze(-1)  # [R, n]
        points = objectives.measures_of_decisions(task, chosen, rows, wanted)
    else:
        flat = weight.flatten(0, 1) @ rows.x.T + bias.flatten().unsqueeze(-1)  # [R o, n]
        points = objectives.measures(task, flat.reshape(*bias.shape, -1).mT, rows, wanted)
    if len(wanted) == 2:
        return hypervolume2(points, torch.ones(2))
    return hypervolume_drawn(points, draws)


def validation_volume(
    task: Task, psi: Params, hypernet: Tensor, client: Client, terms: Terms, rays: int
) -> Tensor:
    """The hypervolume of a client's front on its validation examples, 0 if it has none.

    If there are more than `MEASURED`, it is that on so many of them.
    """
    batch, make = _some_validation(client), nets.maker(task, psi)
    rows = batch._replace(x=nets.features(task, psi, batch.x))
    draws = torch.zeros(0)
    if len(terms.objectives) > 2:
        draws = client.uniform("volume", (DRAWS, len(terms.objectives)))
    volume = front_volume(task, lambda ray: make(hypernet, ray), rows, terms, rays, draws)
    return volume * (batch.weight.sum() > 0)


def _some_validation(client: Client) -> Batch:
    """Up to `MEASURED` of the client's validation rows, the same in every round.

    They are spread evenly over all of them, whatever the order in which the rows are stored.
    """
    if client.widths[1] <= MEASURED:
        return client.validation
    size, place = client.sizes[1], torch.arange(MEASURED)
    at = torch.where(size > MEASURED, place * size // MEASURED, place)
    real = place < size
    rows = torch.where(real, client.starts[1] + at, client.starts[0])
    return client.pool.batch(rows, real.to(torch.float32))


def compared(
    task: Task, message: Message, client: Client, hypernet: Tensor, terms: Terms, rays: int
) -> dict[str, Tensor]:
    """This round's front and the kept one on the client's validation examples.

    Both are measured on the same clients, so rounds of different cohorts can be compared.
    """
    psi, kept, own = message["psi"], message["kept"], client.state["kept"]
    after = validation_volume(task, psi, hypernet, client, terms, rays)
    before = validation_volume(task, kept, own, client, terms, rays)
    some = (client.sizes[1] > 0).to(after.dtype)
    return {"volume": after, "before": before, "clients": some}


def improved(sums: Tree, score: Tensor) -> tuple[Tensor, Tensor]:
    """Whether this round is better than the kept one, as 0 or 1, and the kept round's score.

    It is better if the mean validation volume of its cohort is larger than that of the same
    clients with the kept round. The first round is always kept, and every round if no client has
    validation examples. A score of -1 means that nothing was measured.
    """
    if float(sums["clients"]) == 0:
        return torch.ones(()), score
    better = float(score) == -1 or bool(sums["volume"] > sums["before"])
    mean = sums["volume"] / sums["clients"]
    return torch.tensor(float(better)), mean if better else score


def settled(task: Task, psi: Params, client: Client, terms: Terms, rays: int) -> Tensor:
    """The hypernet that a client deploys with these shared parameters.

    It is the one of the best round in which the client took part, or the latest one, whichever has
    the larger volume on the client's validation examples. They differ if the best round
    was one in which the client did not take part.
    """
    kept, latest = client.state["kept"], client.state["hypernet"]
    found = [validation_volume(task, psi, one, client, terms, rays) for one in (kept, latest)]
    return torch.where(found[1] > found[0], latest, kept)
