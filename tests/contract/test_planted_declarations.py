"""One planted fault for each way in which a declaration can be wrong: the recording catches it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from contract.planted import Planted, caught
from isonomy.algorithms.average.fedavg import FedAvg
from isonomy.contract.recording import Record, check_recorded, never_asked
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.client import Client, Message
from isonomy.core.cohort import Cohort
from isonomy.core.phase import Part, phase
from isonomy.core.task import Params, Task


def trained(task: Task, message: Message, client: Client) -> Params:
    """The client's model after local training."""
    return FedAvg().local(task, message, client)[0]["params"]


class Averages(Planted):
    """Averages the part `params` of a phase `local`."""

    local: Any

    def round(self, server: Global, cohort: Cohort) -> Global:
        return Global(cohort.mean(self.local, {"params": server.params})["params"])


@dataclass(frozen=True)
class UndeclaredPart(Averages):
    """Replies more than it declares."""

    @phase("mean", params="model")
    def local(self, task: Task, message: Message, client: Client) -> Any:
        return {"params": trained(task, message, client), "size": client.size}, client.state


def test_undeclared_part(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "size" in caught(check_recorded, UndeclaredPart(), by="DeclarationError")
    monkeypatch.setattr("isonomy.core.cohort._check_parts", lambda *_: None)
    assert "replies ['params', 'size']" in caught(check_recorded, UndeclaredPart())


@dataclass(frozen=True)
class ModelAsStatistic(Averages):
    """Declares its model as a statistic."""

    @phase("mean", params="statistic")
    def local(self, task: Task, message: Message, client: Client) -> Any:
        return {"params": trained(task, message, client)}, client.state


@dataclass(frozen=True)
class Smuggles(Planted):
    """Sends a part of its model as another statistic, flattened or one matrix of it."""

    how: str = "flat"

    def round(self, server: Global, cohort: Cohort) -> Global:
        cohort.mean(self.measure, {"params": server.params})
        return server

    @phase("mean", numbers="group statistic")
    def measure(self, task: Task, message: Message, client: Client) -> Any:
        leaves = tree.leaves(trained(task, message, client))
        flat = torch.cat([t.flatten() for t in leaves])
        return {"numbers": flat if self.how == "flat" else leaves[0]}, client.state


def test_model_declared_as_a_statistic() -> None:
    for algorithm in (ModelAsStatistic(), Smuggles("flat"), Smuggles("matrix")):
        assert "holds a model" in caught(check_recorded, algorithm)


@dataclass(frozen=True)
class ExamplesAsStatistic(Planted):
    """Sends examples among other numbers: a row of features, or all labels."""

    what: str = "row"

    def round(self, server: Global, cohort: Cohort) -> Global:
        cohort.gather(self.measure, {})
        return server

    @phase("gather", numbers="statistic")
    def measure(self, task: Task, message: Message, client: Client) -> Any:
        train, numbers = client.train, torch.zeros(50)
        found = train.x[1] if self.what == "row" else train.y.float()
        numbers[3 : 3 + len(found)] = found
        return {"numbers": numbers}, client.state


@pytest.mark.parametrize("what", ["row", "labels"])
def test_examples_declared_as_a_statistic(what: str) -> None:
    assert "holds examples" in caught(check_recorded, ExamplesAsStatistic(what))


@dataclass(frozen=True)
class OtherModel(Planted):
    """Replies with only a part of the model that it was sent."""

    def round(self, server: Global, cohort: Cohort) -> Global:
        cohort.mean(self.local, {"params": server.params})
        return server

    @phase("mean", params="model")
    def local(self, task: Task, message: Message, client: Client) -> Any:
        new = trained(task, message, client)
        return {"params": {**new, "linear1.bias": new["linear1.bias"][:2]}}, client.state


@dataclass(frozen=True)
class NotSent(Averages):
    """Names a model that was not sent."""

    @phase("mean", params=Part("model", of="anchor"))
    def local(self, task: Task, message: Message, client: Client) -> Any:
        return FedAvg().local(task, message, client)


def test_model_that_is_not_of_what_was_sent() -> None:
    assert "was sent as" in caught(check_recorded, OtherModel())
    assert "'anchor', which was not sent" in caught(check_recorded, NotSent())


@dataclass(frozen=True)
class OtherVerb(Planted):
    """Gathers what it declares to average."""

    def round(self, server: Global, cohort: Cohort) -> Global:
        got = cohort.gather(self.local, {"params": server.params})
        return Global(tree.weighted_mean(got.value["params"], got.sizes.float()))

    @phase("mean", params="model")
    def local(self, task: Task, message: Message, client: Client) -> Any:
        return FedAvg().local(task, message, client)


def test_verb_that_is_not_declared() -> None:
    assert "gather" in caught(check_recorded, OtherVerb(), by="DeclarationError")


@dataclass(frozen=True)
class SeesMore(Planted):
    """Looks at a part that it does not declare as seen."""

    def round(self, server: Global, cohort: Cohort) -> Global:
        got = cohort.weigh(self.local, {"params": server.params}, seen=("loss", "most"))
        return Global(got.mean["params"])

    @phase("weigh", seen=("loss",), params="model", loss="statistic", most="statistic")
    def local(self, task: Task, message: Message, client: Client) -> Any:
        losses = task.losses(message["params"], client.train) * client.train.weight
        reply = {"loss": losses.mean(), "most": losses.max()}
        return {"params": trained(task, message, client), **reply}, client.state


def test_seen_that_is_not_declared() -> None:
    assert "most" in caught(check_recorded, SeesMore(), by="DeclarationError")


@phase("mean", params="model")
def elsewhere(task: Task, message: Message, client: Client) -> Any:
    """A phase outside of the class, which its declarations do not list."""
    return FedAvg().local(task, message, client)


@dataclass(frozen=True)
class AsksElsewhere(Planted):
    """Asks a phase that is not its own."""

    def round(self, server: Global, cohort: Cohort) -> Global:
        return Global(cohort.mean(elsewhere, {"params": server.params})["params"])


def test_phase_outside_of_the_class() -> None:
    assert "not a declared phase of the class" in caught(check_recorded, AsksElsewhere())


@dataclass(frozen=True)
class SaysPersonal(Averages):
    """Says that its model is personal, and gives everyone the same."""

    @phase("mean", params="model")
    def local(self, task: Task, message: Message, client: Client) -> Any:
        return FedAvg().local(task, message, client)

    def personal(self, deployed: Any) -> bool:
        return True


@dataclass(frozen=True)
class SaysCommon(SaysPersonal):
    """Says that its model is common, and reads the client's state."""

    def init_client(self, task: Task, params: Params) -> Any:
        return {"params": params}

    def personal(self, deployed: Any) -> bool:
        return False

    def model(self, task: Task, deployed: Any, state: Any) -> Params:
        return tree.mix(deployed.params, state["params"], 0.5)


@pytest.mark.parametrize(
    ("kind", "words"), [(SaysPersonal, "does not read"), (SaysCommon, "reads the")]
)
def test_personal_that_is_not_true(kind: type[Algorithm], words: str) -> None:
    assert words in caught(check_recorded, kind())


@dataclass(frozen=True)
class NeverAsks(Averages):
    """Declares a phase and a verb that no round uses."""

    @phase("mean", "gather", params="model")
    def local(self, task: Task, message: Message, client: Client) -> Any:
        return FedAvg().local(task, message, client)

    @phase("sum", size="statistic")
    def count(self, task: Task, message: Message, client: Client) -> Any:
        return {"size": client.size}, client.state


def test_declared_and_never_asked() -> None:
    records: list[Record] = []
    check_recorded(NeverAsks(), kept=records)
    assert never_asked(NeverAsks, records) == {("local", "gather"), ("count", "sum")}


def test_a_correct_declaration_passes() -> None:
    records: list[Record] = []
    check_recorded(FedAvg(), kept=records)
    assert never_asked(FedAvg, records) == set()
