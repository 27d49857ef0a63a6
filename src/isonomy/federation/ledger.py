"""What a participant has answered in a run: kept on its disk, so that nothing is asked twice.

A server that crashed goes back to its last checkpoint and repeats rounds. Its questions are then
the same as before, and so are the answers, which tell it nothing new: a question that follows the
same questions as before is answered again. Another question in a round that was already answered
would be one more observation of the same rows, so only a few rounds, as the charter says, may
be repeated with other questions.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from isonomy.federation.flower.codec import MalformedError
from isonomy.federation.schedule import EVALUATION, Position, Slot


class Answered(NamedTuple):
    """One question that was answered, with the digest of it and of all before it."""

    position: Position
    phase: str
    exchange: int
    digest: str
    last: bool  # whether it ends training


class Ledger:
    """The questions answered, in order; with a file, they survive restarts."""

    def __init__(self, path: Path | None, repeats: int) -> None:
        self.path, self.repeats = path, repeats
        self.session = ""
        self.settled = 0
        self.ended = False
        self._line: list[Answered] = []  # what the present course of the run consists of
        self._ever: dict[tuple[Position, str], set[str]] = {}
        self._repeated: set[tuple[str, int]] = set()  # sessions and rounds
        self._ends: set[int] = set()  # rounds after which training has ever ended
        self._tables: dict[str, str] = {}
        if path is not None and path.exists():
            for text in path.read_text().splitlines(keepends=True):
                if text.endswith("\n"):  # a line that a crash cut off was not answered
                    self._apply(json.loads(text))

    # --- questions ----------------------------------------------------------------------------

    def admit(self, slot: Slot, phase: str, exchange: int, content: str, settled: int) -> bool:
        """Record a question before it is answered; returns whether it repeats a round differently.

        `content` is the digest of the message. Raises MalformedError for a question that is not to
        be answered: one of a round that is over, asked twice, or too often.
        """
        at = slot.position
        if self.ended:
            raise MalformedError("the run is over")
        if self._line and at < self._line[-1].position:
            raise MalformedError(f"{at} is over")
        if any(one.last and one.position.round < at.round for one in self._line):
            raise MalformedError(f"training ended before {at}")
        here = self._here(at)
        if at.stage != EVALUATION and here and exchange <= here[-1].exchange:
            raise MalformedError(f"exchange {exchange + 1} of {at} was already answered")
        if sum(one.phase == phase for one in here) >= slot.most:
            times = "once" if slot.most == 1 else f"{slot.most} times"
            raise MalformedError(f"'{phase}' is answered {times} in {at}, which was done")
        digest = self._digest(at, phase, exchange, content)
        before = self._ever.get((at, phase), set())
        elsewhere = slot.last and bool(self._ends - {at.round})  # training ended there before
        new = elsewhere or (digest not in before and len(before) >= slot.most)
        spent = len(self._repeated) >= self.repeats
        if new and spent and (self.session, at.round) not in self._repeated:
            how = "ended after another round" if elsewhere else "was answered before, differently"
            raise MalformedError(
                f"{'training' if elsewhere else at} {how}, and the charter allows only "
                f"{self.repeats} such rounds after the server has restarted"
            )
        entry = {"at": list(at), "phase": phase, "exchange": exchange, "digest": digest}
        self._write(entry | {"repeat": new, "settled": settled, "last": slot.last})
        return new

    def admit_table(self, question: str, content: str) -> None:
        """Record a question about the table; another one of the same name is refused."""
        if self._tables.get(question, content) != content:
            raise MalformedError(f"'{question}' was already answered, to another message")
        if question not in self._tables:
            self._write({"table": question, "digest": content})

    def rewind(self, session: str, done: int) -> bool:
        """Follow a server that has started again after `done` rounds; False if it is the same one.

        Raises MalformedError if that server goes back to before its own checkpoints.
        """
        if session == self.session:
            return False
        if done < self.settled:
            raise MalformedError(
                f"the server goes back to {done} rounds, but had a checkpoint of {self.settled}"
            )
        self._write({"session": session, "done": done})
        return True

    def end(self) -> None:
        """No question is answered any more."""
        self._write({"end": True})

    # --- the file -----------------------------------------------------------------------------

    def _write(self, event: dict[str, Any]) -> None:
        self._apply(event)
        if self.path is None:
            return
        whole = not self.path.exists() or self.path.read_bytes()[-1:] in (b"", b"\n")
        with open(self.path, "a") as file:
            file.write(("" if whole else "\n") + json.dumps(event) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _apply(self, event: dict[str, Any]) -> None:
        if "session" in event:
            self.session = event["session"]
            self._line = [one for one in self._line if one.position.round < event["done"]]
        elif "at" in event:
            at = Position(*event["at"])
            phase, digest = event["phase"], event["digest"]
            self._line.append(Answered(at, phase, event["exchange"], digest, event["last"]))
            if event["last"]:
                self._ends.add(at.round)
            self._ever.setdefault((at, phase), set()).add(digest)
            self.settled = max(self.settled, event["settled"])
            if event["repeat"]:
                self._repeated.add((self.session, at.round))
        elif "table" in event:
            self._tables[event["table"]] = event["digest"]
        elif event.get("end"):
            self.ended = True

    def _here(self, at: Position) -> list[Answered]:
        out: list[Answered] = []
        for one in reversed(self._line):
            if one.position != at:
                break
            out.insert(0, one)
        return out

    def _digest(self, at: Position, phase: str, exchange: int, content: str) -> str:
        """Of a question and of all before it: with the same one, state and answer are the same."""
        before = next(
            (a.digest for a in reversed(self._line) if a.position.stage != EVALUATION), ""
        )
        text = json.dumps([before, list(at), phase, exchange, content])
        return hashlib.sha256(text.encode()).hexdigest()
