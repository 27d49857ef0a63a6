"""Participants as a link's clients: who is which node, who was greeted, who is waited for.

A client is greeted before it is asked anything: it learns the charter, what was fitted, and where
the run stands. One that fails to answer has to answer a greeting before it is asked again, so a
client that is gone costs its timeout once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from isonomy.data.tables.phases import Message, Phase, Reply
from isonomy.errors import RunError
from isonomy.federation.charter import Charter
from isonomy.federation.flower import codec
from isonomy.federation.flower.transport import Silence

AGAIN = 20.0  # seconds before a client that did not answer a greeting is greeted again
GREETING = 30.0  # seconds that it has, while others wait


class ByNode(Protocol):
    """What carries bytes to nodes: `engines.flower.line.Line`."""

    def nodes(self) -> set[int]:
        """The nodes that are online."""

    def ask(
        self, requests: Mapping[int, bytes], kind: str, seconds: float, group: int = 0
    ) -> Iterator[tuple[int, bytes | Silence]]:
        """Each node's reply, or why there is none."""


class Wire:
    """The link to participants."""

    def __init__(
        self,
        line: ByNode,
        charter: Charter,
        *,
        run: str,
        session: str,
        done: int,
        timeout: float,
        nodes: Mapping[str, int] | None,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.line, self.charter, self.timeout, self.note = line, charter, timeout, note
        self._about = {"kind": "hello", "run": run, "session": session, "done": done}
        self.prepared: dict[str, Any] | None = None
        names = charter["clients"]
        self._given = nodes is not None  # else clients say who they are, which loopback may
        self._number = {node: names.index(name) for name, node in (nodes or {}).items()}
        self._greeted: dict[int, int] = {}  # client to node
        self._tried: dict[int, float] = {}  # node to when
        self.exchanges = 0
        self.seconds: list[float] = []

    # --- greeting ---------------------------------------------------------------------------------

    def gather(self, wait: float) -> None:
        """Wait until every client is here and has agreed."""
        until = time.monotonic() + wait
        told: set[str] = set()
        while True:
            self.greet(self.timeout)
            missing = [n for k, n in enumerate(self.charter["clients"]) if k not in self._greeted]
            if not missing:
                return
            if time.monotonic() > until:
                raise RunError(
                    f"after {wait:g} s these clients are not here: {', '.join(missing)}; have them "
                    "join, give --wait more time, or leave them out of --clients."
                )
            if set(missing) != told:
                told = set(missing)
                self.note(f"waiting for {', '.join(missing)}.")
            time.sleep(1)

    def greet(self, seconds: float = GREETING) -> None:
        """Greet the nodes that are online and not greeted yet."""
        online = self.line.nodes()
        self._greeted = {k: node for k, node in self._greeted.items() if node in online}
        now = time.monotonic()
        new = [
            node
            for node in sorted(online - set(self._greeted.values()))
            if (node in self._number or not self._given)
            and now - self._tried.get(node, -AGAIN) >= AGAIN
        ]
        if not new:
            return
        for node in new:
            self._tried[node] = now
        requests = {node: self._hello(node) for node in new}
        for node, content in self.line.ask(requests, "query", seconds):
            head = _header(content)
            if head.get("ok") is not True:
                continue
            k = self._number.get(node) if self._given else self._claimed(str(head.get("name")))
            if k is not None:
                self._number[node] = k
                self._greeted[k] = node
                self._tried.pop(node, None)

    def _claimed(self, name: str) -> int | None:
        names = self.charter["clients"]
        taken = name not in names or names.index(name) in self._greeted
        return None if taken else names.index(name)

    def _hello(self, node: int) -> bytes:
        number = self._number.get(node, 0)  # without keys a client goes by its own name
        return codec.pack(
            self._about | {"charter": self.charter, "number": number, "prepared": self.prepared}
        )

    def prepare(self, fitted: dict[str, Any]) -> None:
        """Tell everyone what was fitted."""
        self.prepared = fitted
        self._greeted.clear()
        self._tried.clear()
        self.greet(self.timeout)

    # --- asking -----------------------------------------------------------------------------------

    def present(self) -> set[int]:
        """The clients that were greeted and are online; those that came back are greeted."""
        self.greet()
        return set(self._greeted)

    def ask(self, requests: Mapping[int, bytes]) -> Iterator[tuple[int, bytes | Silence]]:
        """Every client's reply to its request, or why there is none."""
        name = codec.header(next(iter(requests.values())))["phase"] if requests else ""
        kind = "evaluate" if name.startswith("measure:") else "train"
        yield from self._ask(requests, kind)

    def _ask(
        self, requests: Mapping[int, bytes], kind: str
    ) -> Iterator[tuple[int, bytes | Silence]]:
        if not requests:
            return
        begin = time.monotonic()
        by_node = {self._greeted[k]: content for k, content in requests.items()}
        self.exchanges += 1
        for node, content in self.line.ask(by_node, kind, self.timeout, self.exchanges):
            k = self._number[node]
            if isinstance(content, Silence):
                self._greeted.pop(k, None)
            yield k, content
        self.seconds.append(time.monotonic() - begin)

    def table(self, phase: Phase, message: Message) -> list[Reply]:
        """The `ask` of `data.tables.fit`: every client's reply, in the clients' order."""
        content = codec.pack({"kind": "table", "phase": phase.__name__, "message": message})
        names: Sequence[str] = self.charter["clients"]
        replies: dict[int, Reply] = {}
        for _attempt in range(3):
            self.greet(self.timeout)
            here = {k: content for k in self._greeted if k not in replies}
            for k, got in self._ask(here, "query"):
                head = _header(got)
                if head.get("ok") is True and isinstance(head.get("reply"), dict):
                    replies[k] = head["reply"]
            if len(replies) == len(names):
                return [json.loads(json.dumps(replies[k])) for k in range(len(names))]
        silent = ", ".join(name for k, name in enumerate(names) if k not in replies)
        raise RunError(
            f"the tables could not be prepared: no usable reply of {silent}; look there for the "
            "reason, and start again."
        )

    def end(self, deployed: Any) -> set[int]:
        """Hand the model to everyone and part; the clients that have it."""
        content = codec.pack({"kind": "end"}, deployed)
        here = dict.fromkeys(self.present(), content)
        return {k for k, got in self._ask(here, "query") if _header(got).get("ok") is True}


def _header(content: bytes | Silence) -> dict[str, Any]:
    """A reply's header; empty if there is none."""
    try:
        return {} if isinstance(content, Silence) else codec.header(content)
    except codec.MalformedError:
        return {}
