"""A fault of each kind, planted once, to see that the contract suite catches it.

Each faulty algorithm or engine breaks one clause; the matching check has to raise. Beside them
stands `Sound`, which does all that a contract allows (two phases, client state, a server table by
client, draws, a message for each client) and passes every check, so that the checks do not simply
refuse everything.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from algorithms.test_fedprox import check_by_hand
from contract import checks
from contract.checks import LOOP, Transport
from contract.table import ENGINES, sharing
from contract.test_contract import CLAUSES
from isonomy.algorithms.average.fedavg import FedAvg
from isonomy.algorithms.average.fedprox import FedProx
from isonomy.algorithms.personal.local import Local
from isonomy.blocks.descent import descend
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm
from isonomy.core.batches import Plan
from isonomy.core.client import Client, Message
from isonomy.core.cohort import Ask, Cohort
from isonomy.core.task import Batch, Params, Task
from isonomy.core.tree import Tree
from isonomy.engines.base import Engine
from isonomy.engines.batched.engine import Batched
from isonomy.engines.loop import Loop

BATCHED = ENGINES["batched"]

both = pytest.mark.parametrize("transport", [LOOP, BATCHED], ids=["loop", "batched"])


class Planted(Algorithm):
    """What the faulty algorithms share."""

    name: ClassVar[str] = "planted"
    family: ClassVar[str] = "test"
    paper: ClassVar[str] = "none"
    reveals: ClassVar[str] = "nothing"


def caught(check: Callable[..., None], *args: Any, **kwargs: Any) -> str:
    """The breach that a check reports; fails when it reports none."""
    with pytest.raises(AssertionError) as breach:
        check(*args, **kwargs)
    return str(breach.value)


# --- what is allowed ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sound(Planted):
    """Uses everything a contract offers, rightly."""

    mixing: float = 0.3

    def init_server(self, task: Task, params: Params, clients: int) -> Any:
        return {"params": params, "loss": torch.zeros(clients), "noise": torch.zeros(2)}

    def init_client(self, task: Task, params: Params) -> Any:
        return {"own": params, "rounds": torch.zeros((), dtype=torch.int64)}

    def round(self, server: Any, cohort: Cohort) -> Any:
        first = cohort.gather(self.measure, {"params": server["params"]})
        loss = server["loss"].clone()
        loss[first.ids] = first.value["loss"]
        each = {"share": torch.sigmoid(loss[first.ids] - loss.mean())}
        mean = cohort.mean(self.train, {"params": server["params"]}, each=each)
        return {"params": mean["params"], "loss": loss, "noise": mean["noise"]}

    def measure(self, task: Task, message: Message, client: Client) -> Any:
        state = {**client.state, "rounds": client.state["rounds"] + 1}
        return {"loss": task.loss(message["params"], client.validation)}, state

    def train(self, task: Task, message: Message, client: Client) -> Any:
        start = tree.mix(message["params"], client.state["own"], self.mixing * message["share"])
        own = descend(task.loss, start, client)
        reply = {"params": own, "noise": client.normal("noise", (2,))}
        return reply, {**client.state, "own": own}

    def predict(self, task: Task, server: Any, state: Any, x: Tensor) -> Tensor:
        return task.outputs(state["own"], x)


@both
@pytest.mark.parametrize("clause", [checks.check_engines_agree, *CLAUSES])
def test_sound_algorithm_passes(clause: Callable[..., None], transport: Transport) -> None:
    clause(Sound(), transport)


def test_sound_algorithm_is_pure_and_declared() -> None:
    checks.check_phases_pure(Sound())
    checks.check_declaration(Sound)


# --- algorithms that are not pure -----------------------------------------------------------------


@dataclass(frozen=True)
class MutatesMessage(Planted):
    """Trains the server's own tensors in place."""

    def round(self, server: Any, cohort: Cohort) -> Any:
        return cohort.mean(self.local, {"params": server["params"]})

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
        mean = FedAvg().round(server, cohort)
        for name, p in server["params"].items():
            p.copy_(mean["params"][name])
        return server


@both
def test_mutated_server(transport: Transport) -> None:
    assert "server" in caught(checks.check_inputs_unchanged, MutatesServer(), transport)


@dataclass(frozen=True)
class MutatesExamples(Planted):
    """Normalises its examples where they lie."""

    def round(self, server: Any, cohort: Cohort) -> Any:
        return cohort.mean(self.local, {"params": server["params"]})

    def local(self, task: Task, message: Message, client: Client) -> Any:
        client.pool.x.mul_(0.5)
        return FedAvg().local(task, message, client)


@both
def test_mutated_examples(transport: Transport) -> None:
    assert "federation" in caught(checks.check_inputs_unchanged, MutatesExamples(), transport)


@dataclass(frozen=True)
class MutatesState(Planted):
    """Changes the client's state in place and hands it back."""

    def init_client(self, task: Task, params: Params) -> Any:
        return {"rounds": torch.zeros(())}

    def round(self, server: Any, cohort: Cohort) -> Any:
        return cohort.mean(self.local, {"params": server["params"]})

    def local(self, task: Task, message: Message, client: Client) -> Any:
        client.state["rounds"].add_(1.0)
        return FedAvg().local(task, message, client)


def test_mutated_state() -> None:
    assert "was given" in caught(checks.check_phases_pure, MutatesState())


@dataclass(frozen=True)
class RandomInPhase(Planted):
    """Draws from the global generator."""

    def round(self, server: Any, cohort: Cohort) -> Any:
        return cohort.mean(self.local, {"params": server["params"]})

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
        mean = FedAvg().round(server, cohort)
        return {"params": tree.scale(mean["params"], 1 / len(_seen))}


@dataclass(frozen=True)
class StateOnSelf(Planted):
    """Keeps momentum on the frozen dataclass."""

    def round(self, server: Any, cohort: Cohort) -> Any:
        mean = FedAvg().round(server, cohort)["params"]
        last = getattr(self, "last", mean)
        object.__setattr__(self, "last", mean)
        return {"params": tree.mix(mean, last, 0.5)}


@both
@pytest.mark.parametrize("kind", [StateInGlobal, StateOnSelf])
def test_hidden_state(kind: type[Algorithm], transport: Transport) -> None:
    assert "second run" in caught(checks.check_repeatable, kind(), transport)
    caught(checks.check_resume, kind(), transport)


# --- algorithms that go by position, padding or the wrong number ----------------------------------


@dataclass(frozen=True)
class ByPosition(Planted):
    """Files replies under their position instead of their client's id."""

    def init_server(self, task: Task, params: Params, clients: int) -> Any:
        return {"loss": torch.zeros(clients), "params": params}

    def round(self, server: Any, cohort: Cohort) -> Any:
        got = cohort.gather(self.measure, {"params": server["params"]})
        loss = server["loss"].clone()
        loss[torch.arange(len(got.ids))] = got.value["loss"]
        return {**server, "loss": loss}

    def measure(self, task: Task, message: Message, client: Client) -> Any:
        return {"loss": task.loss(message["params"], client.train)}, client.state


@both
def test_position_for_id(transport: Transport) -> None:
    assert "order" in caught(checks.check_order, ByPosition(), transport)


@dataclass(frozen=True)
class TrustsCohort(Planted):
    """Believes that everyone it asked has answered."""

    def init_server(self, task: Task, params: Params, clients: int) -> Any:
        return {"loss": torch.zeros(clients), "params": params}

    def round(self, server: Any, cohort: Cohort) -> Any:
        asked = cohort.ids
        got = cohort.gather(ByPosition().measure, {"params": server["params"]})
        loss = server["loss"].clone()
        loss[asked] = got.value["loss"]
        return {**server, "loss": loss}


@dataclass(frozen=True)
class DividesByAsked(Planted):
    """Divides a sum by the number of clients it asked."""

    def round(self, server: Any, cohort: Cohort) -> Any:
        asked = len(cohort.ids)
        total = cohort.sum(FedAvg().local, {"params": server["params"]})
        return {"params": tree.tmap(lambda t: (t / asked).float(), total["params"])}


@dataclass(frozen=True)
class GoesOnAlone(Planted):
    """Takes silence for agreement."""

    def round(self, server: Any, cohort: Cohort) -> Any:
        try:
            return FedAvg().round(server, cohort)
        except Exception:
            return server


@both
@pytest.mark.parametrize("kind", [TrustsCohort, DividesByAsked, GoesOnAlone])
def test_missing_replies_overlooked(kind: type[Algorithm], transport: Transport) -> None:
    caught(checks.check_missing_replies, kind(), transport)


@dataclass(frozen=True)
class CountsPadding(Planted):
    """Takes the mean over all rows it is shown, padding included."""

    def round(self, server: Any, cohort: Cohort) -> Any:
        return cohort.mean(self.local, {"params": server["params"]})

    def local(self, task: Task, message: Message, client: Client) -> Any:
        loss = task.losses(message["params"], client.train).mean()
        return {"params": tree.tmap(lambda p: p - 0.1 * loss, message["params"])}, client.state


@dataclass(frozen=True)
class UsesWidth(Planted):
    """Takes the width it runs at for its own number of steps."""

    def round(self, server: Any, cohort: Cohort) -> Any:
        return cohort.mean(self.local, {"params": server["params"]})

    def local(self, task: Task, message: Message, client: Client) -> Any:
        step = 0.1 / client.steps
        return {"params": tree.tmap(lambda p: p - step, message["params"])}, client.state


@dataclass(frozen=True)
class IgnoresWeights(Planted):
    """Trains on the padding of short batches."""

    def round(self, server: Any, cohort: Cohort) -> Any:
        return cohort.mean(self.local, {"params": server["params"]})

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
        return {**server, **cohort.mean(self.local, {"params": server["params"]})}

    def local(self, task: Task, message: Message, client: Client) -> Any:
        return {"lr": client.work.lr}, client.state


@dataclass(frozen=True)
class FloatServer(Planted):
    """Keeps a Python number on the server."""

    def init_server(self, task: Task, params: Params, clients: int) -> Any:
        return {"params": params, "round": 0}

    def round(self, server: Any, cohort: Cohort) -> Any:
        return {**FedAvg().round(server, cohort), "round": server["round"] + 1}


@dataclass(frozen=True)
class TextMessage(Planted):
    """Sends a word."""

    def round(self, server: Any, cohort: Cohort) -> Any:
        return cohort.mean(self.local, {"params": server["params"], "mode": "train"})

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
        _models[id(server["params"]["linear1.bias"])] = 1.0
        return cohort.mean(self.local, {"params": server["params"]})

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
        return FedProx(mu=self.mu + 0.01).round(server, cohort)


@both
def test_limit_missed(transport: Transport) -> None:
    caught(checks.check_same_run, NearProx(mu=0.0), FedAvg(), transport)
    checks.check_same_run(NearProx(mu=0.0), FedProx(mu=0.01), transport)


@dataclass(frozen=True)
class OtherProx(Planted):
    """FedProx with another pull."""

    pull: str = "right"

    def round(self, server: Any, cohort: Cohort) -> Any:
        return cohort.mean(self.local, {"params": server["params"]})

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


def test_wrong_say_in_the_mean() -> None:
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
    """Says nothing of its paper."""

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


# --- engines --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PaddedClient(Client):
    """A client all of whose rows count."""

    @property
    def plan(self) -> Plan:
        made = super().plan
        return made._replace(weight=torch.ones_like(made.weight))


@dataclass(frozen=True, eq=False)
class OtherBatches(Client):
    """A client whose batches depend on how wide its chunk is."""

    @property
    def plan(self) -> Plan:
        return replace(self, key=self.key + self.widths[0])._base_plan()

    def _base_plan(self) -> Plan:
        return super().plan


class CountsPaddingEngine(Batched):
    def run_phase(self, ask: Ask, message: Any, lane: Any, shared: Any) -> Any:
        return ask.phase(self.task, message, PaddedClient(**lane, **shared))


class OtherBatchesEngine(Batched):
    def run_phase(self, ask: Ask, message: Any, lane: Any, shared: Any) -> Any:
        return ask.phase(self.task, message, OtherBatches(**lane, **shared))


class SharedDraws(Batched):
    """Gives all clients of a chunk the draws of its first."""

    def client(self, ask: Ask, ids: Tensor) -> dict[str, Any]:
        made = super().client(ask, ids)
        key = made["lanes"]["key"]
        made["lanes"]["key"] = key[:1].expand_as(key)
        return made


def engine(kind: type[Batched]) -> Transport:
    return replace(BATCHED, make=sharing(kind))


@pytest.mark.parametrize("kind", [CountsPaddingEngine, OtherBatchesEngine, SharedDraws])
def test_engine_with_other_batches(kind: type[Batched]) -> None:
    caught(checks.check_engines_agree, FedAvg(), engine(kind))
    caught(checks.check_draws, engine(kind))
    caught(checks.check_padding, FedAvg(), engine(kind))


def _wrong_states(transport: Transport, change: Callable[[Any, Tensor, Tree], None]) -> Transport:
    """An engine whose states are put by `change`."""

    def make(*args: Any, **options: Any) -> Engine:
        made = transport.make(*args, **options)
        reset = made.reset

        def reset_and_change(initial: Tree) -> None:
            reset(initial)
            states = made.states
            put = states.put
            states.put = lambda ids, new: change(put, ids, new)  # type: ignore[method-assign]

        made.reset = reset_and_change  # type: ignore[method-assign]
        return made

    return replace(transport, make=make)


def _to_the_next(put: Any, ids: Tensor, new: Tree) -> None:
    put((ids + 1) % 8, new)


def _forgets(put: Any, ids: Tensor, new: Tree) -> None:
    others = torch.tensor([k for k in range(8) if k not in ids.tolist()], dtype=torch.int64)
    if len(others):
        put(others, tree.tmap(lambda t: torch.zeros(len(others), *t.shape[1:]).to(t.dtype), new))
    put(ids, new)


@both
@pytest.mark.parametrize("change", [_to_the_next, _forgets])
def test_engine_that_misplaces_states(change: Any, transport: Transport) -> None:
    faulty = _wrong_states(transport, change)
    caught(checks.check_outside_untouched, Local(), faulty)
    caught(checks.check_engines_agree, Local(), faulty)


def test_engine_that_mixes_up_replies() -> None:
    class Mixed(Batched):
        def exchange(self, ask: Ask) -> Any:
            for chunk in super().exchange(ask):
                yield chunk._replace(ids=chunk.ids.flip(0))

    caught(checks.check_engines_agree, Sound(), engine(Mixed))
    caught(checks.check_missing_replies, Sound(), engine(Mixed))


def test_engine_with_a_generator_of_its_own() -> None:
    """Draws in sequence: right until a run is resumed or one client less is asked."""

    class Sequential(Loop):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.calls = itertools.count()

        def client(self, ask: Ask, ids: Tensor) -> dict[str, Any]:
            made = super().client(ask, ids)
            made["lanes"]["key"] = torch.full_like(made["lanes"]["key"], next(self.calls))
            return made

    transport = replace(LOOP, make=Sequential)
    caught(checks.check_resume, FedAvg(), transport)
    caught(checks.check_order, FedAvg(), transport)
    caught(checks.check_draws, transport)
    checks.check_repeatable(FedAvg(), transport)  # which alone would not have told


def test_engine_that_loses_precision() -> None:
    class Rounded(Batched):
        def exchange(self, ask: Ask) -> Any:
            for chunk in super().exchange(ask):
                yield chunk._replace(
                    value=tree.tmap(lambda t: t.bfloat16().to(t.dtype), chunk.value)
                )

    caught(checks.check_engines_agree, FedAvg(), engine(Rounded))
