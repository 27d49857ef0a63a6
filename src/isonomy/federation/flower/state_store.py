"""What a client keeps of its own between messages, on its own disk, so that it survives restarts.

One file holds the state after a round. States that the server could still go back to, should it
have to resume from a checkpoint, are kept; older ones go.
"""

from __future__ import annotations

import os
from pathlib import Path

from isonomy.core import tree
from isonomy.core.client import State
from isonomy.errors import RunError
from isonomy.federation.flower import codec


class Store:
    """A client's state after each round; in memory if there is no folder."""

    def __init__(self, initial: State, folder: Path | None = None) -> None:
        self.initial = initial
        self.folder = folder
        self._memory: dict[int, bytes] = {}
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def rounds(self) -> list[int]:
        """Rounds with a state, oldest first."""
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
                "restore the folder, or remove it to begin anew."
            ) from None

    def save(self, round: int, state: State) -> None:
        """Keep the state after a round (of each phase, the last)."""
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

    def back_to(self, done: int) -> None:
        """Forget rounds that the server, which has done so many, will do again."""
        self._drop([r for r in self.rounds() if r >= done])

    def settle(self, safe: int) -> None:
        """Forget what nobody can go back to: the server has a checkpoint after `safe` rounds."""
        self._drop([r for r in self.rounds() if r < safe][:-1])

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
