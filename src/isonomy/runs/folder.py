"""A run's folder: everything needed to resume, report, export or audit it.

    config.toml      the complete config, with versions and seed
    rounds.jsonl     one line per round: cohort, traffic, recorded entries, metrics if measured
    clients.parquet  every client at every evaluation (during the run: clients/*.parquet)
    front.parquet    the fronts at the end: every client and every preference
    excess.json      each client's excess risk at the end, and how it was measured
    checkpoint/      the last few states: tensors, and a description with their checksum
    model/           the trained model, with what is needed to predict from raw tables
    federation.json  of a real federation: the charter, and the fitted preprocessing
    verdict.json     the algorithm's verdict on its model, if it gives one
    privacy.json     the ledger of differential privacy: releases, noise, epsilon
    noise.key        the secret key of that noise; whoever has it can remove the noise
    summary.json     the last metrics; it exists once the run is complete
    diverged.json    in a comparison, where training diverged, if it did
    trackers.json    the run's names in trackers of experiments, if it has any
    timing.jsonl     seconds; separate, because everything else is the same in every repetition

All files except the *.jsonl streams are written atomically, by renaming a complete file.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isonomy.config.files import read
from isonomy.config.schema import Config
from isonomy.core import parquet
from isonomy.core.tree import Tree
from isonomy.core.values import Frame, Plain, joined
from isonomy.engines.states import Known
from isonomy.errors import RunError
from isonomy.postprocess import Rule
from isonomy.runs import checkpoints, saved_model
from isonomy.runs.checkpoints import Checkpoint
from isonomy.runs.files import flush_to_disk, locked, opened, write_atomically
from isonomy.runs.saved_model import ModelCard, SavedModel
from isonomy.runs.saved_states import STATES
from isonomy.runs.state_store import StateStore

_FOLDERS = {  # a run's subfolders, and the names of the files that it writes there
    "checkpoint": checkpoints.FILES,
    "clients": re.compile(r"\.?\d{8}\.parquet(\.partial)?"),
    "model": re.compile(
        rf"\.?({'|'.join(map(re.escape, (*saved_model.FILES, STATES)))})(\.partial)?"
    ),
}


LONG = 1 << 20  # rows of clients.parquet up to which it is written at once
MALFORMED = (ValueError, TypeError, LookupError, AttributeError)  # values of an unexpected form


class RunFolder:
    """Reads and writes the folder of one run."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    # --- creation -------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """Whether the folder holds a run: a config.toml with the versions that the run used."""
        try:
            with open(self.path / "config.toml", "rb") as file:
                return bool(tomllib.load(file).get("versions"))
        except (OSError, ValueError):
            return False

    @property
    def served(self) -> bool:
        """Whether this is the run of a real federation."""
        return (self.path / "federation.json").exists()

    @property
    def complete(self) -> bool:
        """Whether the run is complete."""
        return (self.path / "summary.json").exists()

    @property
    def to_continue(self) -> str:
        """The command that continues the run, for a sentence."""
        if self.served:
            return f"`isonomy serve --resume {self.path}`, with the --keys and --address it had"
        return f"`isonomy resume {self.path}`"

    def holds(self, config: Config) -> bool:
        """Whether the folder holds a run with this config, unfinished or complete."""
        return self.exists and self.config().digest == config.digest

    def create(self, config: Config, *, overwrite: bool = False) -> None:
        """Create the folder of a new run; with `overwrite`, an existing run is replaced.

        A folder that holds anything else is refused, also with `overwrite`.
        """
        if self.exists and not overwrite:
            state = (
                "a complete run"
                if self.complete
                else f"an unfinished run; resume it with {self.to_continue}"
            )
            raise RunError(
                f"'{self.path}' holds {state}; choose another folder with --to, or replace the run "
                "with --overwrite."
            )
        try:
            if self.exists:
                with self.locked():
                    self.remove()
            else:
                self._refuse_other_files()
            self.write("config.toml", config.toml().encode())  # first: it marks a run's folder
            (self.path / "checkpoint").mkdir(exist_ok=True)
            (self.path / "clients").mkdir(exist_ok=True)
        except OSError as error:
            raise RunError(
                f"the folder '{self.path}' cannot be created ({error.strerror or error}); choose "
                "another with --to."
            ) from None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from working in the folder; raises RunError if one does."""
        with locked(self.path) as free:
            if not free:
                raise RunError(
                    f"another process is working on the run in '{self.path}'; wait until it ends, "
                    "or stop it first."
                )
            yield

    def _refuse_other_files(self) -> None:
        """Raise RunError if the folder holds anything but the remains of an interrupted start."""
        if not self.path.is_dir():
            return
        found = sorted(p.name for p in self.path.iterdir() if p.name != ".config.toml.partial")
        if found:
            raise RunError(
                f"'{self.path}' is not empty and not a run (it holds '{found[0]}'); choose a new "
                "or an empty folder with --to."
            )

    def remove(self) -> None:
        """Delete the files that a run writes, and folders that are then empty."""
        # in this order, an interrupted deletion never looks like a complete run
        (self.path / "summary.json").unlink(missing_ok=True)
        for name in _FOLDERS:
            self._clear(name)
        for name in (
            "rounds.jsonl",
            "timing.jsonl",
            "clients.parquet",
            ".clients.parquet.partial",
            "front.parquet",
            "excess.json",
            "verdict.json",
            "report.html",
            "federation.json",
            "diverged.json",
            "privacy.json",
            "noise.key",
            "trackers.json",
        ):
            (self.path / name).unlink(missing_ok=True)
        (self.path / "config.toml").unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def _clear(self, name: str) -> None:
        """Delete a run's files from one of its subfolders, and the subfolder if it is empty."""
        folder = self.path / name
        if not folder.is_dir() or folder.is_symlink():
            return
        for file in folder.iterdir():
            if _FOLDERS[name].fullmatch(file.name):
                file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            folder.rmdir()

    def config(self) -> Config:
        """The run's complete config."""
        if not self.exists:
            raise RunError(f"'{self.path}' is not a run's folder: it has no config.toml.")
        return read(self.path / "config.toml")

    # --- files ----------------------------------------------------------------------------------

    def write(self, name: str, content: bytes) -> None:
        """Write a file atomically, so that even a power failure leaves no partial file."""
        write_atomically(self.path / name, content)

    # --- streams --------------------------------------------------------------------------------

    def append(self, name: str, line: dict[str, Any], *, flush: bool = False) -> None:
        """Append a line to a stream."""
        with saving(self.path), opened(self.path / name, os.O_APPEND) as file:
            file.write(_text([line]))
            if flush:
                flush_to_disk(file)

    def replace_last(self, name: str, line: dict[str, Any]) -> None:
        """Replace the last line of a stream."""
        with saving(self.path):
            self.write(name, _text([*self.lines(name)[:-1], line]))

    def lines(self, name: str) -> list[dict[str, Any]]:
        """A stream's complete lines; a partial last line of a killed run is left out."""
        path = self.path / name
        with reading(path):
            lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
            found = [dict(json.loads(line)) for line in lines if line.endswith(b"\n")]
            if not all(isinstance(line.get("round"), int) for line in found):
                raise ValueError("a line without the number of its round")
            return found

    def rewind(self, round: int) -> None:
        """Remove what was written after `round` rounds, so that they can be repeated."""
        with saving(self.path):
            for name in ("rounds.jsonl", "timing.jsonl"):
                kept = [line for line in self.lines(name) if line["round"] <= round]
                if name == "rounds.jsonl" and len(kept) != round:
                    raise RunError(
                        f"'{self.path / name}' holds {len(kept)} of the {round} rounds before the "
                        "checkpoint: it was damaged; start the run again with --overwrite."
                    )
                self.write(name, _text(kept))
            whole = self.path / "clients.parquet"
            if whole.exists():  # the run was killed at its end: go back to parts
                table = _read_clients(whole)
                early = table.take(rounds_of(table) <= round)
                for part in self._parts():  # they are in the table, if the kill was before
                    part.unlink()  # their deletion
                self.write(f"clients/{round:08d}.parquet", parquet.written(early.columns))
                whole.unlink()
            for part in self._parts():
                if int(part.stem) > round:
                    part.unlink()

    # --- per-client tables ----------------------------------------------------------------------

    def write_clients(self, round: int, columns: Mapping[str, Any]) -> None:
        """Write the table of clients of one evaluation."""
        with saving(self.path):
            self.write(f"clients/{round:08d}.parquet", parquet.written(columns))

    def clients(self) -> Frame | None:
        """The tables of clients of all evaluations so far; None if there are none."""
        whole = self.path / "clients.parquet"
        with reading(whole):
            if whole.exists():
                return _read_clients(whole)
            parts = self._parts()
            return joined([_read_clients(p) for p in parts]) if parts else None

    def _join_clients(self) -> None:
        """Write the tables of all evaluations as one; a long one without reading all of it."""
        parts = self._parts()
        if (self.path / "clients.parquet").exists() or not parts:
            return
        if sum(parquet.ParquetFile(part).rows for part in parts) <= LONG:
            table = joined([parquet.read_frame(part) for part in parts])
            self.write("clients.parquet", parquet.written(table.columns))
            return
        target = self.path / "clients.parquet"
        partial = target.with_name(f".{target.name}.partial")
        partial.unlink(missing_ok=True)
        opened(partial, os.O_EXCL).close()  # a link is refused, not followed
        parquet.join_files(parts, partial)
        with partial.open("rb+") as file:
            flush_to_disk(file)
        os.replace(partial, target)

    def _parts(self) -> list[Path]:
        """The tables of single evaluations, in order."""
        return sorted((self.path / "clients").glob(f"{'[0-9]' * 8}.parquet"))

    def write_front(self, columns: dict[str, Any]) -> None:
        """Write the fronts at the end of the run."""
        with saving(self.path):
            self.write("front.parquet", parquet.written(columns))

    def front(self) -> dict[str, list[Any]]:
        """The fronts' columns; empty if none was measured."""
        path = self.path / "front.parquet"
        with reading(path):
            found = parquet.rows_of(path) if path.exists() else {}
            for column in found.values():
                if len({len(cell) for cell in column if isinstance(cell, list)}) > 1:
                    raise ValueError("counts of different lengths in one column")
            return found

    def write_excess(self, found: dict[str, Any]) -> None:
        """Write the clients' excess risk at the end of the run."""
        with saving(self.path):
            self.write("excess.json", json.dumps(found, indent=1, allow_nan=False).encode())

    def excess(self) -> dict[str, Any]:
        """The clients' excess risk; empty if it was not measured."""
        path = self.path / "excess.json"
        with reading(path):
            return dict(json.loads(path.read_text())) if path.exists() else {}

    def write_privacy(self, ledger: dict[str, Any]) -> None:
        """Write the ledger of differential privacy."""
        with saving(self.path):
            self.write("privacy.json", json.dumps(ledger, indent=1, allow_nan=False).encode())

    def noise_key(self, fresh: str) -> str:
        """The secret key of the run's noise: the stored one, or `fresh`, which is then stored."""
        path = self.path / "noise.key"
        with reading(path):
            if path.exists():
                return path.read_text().strip()
        if self.checkpoints():
            raise RunError(
                f"'{path}' is missing, so the rounds since the last checkpoint would be released "
                "again with other noise; restore it, or start the run again with --overwrite."
            )
        with saving(self.path):
            write_atomically(path, fresh.encode(), mode=0o600)
        return fresh

    # --- checkpoints ----------------------------------------------------------------------------

    def save_checkpoint(
        self,
        round: int,
        trees: dict[str, Tree],
        extra: dict[str, Any],
        keep: int,
        shards: Iterable[Tree],
        changed: tuple[StateStore, Iterable[Known]] | None = None,
    ) -> None:
        """Save the state after `round` rounds, then delete all but the newest `keep` states.

        `shards` are the clients' states, share by share, or `changed` those that have changed, and
        the store that they are added to.
        """
        with saving(self.path):
            folder = self.path / "checkpoint"
            if changed is not None:
                checkpoints.prune(folder, keep)  # so that slots do not depend on interruptions
            checkpoints.save(folder, round, trees, extra, shards, changed)
            checkpoints.prune(folder, keep)

    def prune_checkpoints(self, keep: int) -> None:
        """Delete what an interruption left of checkpoints older than the newest `keep`."""
        checkpoints.prune(self.path / "checkpoint", keep)

    def checkpoints(self) -> list[int]:
        """The rounds that have a checkpoint, newest first."""
        return checkpoints.rounds(self.path / "checkpoint")

    def load_checkpoint(self, round: int, initial: Tree = None) -> Checkpoint:
        """The state after `round` rounds; raises RunError if a checksum does not match.

        Of many clients' states only those are read whose `initial` one is given.
        """
        try:
            return checkpoints.load(self.path / "checkpoint", round, initial)
        except (OSError, *MALFORMED) as error:
            raise RunError(
                f"the checkpoint of round {round} in '{self.path}' is damaged ({error}); an "
                "earlier one is used if there is any."
            ) from None

    def state_store(self, initial: Tree) -> StateStore:
        """An empty store of clients' states in the folder of checkpoints."""
        return StateStore(self.path / "checkpoint", initial)

    def newest(self, initial: Tree = None) -> Checkpoint | None:
        """The newest intact checkpoint, with a sentence for each damaged one; None without any."""
        damaged: list[str] = []
        for round in self.checkpoints():
            try:
                found = self.load_checkpoint(round, initial)
            except RunError as error:
                damaged.append(str(error))
                continue
            return replace(found, damaged=tuple(damaged))
        if damaged:
            raise RunError(
                f"no checkpoint in '{self.path}' is intact: {damaged[0]} Start again with "
                "--overwrite."
            )
        return None

    # --- the end --------------------------------------------------------------------------------

    def finish(
        self,
        model: dict[str, Any] | None,
        card: ModelCard,
        summary: dict[str, Any],
        preprocessing: Mapping[str, Any] | None = None,
        verdict: dict[str, Any] | None = None,
        rule: Rule | None = None,
    ) -> None:
        """Write the model (unless it is withheld), the verdict, the joined client table, and last
        the summary that says 'complete'.

        The model has the `server`'s state, the `clients`' states and, if only those of some clients
        are not the same, `known` (see `saved_model.write`).
        """
        with saving(self.path):
            if verdict is not None:
                text = json.dumps(verdict, indent=1, allow_nan=False)
                self.write("verdict.json", text.encode())
            if model is None:
                self._clear("model")
            else:
                folder = self.path / "model"
                saved_model.write(
                    folder,
                    model["server"],
                    model["clients"],
                    card,
                    preprocessing,
                    rule,
                    model.get("known"),
                )
            self._join_clients()
            self._clear("clients")
            self.write("summary.json", json.dumps(summary, indent=1, allow_nan=False).encode())

    @property
    def withheld(self) -> bool:
        """Whether the run is complete but its model was not written, because of its verdict."""
        return self.complete and not saved_model.exists(self.path / "model")

    def model(self) -> SavedModel:
        """The trained model; raises a RunError if the run is unfinished or withholds its model."""
        if not self.complete:
            raise RunError(
                f"'{self.path}' is unfinished; first continue it with {self.to_continue}."
            )
        if self.withheld:
            raise RunError(
                f"'{self.path}' has no model, because its verdict is "
                f"'{(self.verdict() or {}).get('status')}' (see verdict.json); to write the model "
                f"anyway, use `isonomy resume {self.path} --keep`."
            )
        return saved_model.read(self.path / "model")

    def reopen(self) -> None:
        """Mark the run as not complete, so that it can be finished again."""
        (self.path / "summary.json").unlink(missing_ok=True)

    def verdict(self) -> dict[str, Any] | None:
        """The algorithm's verdict on its model; None if it gave none."""
        path = self.path / "verdict.json"
        with reading(path):
            return dict(json.loads(path.read_text())) if path.exists() and self.complete else None

    def diverged(self) -> dict[str, Any] | None:
        """In which round training diverged, and what to change; None if it did not, or is complete.

        A comparison keeps the folders of such runs, so that reports show them.
        """
        path = self.path / "diverged.json"
        with reading(path):
            return (
                dict(json.loads(path.read_text())) if path.exists() and not self.complete else None
            )

    def summary(self) -> dict[str, Any]:
        """The content of summary.json; empty if the run is not complete."""
        path = self.path / "summary.json"
        with reading(path):
            return dict(json.loads(path.read_text())) if path.exists() else {}


def _text(lines: list[dict[str, Any]]) -> bytes:
    """The lines of a stream."""
    each = (json.dumps(line, separators=(",", ":"), allow_nan=False) for line in lines)
    return "".join(f"{line}\n" for line in each).encode()


def _read_clients(path: Path) -> Frame:
    """A table of clients; raises RunError if it is damaged."""
    with reading(path):
        table = parquet.read_frame(path)
        rounds_of(table)
        return table


def rounds_of(table: Frame) -> NDArray[np.integer]:
    """The round of each row of a table of clients."""
    rounds = table["round"]
    if not isinstance(rounds, Plain) or rounds.values.dtype.kind not in "iu" or rounds.has_null:
        raise ValueError("a row without the number of its round")
    return rounds.values


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Convert the errors of a file that is damaged or cannot be read into a RunError."""
    try:
        yield
    except (OSError, *MALFORMED) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it is damaged"
        raise RunError(
            f"'{path}' cannot be read: {why}; restore it from a copy, or make the run again with "
            "--overwrite."
        ) from None


@contextlib.contextmanager
def saving(path: Path) -> Iterator[None]:
    """Convert I/O errors into a RunError."""
    try:
        yield
    except (OSError, parquet.ParquetError) as error:
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        what = "the disk is full" if full else str(error)
        raise RunError(
            f"'{path}' cannot be written: {what}; free some space or choose another folder with "
            f"--to, then continue with `isonomy resume {path}` (earlier checkpoints are intact)."
        ) from None
