"""One planted fault of each kind in an algorithm, to see that the contract suite catches it.

Each faulty algorithm breaks one clause, and the matching check has to raise. `Sound` does all that
the contract allows (two phases, client state, a server table by client, draws, a message for each
client) and passes every check, which shows that the checks do not simply refuse everything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from torch import Tensor

from algorithms.test_fedprox import check_by_hand
from contract.planted import BATCHED, Planted, Sound, averaged, both, caught
from contract.test_contract import CLAUSES
from isonomy.algorithms.average.fedavg import FedAvg
from isonomy.algorithms.average.fedprox import FedProx
from isonomy.blocks.descent import descend
from isonomy.contract import checks
from isonomy.contract.recording import check_recorded
from isonomy.contract.running import Transport
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message
from isonomy.core.cohort import Cohort
from isonomy.core.phase import phase
from isonomy.core.task import Batch, Params, Task


@both
@pytest.mark.parametrize("clause", [checks.check_engines_agree, *CLAUSES])
def test_sound_algorithm_passes(clause: Callable[..., None], transport: Transport) -> None:
    clause(Sound(), transport)


def test_sound_algorithm_is_pure_and_declared() -> None:
    checks.check_phases_pure(Sound())
    checks.check_declaration(Sound)
    check_recorded(Sound())


# --- algorithms that are not pure -----------------------------------------------------------------


@dataclass(frozen=True)
class MutatesMessage(Planted):
    """Trains the server's own tensors in place."""

    def round(self, server: Any, cohort: Cohort) -> Any:
        return Global(cohort.mean(self.local, {"params": server.params})["params"])

    @phase("mean", params="model")
    def local(self, task: Task, message: Message, client: Client) -> Any:
        for p in message["params"].values():
            p.mul_(0.9)
        return {"params": message["params"]}, client.state


@both
def test_mutated_message(transport: Transport) -> None:
    assert "the message" in caught(checks.check_inputs_unchanged, MutatesMessage(), transport)


def test_mutated_message_in_a_phase() -> None:
    assert "was given" in caught(checks.check_phases_pure, MutatesMessage())


@dataclass(frozen=True)
class MutatesServer(Planted):
    """Writes the mean into the state it was given."""

    def round(self, server: Any, cohort: Cohort) -> Any:
        mean = averaged(server, cohort)
        for name, p in server.params.items():
            p.copy_(mean.params[name])
        return server


@both
def test_mutated_server(transport: Transport) -> None:
    assert "server" in caught(checks.check_inputs_unchanged, MutatesServer(), transport)


@dataclass(frozen=True)
class MutatesExamples(Planted):
    """Normalises its examples in place."""

    def round(self, server: Any, cohort: Cohort) -> Any:
        return Global(cohort.mean(self.local, {"params": server.params})["params"])

    @phase("mean", params="model")
    def local(self, task: Task, message: Message, client: Client) -> Any:
        client.pool.x.mul_(0.5)
        return FedAvg().local(task, message, client)


@both
def test_mutated_examples(transport: Transport) -> None:
    assert "federation" in caught(checks.check_inputs_unchanged, MutatesExamples(), transport)


@dataclass(frozen=True)
class MutatesState(Planted):
    """Changes the client's state in place and returns it."""

    def init_client(self, task: Task, params: Params) -> Any:
        return {"rounds": torch.zeros(())}

    def round(self, server: Any, cohort: Cohort) -> Any:
        return Global(cohort.mean(self.local, {"params": server.params})["params"])

    @phase("mean", params="model")
    def local(self, task: Task, message: Message, client: Client) -> Any:
        client.state["rounds"].add_(1.0)
        return FedAvg().local(task, message, client)


def test_mutated_state() -> None:
    assert "was given" in caught(checks.check_phases_pure, MutatesState())


@dataclass(frozen=True)
class RandomInPhase(Planted):
    """Draws from the global generator."""

    def round(self, server: Any, cohort: Cohort) -> Any:
        return Global(cohort.mean(self.local, {"params": server.params})["params"])

    @phase("mean", params="model")
    def local(self, task: Task, message: Message, client: Client) -> Any:
        return {"params": tree.tmap(lambda p: p + torch.rand(()), message["params"])}, client.state


@both
def test_random_in_phase(transport: Transport) -> None:
    caught(checks.check_repeatable, RandomInPhase(), transport)
    caught(checks.check_phases_pure, RandomInPhase())


_seen: list[int] = []


@dataclass(frozen=True)
class StateInGlobal(Planted):
    """Counts its rounds in a global list."""

    def round(self, server: Any, cohort: Cohort) -> Any:
        _seen.append(cohort.round)
        mean = averaged(server, cohort)
        return Global(tree.scale(mean.params, 1 / len(_seen)))


@dataclass(frozen=True)
class StateOnSelf(Planted):
    """Keeps momentum on the frozen dataclass."""

    def round(self, server: Any, cohort: Cohort) -> Any:
        mean = averaged(server, cohort).params
        last = getattr(self, "last", mean)
        object.__setattr__(self, "last", mean)
        return Global(tree.mix(mean, last, 0.5))


@both
@pytest.mark.parametrize("kind", [StateInGlobal, StateOnSelf])
def test_hidden_state(kind: type[Algorithm], transport: Transport) -> None:
    assert "second run" in caught(checks.check_repeatable, kind(), transport)
    caught(checks.check_resume, kind(), transport)


class Losses(NamedTuple):
    """A model, and every client's loss."""

    params: Params
    loss: Tensor


# --- algorithms that go by position, padding or the wrong number ----------------------------------


@dataclass(frozen=True)
class ByPosition(Planted):
    """Stores replies by position instead of by client id."""

    def init_server(self, task: Task, params: Params, clients: int) -> Any:
        return Losses(params, torch.zeros(clients))

    def round(self, server: Any, cohort: Cohort) -> Any:
        got = cohort.gather(self.measure, {"params": server.params})
        loss = server.loss.clone()
        loss[torch.arange(len(got.ids))] = got.value["loss"]
        return server._replace(loss=loss)

    @phase("gather", loss="statistic")
    def measure(self, task: Task, message: Message, client: Client) -> Any:
        return {"loss": task.loss(message["params"], client.train)}, client.state


@both
def test_position_for_id(transport: Transport) -> None:
    assert "order" in caught(checks.check_order, ByPosition(), transport)


@dataclass(frozen=True)
class TrustsCohort(Planted):
    """Assumes that every client that was asked has answered."""

    def init_server(self, task: Task, params: Params, clients: int) -> Any:
        return Losses(params, torch.zeros(clients))

    def round(self, server: Any, cohort: Cohort) -> Any:
        asked = cohort.ids
        got = cohort.gather(ByPosition().measure, {"params": server.params})
        loss = server.loss.clone()
        loss[asked] = got.value["loss"]
        return server._replace(loss=loss)


@dataclass(frozen=True)
class DividesByAsked(Planted):
    """Divides a sum by the number of clients it asked."""

    def round(self, server: Any, cohort: Cohort) -> Any:
        asked = len(cohort.ids)
        total = cohort.sum(self.local, {"params": server.params})
        return Global(tree.tmap(lambda t: (t / asked).float(), total["params"]))

    @phase("sum", params="model")
    def local(self, task: Task, message: Message, client: Client) -> Any:
        return FedAvg().local(task, message, client)


@dataclass(frozen=True)
class GoesOnAlone(Planted):
    """Continues when no client answers."""

    def round(self, server: Any, cohort: Cohort) -> Any:
        try:
            return averaged(server, cohort)
        except Exception:
            return server


@both
@pytest.mark.parametrize("kind", [TrustsCohort, DividesByAsked, GoesOnAlone])
def test_missing_replies_overlooked(kind: type[Algorithm], transport: Transport) -> None:
    caught(checks.check_missing_replies, kind(), transport)


@dataclass(frozen=True)
class CountsPadding(Planted):
    """Takes the mean over all rows, including padding."""

    def round(self, server: Any, cohort: Cohort) -> Any:
        return Global(cohort.mean(self.local, {"params": server.params})["params"])

    @phase("mean", params="model")
    def local(self, task: Task, message: Message, client: Client) -> Any:
        loss = task.losses(message["params"], client.train).mean()
        return {"params": tree.tmap(lambda p: p - 0.1 * loss, message["params"])}, client.state


@dataclass(frozen=True)
class UsesWidth(Planted):
    """Uses the number of steps of its whole chunk as its own."""

    def round(self, server: Any, cohort: Cohort) -> Any:
        return Global(cohort.mean(self.local, {"params": server.params})["params"])

    @phase("mean", params="model")
    def local(self, task: Task, message: Message, client: Client) -> Any:
        step = 0.1 / client.steps
        return {"params": tree.tmap(lambda p: p - step, message["params"])}, client.state


@dataclass(frozen=True)
class IgnoresWeights(Planted):
    """Trains on the padding of short batches."""

    def round(self, server: Any, cohort: Cohort) -> Any:
        return Global(cohort.mean(self.local, {"params": server.params})["params"])

    @phase("mean", params="model")
    def local(self, task: Task, message: Message, client: Client) -> Any:
        def loss(params: Params, batch: Batch) -> Tensor:
            return task.losses(params, batch).mean()

        whole = replace(client, work=replace(client.work, batch=0))  # as wide as its chunk
        return {"params": descend(loss, message["params"], whole)}, client.state


@pytest.mark.parametrize("kind", [CountsPadding, UsesWidth, IgnoresWeights])
def test_padding_counted(kind: type[Algorithm]) -> None:
    caught(checks.check_padding, kind(), BATCHED)
    caught(checks.check_engines_agree, kind(), BATCHED)


# --- algorithms whose values are not tensors ------------------------------------------------------


@dataclass(frozen=True)
class FloatReply(Planted):
    """Replies with a Python number."""

    def round(self, server: Any, cohort: Cohort) -> Any:
        cohort.mean(self.local, {"params": server.params})
        return server

    @phase("mean", lr="statistic")
    def local(self, task: Task, message: Message, client: Client) -> Any:
        return {"lr": client.work.lr}, client.state


class Counted(NamedTuple):
    """A model, and the number of rounds as a Python number: not allowed."""

    params: Params
    round: int


@dataclass(frozen=True)
class FloatServer(Planted):
    """Keeps a Python number on the server."""

    def init_server(self, task: Task, params: Params, clients: int) -> Any:
        return Counted(params, 0)

    def round(self, server: Any, cohort: Cohort) -> Any:
        return Counted(averaged(server, cohort).params, server.round + 1)


@dataclass(frozen=True)
class TextMessage(Planted):
    """Sends text."""

    def round(self, server: Any, cohort: Cohort) -> Any:
        got = cohort.mean(self.local, {"params": server.params, "mode": "train"})
        return Global(got["params"])

    @phase("mean", params="model")
    def local(self, task: Task, message: Message, client: Client) -> Any:
        return FedAvg().local(task, message, client)


@both
@pytest.mark.parametrize("kind", [FloatReply, FloatServer, TextMessage])
def test_more_than_tensors(kind: type[Algorithm], transport: Transport) -> None:
    caught(checks.check_serialisation, kind(), transport)


_models: dict[int, Any] = {}


@dataclass(frozen=True)
class SmugglesByIdentity(Planted):
    """Remembers a model by the identity of the tensor that was sent."""

    def round(self, server: Any, cohort: Cohort) -> Any:
        _models.clear()
        _models[id(server.params["linear1.bias"])] = 1.0
        return Global(cohort.mean(self.local, {"params": server.params})["params"])

    @phase("mean", params="model")
    def local(self, task: Task, message: Message, client: Client) -> Any:
        extra = _models.get(id(message["params"]["linear1.bias"]), 0.0)
        return {"params": tree.tmap(lambda p: p + extra, message["params"])}, client.state


@both
def test_smuggled_by_identity(transport: Transport) -> None:
    breach = caught(checks.check_serialisation, SmugglesByIdentity(), transport)
    assert "over the wire" in breach


# --- algorithms that are another algorithm than they say ------------------------------------------


@dataclass(frozen=True)
class NearProx(Planted):
    """FedProx whose pull does not vanish with mu."""

    mu: float = 0.0

    def round(self, server: Any, cohort: Cohort) -> Any:
        return Global(cohort.mean(self.local, {"params": server.params})["params"])

    @phase("mean", params="model")
    def local(self, task: Task, message: Message, client: Client) -> Any:
        return FedProx(mu=self.mu + 0.01).local(task, message, client)


@both
def test_limit_missed(transport: Transport) -> None:
    caught(checks.check_same_run, NearProx(mu=0.0), FedAvg(), transport)
    checks.check_same_run(NearProx(mu=0.0), FedProx(mu=0.01), transport)


@dataclass(frozen=True)
class OtherProx(Planted):
    """FedProx with another pull."""

    pull: str = "right"

    def round(self, server: Any, cohort: Cohort) -> Any:
        return Global(cohort.mean(self.local, {"params": server.params})["params"])

    @phase("mean", params="model")
    def local(self, task: Task, message: Message, client: Client) -> Any:
        anchor = message["params"]

        def objective(params: Params, batch: Batch) -> Tensor:
            away = tree.sq_norm(tree.sub(params, anchor))
            far = {
                "right": 0.25 * away,  # mu / 2 with mu = 0.5
                "none": 0.0 * away,
                "not halved": 0.5 * away,
                "not squared": 0.25 * (away + 1e-12).sqrt(),
                "to zero": 0.25 * tree.sq_norm(params),
            }
            return task.loss(params, batch) + far[self.pull]

        return {"params": descend(objective, anchor, client)}, client.state


@pytest.mark.parametrize("pull", ["none", "not halved", "not squared", "to zero"])
def test_wrong_pull(pull: str) -> None:
    check_by_hand(OtherProx("right"), "size")
    caught(check_by_hand, OtherProx(pull), "size")


def test_wrong_weight_in_the_mean() -> None:
    caught(check_by_hand, FedProx(mu=0.5, weight="equal"), "size")


@dataclass
class Thawed(Planted):
    """Not frozen."""

    def round(self, server: Any, cohort: Cohort) -> Any:
        return server


class Plain(Planted):
    """Not a dataclass."""

    def round(self, server: Any, cohort: Cohort) -> Any:
        return server


@dataclass(frozen=True)
class Child(FedAvg):
    """Inherits from another algorithm."""

    name: ClassVar[str] = "child"


@dataclass(frozen=True)
class Nameless(Planted):
    """Names no paper."""

    paper: ClassVar[str] = " "

    def round(self, server: Any, cohort: Cohort) -> Any:
        return server


@dataclass(frozen=True)
class Silent(Planted):
    def round(self, server: Any, cohort: Cohort) -> Any:
        return server


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Thawed, "not frozen"),
        (Plain, "not a dataclass"),
        (Child, "subclasses FedAvg"),
        (Nameless, "no paper"),
        (Silent, "no docstring"),
    ],
)
def test_bad_declaration(kind: type[Algorithm], words: str) -> None:
    assert words in caught(checks.check_declaration, kind)
