"""A client's state between messages, stored on its own disk so that it survives restarts.

One file holds the state after one round. States that the server may go back to, when it resumes
from a checkpoint, are kept; older ones are deleted.
"""

from __future__ import annotations

import os
from pathlib import Path

from isonomy.core import tree
from isonomy.core.client import State
from isonomy.errors import RunError
from isonomy.federation.flower import codec


class StateStore:
    """A client's state after each round; kept in memory if there is no folder."""

    def __init__(self, initial: State, folder: Path | None = None) -> None:
        self.initial = initial
        self.folder = folder
        self._memory: dict[int, bytes] = {}
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def rounds(self) -> list[int]:
        """The rounds whose states are stored, oldest first."""
        if self.folder is None:
            return sorted(self._memory)
        return sorted(int(p.stem) for p in self.folder.glob("*.safetensors"))

    def load(self) -> State:
        """The newest state."""
        rounds = self.rounds()
        if not rounds or not tree.leaves(self.initial):
            return self.initial
        try:
            return codec.unpack(self._read(rounds[-1]), self.initial)[1]
        except (OSError, codec.MalformedError) as error:
            raise RunError(
                f"the state of round {rounds[-1]} in '{self.folder}' cannot be read ({error}); "
                "restore the folder, or delete it to start again."
            ) from None

    def save(self, round: int, state: State) -> None:
        """Store the state after a round; of several phases in a round, the last one counts."""
        if not tree.leaves(self.initial):
            if tree.leaves(state):
                raise ValueError("a phase returned a state, but init_client made none")
            return
        same = tree.tmap(lambda old, new: new.to(old.dtype), self.initial, state)
        content = codec.pack({"round": round}, same)
        if self.folder is None:
            self._memory[round] = content
            return
        target = self._path(round)
        partial = target.with_suffix(".partial")
        with open(partial, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)

    def rewind(self, done: int) -> None:
        """Delete the states of rounds that a server with `done` completed rounds will repeat."""
        self._drop([r for r in self.rounds() if r >= done])

    def forget_before(self, settled: int) -> None:
        """Delete states that a server with a checkpoint after `settled` rounds does not need."""
        self._drop([r for r in self.rounds() if r < settled][:-1])

    def _drop(self, rounds: list[int]) -> None:
        for round in rounds:
            if self.folder is None:
                del self._memory[round]
            else:
                self._path(round).unlink(missing_ok=True)

    def _path(self, round: int) -> Path:
        assert self.folder is not None
        return self.folder / f"{round:08d}.safetensors"

    def _read(self, round: int) -> bytes:
        return self._memory[round] if self.folder is None else self._path(round).read_bytes()
