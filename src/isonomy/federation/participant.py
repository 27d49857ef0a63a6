"""A participant's process: it holds the table, and answers the organiser's messages."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from isonomy.core import tree
from isonomy.core.client import Pool
from isonomy.core.examples import SPLITS, Attribute
from isonomy.data.federation import Federation
from isonomy.data.tables import files, phases, preprocessing
from isonomy.data.tables.columns import Table
from isonomy.data.tables.federate import order_of, ranges_of
from isonomy.data.tables.schema_check import mismatches
from isonomy.errors import ConfigError, DataError, IsonomyError
from isonomy.federation import charter as charters
from isonomy.federation.charter import Charter
from isonomy.federation.flower import codec
from isonomy.federation.flower.phase_runner import AlgorithmPhases, PhaseRunner
from isonomy.federation.flower.state_store import StateStore
from isonomy.runs.build import Setting, build, versions
from isonomy.runs.folder import RunFolder
from isonomy.runs.measurements import measurement
from isonomy.runs.middleware import client_side
from isonomy.runs.saved_model import card_of

TABLE_PHASES = {p.__name__: p for p in (phases.look, phases.values, phases.span, phases.below)}
TABLE_PHASES["survey"] = phases.survey
Decide = Callable[[Charter], bool]


class Participant:
    """One participant, from its first message to its last.

    `decide` is asked for consent to the charter. Once `ended` is set, either `error` says why, or
    the run is `complete`, `withheld` says whether it ended without a model, and `verdict` is the
    status of the method's verdict, if it gave one.
    """

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
        self._setting: Setting | None = None
        self._runner: PhaseRunner | None = None
        self._table: Table | None = None
        self.ended = threading.Event()
        self.error: IsonomyError | None = None
        self.complete = False
        self.withheld = False
        self.verdict: str | None = None  # its status
        self.answered = 0

    # --- messages ---------------------------------------------------------------------------------

    def answer(self, request: bytes) -> bytes:
        """The reply to a message; if it fails, the organiser learns only that it did."""
        with self._lock:
            try:
                out = self._answer(request)
                self.answered += 1
                return out
            except codec.MalformedError as error:
                self.note(f"a message was refused: {error}.")
            except IsonomyError as error:
                self.error = error
                self.ended.set()
            except Exception as error:  # a bug must not end the participant
                self.note(f"a message could not be answered ({type(error).__name__}: {error}).")
            return codec.pack({"ok": False})

    def _answer(self, request: bytes) -> bytes:
        head = codec.header(request)
        if self._charter is None and head.get("kind") != "hello":
            self._resume()
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
            case "phase" if self._runner is not None:
                return self._runner.answer(request)
            case "end" if self._runner is not None:
                self._end(head, codec.unpack(request)[1])
                return codec.pack({"ok": True})
        raise codec.MalformedError("it is not expected now")

    def _resume(self) -> None:
        """Continue from the last greeting, in a process that was started during a run."""
        if (self.home / "hello").exists():
            self._hello(codec.header((self.home / "hello").read_bytes()))

    def _hello(self, head: dict[str, Any]) -> bytes:
        charter = dict(head["charter"])
        if self._charter is None or charters.digest(charter) != charters.digest(self._charter):
            self._agree(charter)
        assert self._charter is not None
        place = self.home / str(head["run"])
        place.mkdir(parents=True, exist_ok=True)
        self._number = self._own_number(charter, int(head["number"]))
        self._client = phases.Client(
            self._number, charter["clients"][self._number], self._open(charter), None
        )
        (place / "charter.json").write_text(json.dumps(charter, indent=1))
        if head["prepared"] is not None and self._runner is None:
            self._prepare(place, head["prepared"])
        if self._runner is not None:
            self._rewind(place, str(head["session"]), int(head["done"]))
        return codec.pack({"ok": True, "name": self.name})

    def _own_number(self, charter: Charter, given: int) -> int:
        """The participant's number: as the server knows it by the key or, without keys, by name."""
        if not self.name:
            return given
        if self.name not in charter["clients"]:
            known = ", ".join(charter["clients"])
            raise ConfigError(
                f"--name {self.name}: the organiser does not expect this client; the clients are "
                f"{known}."
            )
        return int(charter["clients"].index(self.name))

    def _agree(self, charter: Charter) -> None:
        """Check that the table fits, and ask for consent; it is asked once for each charter."""
        config = charters.config_of(charter)
        for own in (config.algorithm.name, config.model.name):
            if ":" in own and own not in self._trust:
                raise ConfigError(
                    f"this federation runs '{own}', which is not part of isonomy; if you know this "
                    f"code and have installed it, join with --trust {own}."
                )
        wrong = mismatches(self._open(charter), charters.schema_of(charter))
        if wrong:
            more = f" (And: {' '.join(wrong[1:])})" if len(wrong) > 1 else ""
            raise DataError(
                f"'{self.data}' does not fit this federation: {wrong[0]}{more} Nothing was sent; "
                "fix the table and join again."
            )
        agreed = self.home / "agreed"
        digest = charters.digest(charter)
        known = agreed.read_text().split() if agreed.exists() else []
        if digest not in known:
            if not self._decide(charter):
                raise ConfigError("you did not agree, so nothing was sent.")
            self.home.mkdir(parents=True, exist_ok=True)
            agreed.write_text("\n".join([*known, digest]) + "\n")
        self._charter = charter

    def _open(self, charter: Charter) -> Table:
        """The participant's table."""
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

    # --- training ---------------------------------------------------------------------------------

    def _prepare(self, place: Path, fitted: dict[str, Any]) -> None:
        """Turn the table into tensors, build the run, and open the stored states."""
        assert self._charter is not None
        assert self._client is not None
        self._keep(phases.survey(self._charter["survey"], self._client)[1])
        config = charters.config_of(self._charter)
        federation = own_rows(preprocessing.of(fitted), self._client)
        config = config.model_copy(update={"versions": versions()})
        clients = len(self._charter["clients"])
        setting = build(config, self.note, federation=federation, clients=clients)
        initial = setting.algorithm.init_client(setting.task, setting.params)
        self._runner = PhaseRunner(
            self._number,
            setting.task,
            Pool(federation.x, federation.y, federation.groups),
            federation.ranges,
            StateStore(initial, place / "state"),
            AlgorithmPhases(setting.algorithm, measurement),
            around=client_side(setting),
        )
        self._place, self._fitted, self._setting = place, fitted, setting

    def _rewind(self, place: Path, session: str, done: int) -> None:
        """Go back to the rounds that a restarted server has completed."""
        assert self._runner is not None
        mark = place / "session"
        if not mark.exists() or mark.read_text() != session:
            self._runner.store.rewind(done)
            mark.write_text(session)

    def _end(self, head: dict[str, Any], deployed: Any) -> None:
        """Write the result as a run that `isonomy predict` can use; it may be without a model."""
        assert self._runner is not None
        assert self._setting is not None
        verdict, self.withheld = head.get("verdict"), head.get("withheld") is True
        if verdict is not None and not isinstance(verdict, dict):
            raise codec.MalformedError("its verdict cannot be read")
        self.verdict = None if verdict is None else str(verdict.get("status"))
        result = RunFolder(self.result)
        result.create(self._setting.config, overwrite=True)
        state = tree.tmap(lambda t: t.unsqueeze(0), self._runner.store.load())
        summary: dict[str, Any] = {"metrics": {}, "notes": [], "facts": {}}
        model = None if self.withheld else {"server": deployed, "clients": state}
        setting = self._setting
        card = card_of(setting.config, setting.task, setting.federation)
        result.finish(model, card, summary, self._fitted, verdict)
        self.complete = True
        self.ended.set()

    @property
    def result(self) -> Path:
        """The folder of the result."""
        return self._place / "result"


def own_rows(fitted: preprocessing.Preprocessing, client: phases.Client) -> Federation:
    """A federation of this client alone, with its rows preprocessed as everyone's are."""
    schema = fitted.table
    assert client.kept is not None
    order = order_of(client.kept)
    target = schema.target(client.table)[0][order]
    sizes = [int((client.kept == s).sum()) for s in range(len(SPLITS))]
    return Federation(
        x=torch.from_numpy(np.ascontiguousarray(fitted.transform(client.table)[order])),
        y=torch.from_numpy(np.ascontiguousarray(target)),
        groups=torch.from_numpy(schema.group_codes(client.table)[order]),
        ranges=torch.from_numpy(ranges_of([sizes])),
        classes=len(schema.label.classes),
        attributes=tuple(Attribute(name, schema.levels(name)) for name in schema.protected),
        names=(client.name,),
        labels=schema.label.classes,
        features=fitted.features,
        source=client.table.place or client.name,
    )
