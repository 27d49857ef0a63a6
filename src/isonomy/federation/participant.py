"""A participant's process: it holds the table, and answers the organiser's messages.

It is bound to the charter that it agreed to (`bound`): whatever else is asked is refused, and the
organiser learns the reason, which never contains data.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from isonomy import algorithms
from isonomy.config.privacy import PrivacyConfig
from isonomy.core import tree
from isonomy.core.client import Pool
from isonomy.core.examples import SPLITS, Attribute
from isonomy.data.federation import Federation
from isonomy.data.tables import files, phases
from isonomy.data.tables.columns import Table
from isonomy.data.tables.federate import order_of, ranges_of
from isonomy.data.tables.preprocessing import Preprocessing, Schema
from isonomy.data.tables.schema_check import mismatches, unknown_to
from isonomy.errors import ConfigError, DataError, IsonomyError
from isonomy.federation import charter as charters
from isonomy.federation.bound import Bound, check_rows, without_rare
from isonomy.federation.charter import Charter, printable
from isonomy.federation.consent import shares_rows
from isonomy.federation.flower import codec, keys
from isonomy.federation.flower.identity import Identity, identity_of
from isonomy.federation.flower.phase_runner import AlgorithmPhases, PhaseRunner
from isonomy.federation.flower.secure_client import SecureClient
from isonomy.federation.flower.state_store import StateStore
from isonomy.privacy.example_plan import rehearse_examples
from isonomy.privacy.own_examples import OwnExamples
from isonomy.privacy.own_shares import OwnShares
from isonomy.privacy.secure.check import check as check_secure
from isonomy.privacy.secure.threshold import threshold_of
from isonomy.privacy.shares import shares_of
from isonomy.robust.rounding import rounding
from isonomy.runs.build import Setting, build, versions
from isonomy.runs.folder import RunFolder
from isonomy.runs.measurements import withholding
from isonomy.runs.middleware import client_side
from isonomy.runs.saved_model import card_of

Decide = Callable[[Charter], bool]
NOT_FITTING = (
    "its table and your example (data.path) differ in a column or in values of a group or of the "
    "label; ask that participant for its message, and correct the table or the example"
)


class DoesNotFitError(DataError):
    """The table does not fit the columns and values of the charter."""


class Participant:
    """One participant, from its first message to its last.

    `decide` is asked for consent to the charter, unless the charter's limits are below `rows` and
    `cell` (see the config's table `privacy`), its replies are not rounded without `exact`, or its
    method sends values of single rows without `share_rows`: then it is refused. With `secure`, so
    is a charter without secure aggregation, and with one if the process is not `lasting`. Once
    `ended` is set, either `error` says why, or the run is `complete`, `withheld` says whether it
    ended without a model, and `verdict` is the status of the method's verdict, if it gave one.
    """

    def __init__(
        self,
        data: Path,
        home: Path,
        *,
        decide: Decide,
        name: str = "",
        trust: tuple[str, ...] = (),
        rows: int = PrivacyConfig().rows,
        cell: int = PrivacyConfig().cell,
        exact: bool = False,
        share_rows: bool = False,
        secure: bool = False,
        key: Path | None = None,
        lasting: bool = True,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.data, self.home, self.name = data, home, name
        self._note = note
        self._decide, self._trust = decide, trust
        self._limits, self._exact, self._share_rows = (
            {"rows": rows, "cell": cell},
            exact,
            share_rows,
        )
        self._secure, self._lasting, self._key = secure, lasting, key
        self._lock = threading.Lock()
        self._leave()
        self.ended = threading.Event()
        self.error: IsonomyError | None = None
        self.complete = False
        self.withheld = False
        self.verdict: str | None = None  # its status
        self.answered = 0
        self.rows: int | None = None  # of training, once a charter is there

    def note(self, text: str) -> None:
        """Show a sentence to the user, without control characters that came with a message."""
        self._note(printable(text))

    def _leave(self) -> None:
        """Forget the charter, and everything that was made for it."""
        self._charter: Charter | None = None
        self._digest = ""
        self._bound: Bound | None = None
        self._client: phases.Client | None = None
        self._setting: Setting | None = None
        self._runner: PhaseRunner | None = None
        self._table: Table | None = None

    # --- messages ---------------------------------------------------------------------------------

    def answer(self, request: bytes) -> bytes:
        """The reply to a message; if it fails, the organiser learns why, but no data."""
        with self._lock:
            try:
                out = self._answer(request)
                self.answered += 1
                return out
            except codec.MalformedError as error:
                why = str(error)
                cause = "" if error.__cause__ is None else f" ({error.__cause__})"
                self.note(f"a message was refused: {why}{cause}.")
            except IsonomyError as error:
                why = "it has ended; see the output of `isonomy join` there"
                why = NOT_FITTING if isinstance(error, DoesNotFitError) else why
                self.error = type(error)(printable(str(error)))
                self.ended.set()
            except Exception as error:  # a bug must not end the participant
                why = "it could not answer; see the output of `isonomy join` there"
                self.note(f"a message could not be answered ({type(error).__name__}: {error}).")
            return codec.pack({"ok": False, "why": printable(why)})

    def _answer(self, request: bytes) -> bytes:
        head = codec.header(request)
        if self._charter is None and head.get("kind") != "hello":
            self._resume()
        if head.get("kind") == "hello":
            answer = self._hello(head)
            (self.home / "hello").write_bytes(request)
            return answer
        if self._bound is None or self._client is None:
            raise codec.MalformedError("it comes before a greeting")
        if head.get("charter") != self._digest:
            raise codec.MalformedError("it is not of the charter that was agreed to")
        match head.get("kind"):
            case "table":
                message = head.get("message")
                if not isinstance(message, dict):
                    raise codec.MalformedError("its question about the table cannot be read")
                phase = self._bound.check_table(head.get("phase"), message, self._client)
                if self._client.kept is None:
                    self._keep(phases.survey(self._charter_survey, self._client)[1])
                reply, kept = phase(message, self._client)
                if kept is not None:
                    self._keep(kept)
                return codec.pack({"ok": True, "reply": reply})
            case "phase" | "secure" if self._runner is not None:
                out = self._runner.answer(request)
                for text in self._bound.notes:
                    self.note(text)
                self._bound.notes.clear()
                return out
            case "end" if self._runner is not None:
                self._end(head, codec.unpack(request)[1])
                self._bound.ledger.end()
                return codec.pack({"ok": True})
        raise codec.MalformedError("it is not expected now")

    @property
    def _charter_survey(self) -> dict[str, Any]:
        assert self._charter is not None
        survey: dict[str, Any] = self._charter["survey"]
        return survey

    def _resume(self) -> None:
        """Continue from the last greeting, in a process that was started during a run."""
        if (self.home / "hello").exists():
            self._hello(codec.header((self.home / "hello").read_bytes()))

    def _hello(self, head: dict[str, Any]) -> bytes:
        charter, session, done = head.get("charter"), head.get("session"), head.get("done")
        charters.check(charter)
        assert isinstance(charter, dict)
        if head.get("run") != charter["run"] or not charters.is_id(session):
            raise codec.MalformedError("it names a run or a session without a proper id")
        digest, number = charters.digest(charter), self._own_number(charter, head.get("number"))
        if digest != self._digest:
            self._leave()  # with another charter, nothing of the old one may be used
            self._agree(charter, digest, number)
        assert self._bound is not None
        self._bound.ledger.admit_table("the client's number", str(number))  # it decides the split
        rounds = self._bound.config.rounds
        if not isinstance(done, int) or not 0 <= done <= rounds:
            raise codec.MalformedError("it names an unknown round")
        place = self.home / charter["run"]
        (place / "charter.json").write_text(json.dumps(charter, indent=1))
        if head.get("prepared") is not None:
            fitted = self._bound.check_prepared(head["prepared"])
            if self._runner is None:
                self._prepare(place, fitted)
        before = self._bound.ledger.session
        if self._runner is not None and self._bound.ledger.rewind(str(session), done):
            self._runner.store.rewind(done)
            if before:
                self.note(f"the server has started again and continues after round {done}.")
        return codec.pack({"ok": True, "name": self.name})

    def _own_number(self, charter: Charter, given: Any) -> int:
        """The participant's number: as the server knows it by the key or, without keys, by name."""
        if not self.name:
            if not isinstance(given, int) or not 0 <= given < len(charter["clients"]):
                raise codec.MalformedError("it names an unknown client")
            return given
        if self.name not in charter["clients"]:
            known = ", ".join(charter["clients"])
            raise ConfigError(
                f"--name {self.name}: the organiser does not expect this client; the clients are "
                f"{known}."
            )
        return int(charter["clients"].index(self.name))

    def _agree(self, charter: Charter, digest: str, number: int) -> None:
        """Check that the table fits, and ask for consent; it is asked once for each charter."""
        config = charters.config_of(charter)
        for name, least in self._limits.items():
            if getattr(config.privacy, name) < least:
                raise ConfigError(
                    f"this federation has privacy.{name} = {getattr(config.privacy, name)}, below "
                    f"your limit of {least}; ask the organiser to raise it, or join with --{name} "
                    f"{getattr(config.privacy, name)}."
                )
        for own in (config.algorithm.name, config.model.name):
            if ":" in own and own not in self._trust:
                raise ConfigError(
                    f"this federation runs '{own}', which is not part of isonomy; if you know this "
                    f"code and have installed it, join with --trust {own}."
                )
        if not config.privacy.rounding and not self._exact:
            raise ConfigError(
                "this federation has privacy.rounding = false, so that single rows can be read "
                "from replies to models that were made for it; if you agree, join with --exact."
            )
        if self._secure and not config.secure.enabled:
            raise ConfigError(
                "this federation does not use secure aggregation, so the organiser sees each of "
                "your replies; ask the organiser for secure = true, or join without --secure."
            )
        if self._secure and self._key is not None and charters.PEERS not in charter:
            raise ConfigError(
                "the charter does not list the participants' keys, so the organiser could take the "
                "place of all others; ask the organiser for them, or join without --secure."
            )
        if config.secure.enabled and not self._lasting:
            raise ConfigError(
                "this federation uses secure aggregation, whose secrets are in memory only, but "
                "here every message has a process of its own; take part with `isonomy join`."
            )
        wrong = mismatches(self._open(charter), charters.schema_of(charter))
        if wrong:
            more = f" (And: {' '.join(wrong[1:])})" if len(wrong) > 1 else ""
            raise self._does_not_fit(f"{wrong[0]}{more}", charters.schema_of(charter))
        client = phases.Client(number, charter["clients"][number], self._open(charter), None)
        self.rows = check_rows(charter, client)
        self._identity_in(charter, number)
        algorithm = algorithms.make(config.algorithm.name, config.algorithm.options)
        check_secure(config, algorithm, len(charter["clients"]))
        if shares_rows(config, algorithm) and not self._share_rows:
            raise ConfigError(
                f"the method '{config.algorithm.name}' sends values of single rows to the "
                "organiser; if you agree to that, join with --share-rows."
            )
        agreed = self.home / "agreed"
        known = agreed.read_text().split() if agreed.exists() else []
        if digest not in known:
            if not self._decide(charter):
                raise ConfigError("you did not agree, so nothing was sent.")
            self.home.mkdir(parents=True, exist_ok=True)
            agreed.write_text("\n".join([*known, digest]) + "\n")
        place = self.home / charter["run"]
        place.mkdir(parents=True, exist_ok=True)
        self._charter, self._digest, self._client = charter, digest, client
        self._bound = Bound(charter, place)

    def _does_not_fit(self, wrong: str, schema: Schema) -> DoesNotFitError:
        """The error for the user; the organiser learns only that the table does not fit."""
        assert self._table is not None
        lacking = " and ".join(f"'{name}'" for name in unknown_to(schema, self._table))
        what = f"'{self.data}' does not fit this federation: {wrong} Nothing was sent;"
        if not lacking:
            return DoesNotFitError(f"{what} fix the table and join again.")
        return DoesNotFitError(
            f"{what} if the values of {lacking} are misspelt, fix the table and join again; if "
            "they are right, the organiser's example lacks them: ask the organiser to add rows "
            "with these values to it and to serve again."
        )

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

    def _prepare(self, place: Path, fitted: Preprocessing) -> None:
        """Turn the table into tensors, build the run, and open the stored states."""
        assert self._charter is not None
        assert self._client is not None
        assert self._bound is not None
        self._keep(phases.survey(self._charter["survey"], self._client)[1])
        config, cell = self._bound.config, self._bound.config.privacy.cell
        federation = own_rows(fitted, self._client, cell)
        config = config.model_copy(update={"versions": versions()})
        clients = len(self._charter["clients"])
        setting = build(config, self.note, federation=federation, clients=clients)
        initial = setting.algorithm.init_client(setting.task, setting.params)
        self._bound.prepare(setting)
        private = self._private(setting, place)
        self._runner = PhaseRunner(
            self._client.number,
            setting.task,
            Pool(federation.x, federation.y, federation.groups),
            federation.ranges,
            StateStore(initial, place / "state"),
            AlgorithmPhases(setting.algorithm, withholding(cell, rounded=config.privacy.rounding)),
            # rounding to what a row adds depends on rows, which private gradients must not
            around=(
                *(private or ((rounding,) if config.privacy.rounding else ())),
                *client_side(setting),
            ),
            agreement=self._bound,
            masking=self._masking(federation, clients, place),
        )
        self._place, self._setting = place, setting
        self._fitted = fitted.model_dump(mode="json")

    def _private(self, setting: Setting, place: Path) -> tuple[OwnExamples, ...]:
        """Private gradients and their count, at level 'example'; notes the epsilon to expect."""
        given, work = setting.config.privacy, setting.config.local
        if given.level != "example":
            return ()
        training = rehearse_examples(
            setting.algorithm, setting.task, setting.federation, work, given.batches
        )
        size = int(setting.federation.sizes()[0])
        place.mkdir(parents=True, exist_ok=True)
        made = OwnExamples(given, training, size, place / "privacy.json")
        planned = made.planned(work, setting.config.rounds)
        budget = "" if given.epsilon is None else f", and answers stop at {given.epsilon:g}"
        self.note(
            f"Differential privacy of your {size} training rows: epsilon = {planned:.4g} at delta "
            f"= {given.delta:g} after all {setting.config.rounds} rounds{budget}; your own program "
            f"adds the noise and counts it in '{made.file}'."
        )
        return (made,)

    def _masking(self, federation: Federation, clients: int, place: Path) -> SecureClient | None:
        """What masks the replies of training, if the charter says so."""
        assert self._bound is not None
        assert self._client is not None
        config = self._bound.config
        if not config.secure.enabled:
            return None
        shares = shares_of(config, clients, config.privacy.noise or 0.0)
        file = place / "privacy.json"
        number = self._client.number
        return SecureClient(
            number,
            int(federation.sizes()[0]),
            threshold_of(config, clients),
            config.secure,
            capped=config.cohort.max_weight < 1,
            identity=self._identity_in(self._bound.charter, number),
            noise=None if shares is None else OwnShares(config.privacy, shares, number, file),
        )

    def _identity_in(self, charter: Charter, number: int) -> Identity | None:
        """What the participant signs its keys with, if the charter lists everyone's."""
        own = None if self._key is None else keys.private_key(self._key)
        return identity_of(own, charter["clients"][number], charter.get(charters.PEERS))

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


def own_rows(fitted: Preprocessing, client: phases.Client, least: int) -> Federation:
    """A federation of this client alone, with its rows preprocessed as everyone's are."""
    schema = fitted.table
    assert client.kept is not None
    shown = without_rare(client.table, dict(schema.features), client.kept, least)
    order = order_of(client.kept)
    target = schema.target(client.table)[0][order]
    sizes = [int((client.kept == s).sum()) for s in range(len(SPLITS))]
    return Federation(
        x=torch.from_numpy(np.ascontiguousarray(fitted.transform(shown)[order])),
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
