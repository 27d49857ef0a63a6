"""Messages to a participant, charters, and replies to an organiser."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st

from attacks.organiser import SESSION, Dishonest
from federation.participants import NAMES, NODES
from fuzz.fuzzer import Fuzzer, Try
from fuzz.guard import Bug, attempt
from fuzz.mutations import as_json, edited, edits
from isonomy.core import tree
from isonomy.core.algorithm import Global
from isonomy.core.cohort import Ask
from isonomy.core.work import Work
from isonomy.errors import RunError
from isonomy.federation import charter as charters
from isonomy.federation import organiser
from isonomy.federation.consent import consent_text
from isonomy.federation.flower import codec
from isonomy.federation.flower.engine import Flower
from isonomy.federation.flower.phase_runner import request
from isonomy.federation.flower.transport import InProcessTransport
from isonomy.federation.participant import Participant
from isonomy.federation.sessions import Sessions

Message = tuple[dict[str, Any], Any]  # a header and a tree
WORDS = [["rounds=3", "data.impute=median"], ["rounds=3", "algorithm=fedfb", "algorithm.least=1"]]
PLAIN = ("privacy.cell=1", "privacy.rows=8", "privacy.rounding=false")


# --- changes of messages --------------------------------------------------------------------------

_tensor = st.tuples(
    st.integers(0, 50),
    st.sampled_from(["nan", "inf", "huge", "short", "long", "flat", "int", "half", "drop", "none"]),
).map(list)
_byte = st.tuples(st.integers(0, 10**6), st.integers(0, 255)).map(list)
_change = st.fixed_dictionaries(
    {"of": st.integers(0, 30)},
    optional={
        "head": edits(most=2),
        "tensors": st.lists(_tensor, max_size=2),
        "bytes": st.lists(_byte, max_size=2),
    },
)
_some = st.lists(_change, min_size=1, max_size=3).map(as_json)


def _changed(message: Message, change: dict[str, Any]) -> bytes:
    """The bytes of a message with changes."""
    head, value = message
    head = edited(head, change.get("head", ()))
    if not isinstance(head, dict):
        head = {"head": head}
    made = tree.tmap(lambda t: t.clone(), value)
    for number, what in change.get("tensors", ()):
        made = _with_odd_leaf(made, number, what)
    try:
        content = bytearray(codec.pack(head, made))
    except (TypeError, ValueError):  # it cannot be sent at all
        return b""
    for at, byte in change.get("bytes", ()):
        content[at % len(content)] = byte
    return bytes(content)


def _with_odd_leaf(value: Any, number: int, what: str) -> Any:
    """The tree with one tensor changed, or removed."""
    leaves = tree.leaves(value)
    if not leaves:
        return value
    at = number % len(leaves)
    count = iter(range(len(leaves)))

    def odd(t: torch.Tensor) -> torch.Tensor:
        if next(count) != at:
            return t
        changes: dict[str, Callable[[], torch.Tensor]] = {
            "nan": lambda: torch.full_like(t.double(), float("nan")).to(t.dtype),
            "inf": lambda: torch.full_like(t.double(), float("inf")).float(),
            "huge": lambda: torch.full_like(t.double(), 3e38).float(),
            "short": lambda: t[:0] if t.ndim else t,
            "long": lambda: torch.cat([t, t]) if t.ndim else t,
            "flat": lambda: t.flatten(),
            "int": lambda: torch.zeros_like(t, dtype=torch.int64),
            "half": lambda: t.half(),
        }
        return changes.get(what, lambda: t)()

    if what == "drop" and isinstance(value, dict):
        return {k: v for i, (k, v) in enumerate(value.items()) if i != number % len(value)}
    return () if what == "none" else tree.tmap(odd, value)


# --- messages to a participant --------------------------------------------------------------------


class Prepared:
    """A participant that has agreed and is prepared, in a folder that is copied for each case."""

    def __init__(self, folder: Path, words: list[str]) -> None:
        self.folder = folder
        self.dishonest = Dishonest(folder, *words, *PLAIN)
        self.own = folder / "homes" / "east"
        self.copy = folder / "copy"
        self.messages = self._messages()

    def _messages(self) -> list[Message]:
        """One of each kind that an honest organiser sends."""
        made = self.dishonest
        params, digest = made.setting.params, made.sessions.digest
        fitted = made.plan.about["fitted"]["preprocessing"]
        hello = {"kind": "hello", "run": made.charter["run"], "session": SESSION, "done": 0}
        hello |= {"charter": made.charter, "number": 0, "prepared": fitted}
        survey = {"kind": "table", "charter": digest, "phase": "survey"}
        grid = {"column": "age", "low": 17.0, "high": 90.0, "least": 1}
        end = {"kind": "end", "charter": digest, "withheld": False, "verdict": None}
        out: list[Message] = [
            (hello, ()),
            (hello | {"session": "6" * 32, "done": 1}, ()),
            (survey | {"message": made.charter["survey"]}, ()),
            (survey | {"phase": "grid", "message": grid}, ()),
            (end, params),
            (end | {"withheld": True, "verdict": {"status": "met"}}, ()),
        ]
        names = ["local"] if made.setting.algorithm.name == "fedavg" else ["measure", "train"]
        for round, name in enumerate(names):
            out.append((self._head(name, round), {"params": params}))
        out.append((self._head("measure:test", 2), {"model": Global(params)}))
        return out

    def _head(self, name: str, round: int) -> dict[str, Any]:
        made, config = self.dishonest, self.dishonest.plan.config
        reads = name.startswith("measure:")
        work = Work(steps=1) if reads else config.local
        rate = work.lr if reads else config.local.rate(round, config.rounds)
        ask = Ask(made.names.find(name), (), work, round, rate, torch.tensor([0]))
        return request(ask, name, config.seed, 0, made.sessions.digest)

    def participant(self, notes: list[str], *, fresh: bool = False) -> Participant:
        """A process that was started anew in the prepared folder, or in an empty one."""
        shutil.rmtree(self.copy, ignore_errors=True)
        if fresh:
            self.copy.mkdir()
        else:
            shutil.copytree(self.own, self.copy)
        table = self.folder / "tables" / "east.csv"

        def decide(charter: Any) -> bool:
            consent_text(charter)
            return True

        return Participant(
            table, self.copy, decide=decide, rows=1, cell=1, exact=True, note=notes.append
        )


def _answered(member: Participant, content: bytes, notes: list[str]) -> bool:
    """Whether a message is answered; raises what is neither an answer nor a refusal."""
    answer = attempt(lambda: member._answer(content))  # without the handler of all exceptions
    for text in notes:
        if not text.isprintable():
            raise Bug(f"a note with control characters: {text!r}")
    return answer is not None and codec.header(answer)["ok"] is True


@contextmanager
def messages(folder: Path) -> Iterator[Try]:
    prepared = [Prepared(folder / str(k), words) for k, words in enumerate(WORDS)]

    def one(case: bytes) -> None:
        changes = json.loads(case)
        one_of = prepared[changes[0]["of"] % len(prepared)]
        notes: list[str] = []
        member = one_of.participant(notes)
        for change in changes:
            sample = one_of.messages[change["of"] // len(prepared) % len(one_of.messages)]
            _answered(member, _changed(sample, change), notes)

    yield one


@contextmanager
def greetings(folder: Path) -> Iterator[Try]:
    """Charters of an organiser, each to a participant that has agreed to nothing yet."""
    prepared = [Prepared(folder / str(k), words) for k, words in enumerate(WORDS)]

    def one(case: bytes) -> None:
        change = json.loads(case)
        one_of = prepared[change["of"] % len(prepared)]
        charter = edited(one_of.dishonest.charter, change["charter"])
        attempt(lambda: charters.check(charter))
        notes: list[str] = []
        member = one_of.participant(notes, fresh=True)
        hello = one_of.messages[0][0] | {"charter": charter, "prepared": None}
        if isinstance(charter, dict):
            hello["run"] = charter.get("run")
        before = set(one_of.copy.rglob("*"))
        agreed = _answered(member, codec.pack(hello), notes)
        if not agreed:
            if set(one_of.copy.rglob("*")) != before:
                raise Bug("a charter that was refused left files")
            return
        about = {"kind": "table", "phase": "survey", "charter": charters.digest(charter)}
        survey = codec.pack(about | {"message": charter["survey"]})
        _answered(member, survey, notes)
        fitted = one_of.messages[0][0]["prepared"]
        _answered(member, codec.pack(hello | {"prepared": fitted}), notes)

    yield one


_charter = st.fixed_dictionaries({"of": st.integers(0, 1), "charter": edits(most=3)}).map(as_json)


# --- replies to an organiser ----------------------------------------------------------------------


class Recorded:
    """An organiser, and the replies that honest participants give it."""

    def __init__(self, folder: Path, words: list[str]) -> None:
        made = self.made = Dishonest(folder, *words, *PLAIN)
        survey = {"kind": "table", "phase": "survey", "charter": made.sessions.digest}
        survey |= {"message": made.charter["survey"]}
        self.surveys = [self._ask(name, survey) for name in NAMES]
        setting = made.setting
        self.engine = Flower(
            setting.task,
            setting.federation,
            transport=InProcessTransport({}),
            phases=made.names,
            seed=made.plan.config.seed,
            charter=made.sessions.digest,
        )
        self.engine.reset(setting.algorithm.init_client(setting.task, setting.params))
        first = "local" if setting.algorithm.name == "fedavg" else "measure"
        self.asks = [self._phase(first, {"params": setting.params}, 0)]
        self.asks.append(self._phase("measure:test", {"model": Global(setting.params)}, 2))
        self.replies = [[self._reply(ask, name) for name in NAMES] for ask in self.asks]

    def _ask(self, name: str, head: dict[str, Any], value: Any = ()) -> Message:
        answer = self.made.participants[name].answer(codec.pack(head, value))
        head, value = codec.unpack(answer)
        assert head["ok"] is True, head
        return head, value

    def _phase(self, name: str, message: Any, round: int) -> Ask:
        config = self.made.plan.config
        reads = name.startswith("measure:")
        work = Work(steps=1) if reads else config.local
        rate = work.lr if reads else config.local.rate(round, config.rounds)
        phase = self.made.names.find(name)
        return Ask(phase, message, work, round, rate, torch.tensor([0, 1, 2]), cohort=3)

    def _reply(self, ask: Ask, name: str) -> Message:
        seed, digest = self.made.plan.config.seed, self.made.sessions.digest
        head = request(ask, self.made.names.name(ask.phase), seed, 0, digest)
        return self._ask(name, head, ask.message)

    def tables(self, contents: Mapping[int, bytes]) -> None:
        """Fit the preprocessing from replies about tables."""

        class Fixed:
            def nodes(self) -> set[int]:
                return set(contents)

            def ask(self, requests: Any, *_: Any) -> Iterator[tuple[int, bytes]]:
                for node, content in requests.items():
                    greeting = codec.header(content)["kind"] == "hello"
                    yield node, codec.pack({"ok": True}) if greeting else contents[node]

        plan = self.made.plan
        charter = plan.about["charter"]
        sessions = Sessions(
            Fixed(),  # type: ignore[arg-type]
            charter,
            session=SESSION,
            done=0,
            timeout=1.0,
            nodes=NODES,
        )
        try:
            fitted = organiser._fit(plan, sessions, lambda _: None)
        except RunError as error:
            if "unexpected form" in str(error):
                raise Bug(str(error)) from error
            raise
        json.dumps(fitted, allow_nan=False)
        about = plan.about | {"fitted": fitted}
        organiser.placeholder(organiser.Plan(plan.place, plan.config, about))

    def phase(self, number: int, contents: Mapping[int, bytes]) -> None:
        """Read replies to a phase, as in a round."""
        ask = self.asks[number]
        self.engine.transport = InProcessTransport(
            {k: lambda _, content=content: content for k, content in contents.items()}  # type: ignore[misc]
        )
        got = [replies.ids.tolist() for replies in self.engine.exchange(ask)]
        for fault in self.engine.take_faults():
            if not fault.why.isprintable() or len(fault.why) > 500:
                raise Bug(f"not a reason: {fault.why!r:.300}")
            if [fault.client] in got:
                raise Bug("a reply was used and refused")


@contextmanager
def replies(folder: Path) -> Iterator[Try]:
    recorded = [Recorded(folder / str(k), words) for k, words in enumerate(WORDS)]

    def one(case: bytes) -> None:
        changes = json.loads(case)
        kind = changes[0]["of"]
        one_of = recorded[kind % len(recorded)]
        number = kind // len(recorded) % (1 + len(one_of.asks))
        honest = one_of.surveys if number == 0 else one_of.replies[number - 1]
        contents = [codec.pack(*message) for message in honest]
        for k, change in enumerate(changes):
            contents[k] = _changed(honest[k], change)
        if number == 0:
            attempt(lambda: one_of.tables({100 + k: c for k, c in enumerate(contents)}))
        else:
            attempt(lambda: one_of.phase(number - 1, dict(enumerate(contents))))

    yield one


FUZZERS = [
    Fuzzer("message", _some, messages),
    Fuzzer("charter", _charter, greetings),
    Fuzzer("reply", _some, replies),
]
