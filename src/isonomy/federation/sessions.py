"""The organiser's sessions with participants: who is connected, on which node, and who has agreed.

A participant is greeted before it is asked anything: the greeting brings the charter, what was
fitted, and how far the run is. A participant that does not answer is greeted again before it is
asked again, so one that has left costs its timeout only once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from isonomy.data.tables import replies as table_replies
from isonomy.data.tables.phases import Message, Phase, Reply
from isonomy.errors import RunError
from isonomy.federation.charter import Charter, digest, printable, schema_of
from isonomy.federation.flower import codec
from isonomy.federation.flower.transport import NodeTransport, NoReply

AGAIN = 20.0  # seconds before a node that did not answer a greeting is greeted again, then doubled
MOST = 300.0  # seconds between greetings at most
LONGEST = 300  # letters of a client's reason that are shown
GREETING = 30.0  # seconds to answer a greeting during the run, while others wait


class Sessions:
    """A transport by clients' numbers, on top of a transport by nodes."""

    def __init__(
        self,
        transport: NodeTransport,
        charter: Charter,
        *,
        session: str,
        done: int,
        timeout: float,
        nodes: Mapping[str, int] | None,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.transport, self.charter, self.timeout, self.note = transport, charter, timeout, note
        self.digest = digest(charter)
        about = {"kind": "hello", "run": charter["run"], "session": session, "done": done}
        self._about: dict[str, Any] = about
        self.prepared: dict[str, Any] | None = None
        names = charter["clients"]
        self._have_keys = nodes is not None  # without keys, participants give their own names
        self._number = {node: names.index(name) for name, node in (nodes or {}).items()}
        self._greeted: dict[int, int] = {}  # from client to node
        self._pauses: dict[int, float] = {}  # seconds between greetings that a node did not answer
        self._next: dict[int, float] = {}  # from node to the time of its next greeting
        self._surveys: dict[int, Reply] = {}
        self.exchanges = 0
        self.seconds: list[float] = []

    # --- greeting ---------------------------------------------------------------------------------

    def wait_for_all(self, seconds: float) -> None:
        """Wait until every client is connected and has agreed; raises RunError if time is up."""
        until = time.monotonic() + seconds
        shown: set[str] = set()
        while True:
            self.greet(self.timeout)
            missing = [n for k, n in enumerate(self.charter["clients"]) if k not in self._greeted]
            if not missing:
                return
            if time.monotonic() > until:
                raise RunError(
                    f"after {seconds:g} s these clients are not here: {', '.join(missing)}; ask "
                    "them to join, give --wait more time, or leave them out of --clients."
                )
            if set(missing) != shown:
                shown = set(missing)
                self.note(f"waiting for {', '.join(missing)}.")
            time.sleep(1)

    def greet(self, seconds: float = GREETING) -> None:
        """Greet the nodes that are online and were not greeted yet.

        Everyone waits for their answers. Therefore a node that does not answer although it is
        online is greeted less and less often, until it answers or goes offline.
        """
        online = self.transport.nodes()
        self._greeted = {k: node for k, node in self._greeted.items() if node in online}
        self._next = {node: when for node, when in self._next.items() if node in online}
        now = time.monotonic()
        new = [
            node
            for node in sorted(online - set(self._greeted.values()))
            if (node in self._number or not self._have_keys) and now >= self._next.get(node, now)
        ]
        if not new:
            return
        self._hail(new, seconds)
        for node in set(new) - set(self._greeted.values()):
            pause = min(2 * self._pauses[node], MOST) if node in self._next else AGAIN
            self._pauses[node], self._next[node] = pause, time.monotonic() + pause

    def _hail(self, new: Sequence[int], seconds: float) -> None:
        """Send greetings, and note who answers."""
        requests = {node: self._hello(node) for node in new}
        for node, content in self.transport.ask(requests, "query", seconds):
            head = _header(content)
            if head.get("ok") is not True:
                if head.get("why"):
                    names, k = self.charter["clients"], self._number.get(node)
                    who = "a participant" if k is None else f"'{names[k]}'"
                    self.note(f"{who} refused: {refusal(head)}.")
                continue
            k = self._number.get(node) if self._have_keys else self._claimed(str(head.get("name")))
            if k is not None:
                self._number[node] = k
                self._greeted[k] = node
                self._next.pop(node, None)

    def _claimed(self, name: str) -> int | None:
        """The number of the client that a participant without a key says it is."""
        names = self.charter["clients"]
        taken = name not in names or names.index(name) in self._greeted
        return None if taken else names.index(name)

    def _hello(self, node: int) -> bytes:
        number = self._number.get(node, 0)  # without keys, the participant's own name counts
        return codec.pack(
            self._about | {"charter": self.charter, "number": number, "prepared": self.prepared}
        )

    def prepare(self, fitted: dict[str, Any]) -> None:
        """Send everyone the preprocessing that was fitted."""
        self.prepared = fitted
        self._greeted.clear()
        self._next.clear()
        self.greet(self.timeout)

    # --- asking -----------------------------------------------------------------------------------

    def present(self) -> set[int]:
        """The clients that are online; those that came back are greeted first."""
        self.greet()
        return set(self._greeted)

    def ask(self, requests: Mapping[int, bytes]) -> Iterator[tuple[int, bytes | NoReply]]:
        """Every client's reply to its request, or why there is none."""
        name = codec.header(next(iter(requests.values())))["phase"] if requests else ""
        kind = "evaluate" if name.startswith("measure:") else "train"
        yield from self._ask(requests, kind)

    def _ask(
        self, requests: Mapping[int, bytes], kind: str
    ) -> Iterator[tuple[int, bytes | NoReply]]:
        if not requests:
            return
        begin = time.monotonic()
        by_node = {self._greeted[k]: content for k, content in requests.items()}
        self.exchanges += 1
        for node, content in self.transport.ask(by_node, kind, self.timeout, self.exchanges):
            k = self._number[node]
            if isinstance(content, NoReply):
                self._greeted.pop(k, None)
            yield k, content
        self.seconds.append(time.monotonic() - begin)

    def ask_tables(self, phase: Phase, message: Message) -> list[Reply]:
        """The `ask` of `data.tables.fit`: every client's reply, in the order of clients.

        Raises RunError if a client gives no usable reply in three attempts.
        """
        head = {"kind": "table", "charter": self.digest, "phase": phase.__name__}
        content = codec.pack(head | {"message": message})
        names: Sequence[str] = self.charter["clients"]
        replies: dict[int, Reply] = {}
        wrong: dict[int, str] = {}
        for _attempt in range(3):
            self.greet(self.timeout)
            here = {k: content for k in self._greeted if k not in replies}
            for k, got in self._ask(here, "query"):
                reply = _header(got)
                why = self._wrong(phase.__name__, message, k, reply)
                if why is None:
                    replies[k] = reply["reply"]
                else:
                    wrong[k] = got.why if isinstance(got, NoReply) else why
            if len(replies) == len(names):
                if phase.__name__ == "survey":
                    self._surveys = replies
                return [json.loads(json.dumps(replies[k])) for k in range(len(names))]
        missing = ", ".join(
            f"'{name}' ({printable(wrong.get(k, 'it is not connected'))[:LONGEST]})"
            for k, name in enumerate(names)
            if k not in replies
        )
        raise RunError(
            f"the tables could not be prepared: no usable reply from {missing}; see the output of "
            "`isonomy join` there, and start again."
        )

    def _wrong(self, phase: str, message: Message, k: int, head: dict[str, Any]) -> str | None:
        """Why a client's reply about its table cannot be used; None if it can."""
        if head.get("ok") is not True:
            return f"it refused: {refusal(head)}"
        reply = head.get("reply")
        if phase == "survey":
            return table_replies.wrong_survey(reply, schema_of(self.charter))
        count = self._surveys[k]["numbers"][message["column"]]["count"]
        return table_replies.wrong_grid(reply, count)

    def end(self, deployed: Any, verdict: dict[str, Any] | None) -> dict[int, bool]:
        """End the run for everyone; returns the clients that were told, and who confirmed it.

        `deployed` is the model, or None if the verdict withholds it.
        """
        head = {"kind": "end", "charter": self.digest, "withheld": deployed is None}
        head["verdict"] = verdict
        content = codec.pack(head, () if deployed is None else deployed)
        here = dict.fromkeys(self.present(), content)
        return {k: _header(got).get("ok") is True for k, got in self._ask(here, "query")}


def refusal(head: dict[str, Any]) -> str:
    """The reason in a reply that refuses, without control characters."""
    return printable(str(head.get("why") or "it gave no reason"))[:LONGEST]


def _header(content: bytes | NoReply) -> dict[str, Any]:
    """A reply's header; empty if there is no reply, or a malformed one."""
    try:
        return {} if isinstance(content, NoReply) else codec.header(content)
    except codec.MalformedError:
        return {}
