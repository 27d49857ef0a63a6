"""A participant: it holds the table and what is its own, and answers the organiser's messages."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from isonomy import algorithms
from isonomy.core import tree
from isonomy.core.client import Pool
from isonomy.core.examples import SPLITS, Attribute
from isonomy.data.federation import Federation
from isonomy.data.tables import files, phases
from isonomy.data.tables import preprocessing as prepared
from isonomy.data.tables.columns import Table
from isonomy.data.tables.federate import order_of, ranges_of
from isonomy.data.tables.schema_check import mismatches
from isonomy.errors import ConfigError, DataError, IsonomyError
from isonomy.federation import charter as charters
from isonomy.federation.charter import Charter
from isonomy.federation.flower import codec
from isonomy.federation.flower.phase_runner import OfAlgorithm, Participant
from isonomy.federation.flower.state_store import Store
from isonomy.models import make_task
from isonomy.runs.build import versions
from isonomy.runs.folder import RunFolder
from isonomy.runs.front import measurement
from isonomy.runs.saved_model import card_of

TABLE_PHASES = {p.__name__: p for p in (phases.look, phases.values, phases.span, phases.below)}
TABLE_PHASES["survey"] = phases.survey
Decide = Callable[[Charter], bool]


class Member:
    """One participant, from its first message to its last."""

    def __init__(
        self,
        data: Path,
        home: Path,
        *,
        decide: Decide,
        name: str = "",
        trust: tuple[str, ...] = (),
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.data, self.home, self.name, self.note = data, home, name, note
        self._decide, self._trust = decide, trust
        self._lock = threading.Lock()
        self._charter: Charter | None = None
        self._number = 0
        self._client: phases.Client | None = None
        self._participant: Participant | None = None
        self._table: Table | None = None
        self.ended = threading.Event()  # whether it is over, for one of these reasons:
        self.trouble: IsonomyError | None = None
        self.complete = False
        self.answered = 0

    # --- messages ---------------------------------------------------------------------------------

    def answer(self, request: bytes) -> bytes:
        """What to reply; of what goes wrong here the organiser learns only that it did."""
        with self._lock:
            try:
                out = self._answer(request)
                self.answered += 1
                return out
            except codec.MalformedError as error:
                self.note(f"a message was refused: {error}.")
            except IsonomyError as error:
                self.trouble = error
                self.ended.set()
            except Exception as error:  # a fault of ours must not end the participant
                self.note(f"a message could not be answered ({type(error).__name__}: {error}).")
            return codec.pack({"ok": False})

    def _answer(self, request: bytes) -> bytes:
        head = codec.header(request)
        if self._charter is None and head.get("kind") != "hello":
            self._again()
        match head.get("kind"):
            case "hello":
                answer = self._hello(head)
                (self.home / "hello").write_bytes(request)
                return answer
            case "table" if self._client is not None and head.get("phase") in TABLE_PHASES:
                phase = TABLE_PHASES[head["phase"]]
                if self._client.kept is None and head["message"].get("train"):
                    assert self._charter is not None
                    self._keep(phases.survey(self._charter["survey"], self._client)[1])
                reply, kept = phase(head["message"], self._client)
                if kept is not None:
                    self._keep(kept)
                return codec.pack({"ok": True, "reply": reply})
            case "phase" if self._participant is not None:
                return self._participant.answer(request)
            case "end" if self._participant is not None:
                self._end(codec.unpack(request)[1])
                return codec.pack({"ok": True})
        raise codec.MalformedError("it does not belong here")

    def _again(self) -> None:
        """A new process, in the middle of a run: go on from the last greeting."""
        if (self.home / "hello").exists():
            self._hello(codec.header((self.home / "hello").read_bytes()))

    def _hello(self, head: dict[str, Any]) -> bytes:
        charter = dict(head["charter"])
        if self._charter is None or charters.digest(charter) != charters.digest(self._charter):
            self._agree(charter)
        assert self._charter is not None
        place = self.home / str(head["run"])
        place.mkdir(parents=True, exist_ok=True)
        self._number = self._which(charter, int(head["number"]))
        self._client = phases.Client(
            self._number, charter["clients"][self._number], self._open(charter), None
        )
        (place / "charter.json").write_text(json.dumps(charter, indent=1))
        if head["prepared"] is not None and self._participant is None:
            self._prepare(place, head["prepared"])
        if self._participant is not None:
            self._session(place, str(head["session"]), int(head["done"]))
        return codec.pack({"ok": True, "name": self.name})

    def _which(self, charter: Charter, told: int) -> int:
        """One's number: as the server knows it by the key, or, without keys, by one's name."""
        if not self.name:
            return told
        if self.name not in charter["clients"]:
            known = ", ".join(charter["clients"])
            raise ConfigError(f"no '{self.name}' is expected here; the clients are {known}.")
        return int(charter["clients"].index(self.name))

    def _agree(self, charter: Charter) -> None:
        """Look whether the table fits, and ask; what was agreed to is not asked again."""
        config = charters.config_of(charter)
        for own in (config.algorithm.name, config.model.name):
            if ":" in own and own not in self._trust:
                raise ConfigError(
                    f"this federation runs '{own}', code that is not part of isonomy; if you know "
                    f"it and have it installed, join with --trust {own}."
                )
        wrong = mismatches(self._open(charter), charters.schema_of(charter))
        if wrong:
            more = f" (And: {' '.join(wrong[1:])})" if len(wrong) > 1 else ""
            raise DataError(
                f"'{self.data}' does not fit this federation: {wrong[0]}{more} Nothing was sent; "
                "mend the table and join again."
            )
        agreed = self.home / "agreed"
        mark = charters.digest(charter)
        known = agreed.read_text().split() if agreed.exists() else []
        if mark not in known:
            if not self._decide(charter):
                raise ConfigError("you did not agree, so nothing was sent.")
            self.home.mkdir(parents=True, exist_ok=True)
            agreed.write_text("\n".join([*known, mark]) + "\n")
        self._charter = charter

    def _open(self, charter: Charter) -> Table:
        if self._table is None:
            missing = charters.schema_of(charter).missing
            encoding = charter["config"]["data"].get("encoding", "utf-8")
            self._table = files.read(self.data, missing, encoding)
        return self._table

    def _keep(self, kept: phases.Kept) -> None:
        assert self._client is not None
        self._client = phases.Client(
            self._client.number, self._client.name, self._client.table, kept
        )

    # --- what it trains on ------------------------------------------------------------------------

    def _prepare(self, place: Path, fitted: dict[str, Any]) -> None:
        """Turn the table into tensors, and find what was kept before."""
        assert self._charter is not None
        assert self._client is not None
        self._keep(phases.survey(self._charter["survey"], self._client)[1])
        config = charters.config_of(self._charter)
        federation = own_rows(prepared.of(fitted), self._client)
        model = config.model
        task = make_task(
            model.name, federation, model.options, loss=model.loss, convert=model.convert
        )
        algorithm = algorithms.make(config.algorithm.name, config.algorithm.options)
        store = Store(algorithm.init_client(task, task.init(config.seed)), place / "state")
        pool = Pool(federation.x, federation.y, federation.groups)
        known = OfAlgorithm(algorithm, measurement)
        self._participant = Participant(self._number, task, pool, federation.ranges, store, known)
        self._place, self._fitted, self._federation = place, fitted, federation

    def _session(self, place: Path, session: str, done: int) -> None:
        """A server that was started again does some rounds anew: go back to where it is."""
        assert self._participant is not None
        mark = place / "session"
        if not mark.exists() or mark.read_text() != session:
            self._participant.store.back_to(done)
            mark.write_text(session)

    def _end(self, deployed: Any) -> None:
        """Keep the model with one's own part of it, as a run that `isonomy predict` can use."""
        assert self._participant is not None
        assert self._charter is not None
        config = charters.config_of(self._charter).model_copy(update={"versions": versions()})
        result = RunFolder(self._place / "result")
        result.create(config, overwrite=True)
        state = tree.tmap(lambda t: t.unsqueeze(0), self._participant.store.load())
        card = card_of(config, self._participant.task, self._federation)
        summary: dict[str, Any] = {"metrics": {}, "notes": [], "facts": {}}
        result.finish({"server": deployed, "clients": state}, card, summary, self._fitted)
        self.complete = True
        self.ended.set()

    @property
    def result(self) -> Path:
        """Where the model is."""
        return self._place / "result"


def own_rows(prepared_by: prepared.Preprocessing, client: phases.Client) -> Federation:
    """A federation of this client alone, its rows prepared as everyone's are."""
    schema = prepared_by.table
    assert client.kept is not None
    order = order_of(client.kept)
    target = schema.target(client.table)[0][order]
    sizes = [int((client.kept == s).sum()) for s in range(len(SPLITS))]
    return Federation(
        x=torch.from_numpy(np.ascontiguousarray(prepared_by.transform(client.table)[order])),
        y=torch.from_numpy(np.ascontiguousarray(target)),
        groups=torch.from_numpy(schema.group_codes(client.table)[order]),
        ranges=torch.from_numpy(ranges_of([sizes])),
        classes=len(schema.label.classes),
        attributes=tuple(Attribute(name, schema.levels(name)) for name in schema.protected),
        names=(client.name,),
        labels=schema.label.classes,
        features=prepared_by.features,
        source=client.table.place or client.name,
    )
