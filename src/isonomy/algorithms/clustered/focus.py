"""FOCUS: clients are clustered by expectation-maximisation, with one model per cluster.

Chu, Xie, Wang, Li, Yin, Zhao and Li, "FOCUS: Fairness via agent-awareness for federated learning
on heterogeneous data", 2022, Algorithm 1 and equations 4 to 9. pi_em is client e's share in model
w_m, initially uniform. In a round, with l_em the mean loss of w_m over e's training examples:

    E step    pi_em <- pi_em exp(-l_em) / sum_m' pi_em' exp(-l_em')
    M step    theta_em <- local descent on F_e from w_m,
              w_m <- sum_e pi_em theta_em / sum_e pi_em          (with the new pi)
    predict   sum_m pi_em p(y | x, w_m): probabilities are mixed, not models and not logits

With one model it is FedAvg with equal weights. Beyond the paper: log pi is kept, in double
precision; a client does not train models in which its share is negligible (`skip`); a client with
a share in one model only computes its losses every `check` rounds, and they then count for all
rounds since the last time; and the initial models are chosen differently. The paper does not
specify them, and independent initial models can get stuck in a wrong clustering. Here
(`start = "split"`) one common model is trained for `warmup` rounds and then split: clients send its
gradient on two halves of their examples, k-means clusters the gradients, and each cluster continues
to train the common model. The two halves separate signal from noise, which with `models = 0` also
gives the number of clusters (`isonomy.blocks.clustering`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, one_hot, pad

from isonomy.blocks import clustering
from isonomy.blocks.descent import descend
from isonomy.blocks.initial import independent_models
from isonomy.blocks.measure import train_loss
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm
from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.cohort import Cohort, NoReplies
from isonomy.core.mixture import Mixture
from isonomy.core.options import option
from isonomy.core.phase import Part, phase
from isonomy.core.search_space import Grid
from isonomy.core.task import Params, Task
from isonomy.core.tree import Tree

FEW = 5  # clients below which a run says that clusters may not be found


class Server(NamedTuple):
    """The models, every client's log pi and how many E steps it skipped since its last one, and the
    rounds until the split (-1: no split to come).
    """

    models: Tree  # parameters [models, ...]
    log_pi: Tensor  # [clients, models]
    skipped: Tensor  # [clients]
    wait: Tensor


class Models(NamedTuple):
    """The models; every client keeps its own shares."""

    models: Tree  # parameters [models, ...]


@dataclass(frozen=True)
class Focus(Algorithm[Server]):
    """Clusters of clients found by EM, with one model per cluster."""

    name: ClassVar[str] = "focus"
    family: ClassVar[str] = "clustered"
    paper: ClassVar[str] = "Chu et al., 2022"
    reveals: ClassVar[str] = (
        "each client's share in every model, and only weighted sums of the clients' models; in the "
        "round that splits the common model, its gradient on two halves of each client's examples"
    )

    models: int = option(
        0,
        "number of models; 0: the number of clusters found in the clients' gradients",
        search=Grid((0, 2, 3, 4)),
    )
    most: int = option(10, "largest number of models considered if models = 0")
    start: Literal["split", "independent"] = option(
        "split", "initial models: copies of one trained model, or independent draws"
    )
    warmup: int = option(2, "rounds of training of the common model before it is split")
    trust: float = option(0.99, "a client's share in its cluster's model right after the split")
    weight: Literal["equal", "size"] = option("equal", "factor of a client's share in the means")
    skip: float = option(
        1e-4, "shares below this, relative to the model's largest share, count as 0"
    )
    check: int = option(10, "rounds between E steps of clients whose share is in one model only")

    def __post_init__(self) -> None:
        if self.models < 0:
            raise ValueError(
                f"models = {self.models}: give 1 or more, or 0 to find the number from the data."
            )
        if self.most < 2:
            raise ValueError(f"most = {self.most}: give 2 or more.")
        if self.start == "independent" and not self.models:
            raise ValueError(
                "start = 'independent' needs a number of models; set models to 1 or more, e.g. 2."
            )
        if self.warmup < 0:
            raise ValueError(f"warmup = {self.warmup}: give 0 rounds or more.")
        if not 0 < self.trust < 1:
            raise ValueError(f"trust = {self.trust}: give a number above 0 and below 1.")
        if self.check < 1:
            raise ValueError(f"check = {self.check}: give 1 round or more.")
        if not 0 <= self.skip < 1:
            raise ValueError(f"skip = {self.skip}: give a number of at least 0 and below 1.")

    def init_server(self, task: Task, params: Params, clients: int) -> Server:
        """The initial model or models, and uniform shares."""
        split = self.start == "split" and self.models != 1
        count = 1 if self.start == "split" else self.models
        return Server(
            models=independent_models(task, params, count),
            log_pi=_uniform(clients, count),
            skipped=torch.zeros(clients, dtype=torch.float64),
            wait=torch.tensor(self.warmup if split else -1),
        )

    def init_client(self, task: Task, params: Params) -> State:
        """The client's own shares, which it needs to predict."""
        width = self.models or self.most
        return {"pi": torch.full((width,), 1 / width, dtype=torch.float64)}

    def round(self, server: Server, cohort: Cohort) -> Server:
        """Algorithm 1 or, after the warm-up, the split of the common model."""
        models, log_pi, skipped, wait = server
        if int(wait) == 0:
            return self.split(server, cohort)
        passed = cohort.ids[:0]
        if log_pi.shape[1] > 1:
            log_pi, skipped, passed = self.e_step(models, log_pi, skipped, cohort)
        mine = log_pi[cohort.ids]
        share = torch.exp(mine - mine.max(0).values)  # a common factor cancels in eq. 6
        models = self.m_step(models, share, mine, cohort)
        passed = passed[torch.isin(passed, cohort.ids)]  # without those that did not answer
        skipped = skipped.index_add(0, passed, torch.ones(len(passed), dtype=skipped.dtype))
        return Server(models, log_pi, skipped, wait - (wait > 0).to(wait.dtype))

    def split(self, server: Server, cohort: Cohort) -> Server:
        """Split the common model: each cluster of clients continues to train its own copy.

        The initial pi of a client is `trust` in its cluster's model; clients that did not answer
        get uniform shares. If too few clients answer, the split is retried in the next round.
        """
        common = tree.take(server.models, 0)
        got = cohort.gather(self.pull, {"params": common})
        ready = len(got.ids) >= max(self.models, 2)
        labels = clustering.cluster_clients(
            got.value["halves"],
            got.sizes,
            got.ids,
            count=self.models if ready else 1,
            most=self.most,
        )
        count = self.models if ready and self.models else int(labels.max()) + 1
        member = one_hot(labels, count).to(torch.float64)
        mine = torch.log(member * self.trust + (1 - member) * (1 - self.trust) / max(count - 1, 1))
        mine = log_softmax(mine, 1)  # with a single model the share is 1
        copies = tree.tmap(lambda t: t.expand(count, *t.shape), common)
        models = self.m_step(copies, member, mine, cohort)
        log_pi = _uniform(len(server.log_pi), count).index_copy(0, got.ids, mine)
        return Server(models, log_pi, server.skipped, server.wait - int(ready))

    @property
    def at_most(self) -> int:
        """The largest number of models."""
        return self.models or self.most

    def e_step(
        self, models: Tree, log_pi: Tensor, skipped: Tensor, cohort: Cohort
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The E step, eq. 8: log pi, how many E steps each client has skipped, and who skips this.

        Clients that are not asked keep their pi; when they are asked again, their losses count for
        the skipped steps too.
        """
        ids = cohort.ids
        settled = log_pi[ids].exp().max(1).values > 1 - self.skip
        passed = ids[settled] if cohort.round % self.check else ids[:0]
        if len(passed) == len(ids):
            return log_pi, skipped, passed
        asked_cohort = cohort.only(ids[~settled]) if cohort.round % self.check else cohort
        at = asked_cohort.ids
        own = {"log_pi": log_pi[at], "times": 1 + skipped[at]}
        try:
            got = asked_cohort.gather(self.expect, {"models": models}, each=own)
        except NoReplies:
            if not len(cohort.ids) or asked_cohort is cohort:
                raise
            return log_pi, skipped, passed
        none = torch.zeros(len(got.ids), dtype=skipped.dtype)
        new = log_pi.index_copy(0, got.ids, got.value["log_pi"])
        return new, skipped.index_copy(0, got.ids, none), passed

    def m_step(self, models: Tree, share: Tensor, log_pi: Tensor, cohort: Cohort) -> Tree:
        """The M step, eq. 6, model by model; the largest `share` [cohort, models] of a model is 1.

        Clients are also sent their pi, which they need to predict.
        """
        ids, new = cohort.ids, []
        for m, mine in enumerate(share.T):
            model = tree.take(models, m)
            claims = (mine > 0) & (mine >= self.skip)
            some_cohort = cohort.only(ids[claims])
            at = torch.isin(ids, some_cohort.ids)
            weight = mine[at] * some_cohort.sizes if self.weight == "size" else mine[at]
            own = {"log_pi": log_pi[at]}
            try:
                mean = some_cohort.mean(self.maximise, {"params": model}, weight=weight, each=own)
                new.append(mean["params"])
            except NoReplies:
                if not len(cohort.ids):
                    raise
                new.append(model)  # no client with a share in it answered
        return tree.stack(new)

    def finish(self, server: Server, cohort: Cohort) -> Server:
        """One E step for clients that were never in a cohort."""
        log_pi = server.log_pi
        unseen = (log_pi == log_pi[:, :1]).all(1).nonzero().squeeze(-1)
        if log_pi.shape[1] == 1 or not len(unseen):
            return server
        skipped = torch.zeros_like(server.skipped)
        new, _, _ = self.e_step(server.models, log_pi, skipped, cohort.only(unseen))
        return server._replace(log_pi=new)

    @phase("gather", halves=Part("gradient", of="params"))
    def pull(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The common model's gradient, on each half of the client's examples."""
        return {"halves": clustering.halves(task, message["params"], client)}, client.state

    @phase("gather", log_pi="statistic")
    def expect(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """The client's new shares, from the mean loss of every model."""
        models, log_pi = message["models"], message["log_pi"]
        count = log_pi.shape[-1]
        losses = [train_loss(task, tree.take(models, m), client) for m in range(count)]
        steps = message["times"] * torch.stack(losses).to(torch.float64)
        log_pi = log_softmax(log_pi - steps, -1)
        return {"log_pi": log_pi}, _kept(log_pi, client)

    @phase("mean", times="at_most", params="model")
    def maximise(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """Local descent from one of the models."""
        params = descend(task.loss, message["params"], client)
        return {"params": params}, _kept(message["log_pi"], client)

    @phase("gather")
    def adapt(self, task: Task, message: Message, client: Client) -> tuple[Reply, State]:
        """One E step of a new client, from its shares so far, which are uniform at first."""
        models = message["model"].models
        pi = client.state["pi"][: len(tree.leaves(models)[0])]
        one = {"models": models, "log_pi": (pi / pi.sum()).log(), "times": torch.ones(())}
        return {}, self.expect(task, one, client)[1]

    def clusters(self, server: Server) -> Tensor:
        """The model in which each client has the largest share."""
        return torch.argmax(server.log_pi, 1)

    def remark(self, server: Server) -> str:
        """What the number of models that was found cannot tell."""
        clients, found = server.log_pi.shape
        if self.models:
            return ""
        limit = min(self.most, clients - 1)
        if found == 1 and clients < FEW:
            return (
                f"Among {clients} clients, only clusters that are very far apart are found; to "
                "give the number of models, set algorithm.models."
            )
        if found == limit > 1:
            return (
                f"More than {limit} models were not considered (algorithm.most = {self.most}, and "
                "at most one fewer than clients); to give the number of models, set "
                "algorithm.models."
            )
        return ""

    def deployed(self, server: Server) -> Models:
        """The models; every client keeps its own shares."""
        return Models(server.models)

    def personal(self, deployed: Models) -> bool:
        """With more than one model, the client's own shares matter."""
        return len(tree.leaves(deployed.models)[0]) > 1

    def model(self, task: Task, deployed: Models, state: State) -> Params | Mixture:
        """Eq. 7: the mixture of the models, by the client's shares."""
        models = deployed.models
        count = len(tree.leaves(models)[0])
        if count == 1:
            return tree.take(models, 0)
        pi = state["pi"][:count]
        return Mixture(models, pi / pi.sum())


def _uniform(clients: int, count: int) -> Tensor:
    """The logarithms of uniform shares."""
    return torch.zeros(clients, count, dtype=torch.float64).log_softmax(1)


def _kept(log_pi: Tensor, client: Client) -> State:
    """The client's state with these shares, padded to its width; unchanged before the split."""
    if log_pi.shape[-1] == 1:
        return client.state
    return {"pi": pad(log_pi.exp(), (0, client.state["pi"].shape[-1] - log_pi.shape[-1]))}
