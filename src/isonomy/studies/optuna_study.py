"""Optuna's studies: in memory, or in a journal. Optuna is imported when it is first needed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from isonomy.core.options import Option
from isonomy.core.search_space import Range, SearchSpace
from isonomy.errors import ConfigError, RunError
from isonomy.runs.files import write_atomically

if TYPE_CHECKING:
    import optuna

JOURNAL = "trials.journal"


def require_optuna() -> None:
    """Raise ConfigError if Optuna is not installed."""
    try:
        import optuna  # noqa: F401
    except ImportError:
        raise ConfigError(
            "tuning needs Optuna, which is not installed: pip install 'isonomy[tune]'."
        ) from None


def opened(
    folder: Path | str | None, higher: Sequence[bool], *, copied: bool = False
) -> optuna.Study:
    """The study in the folder's journal, or a new one; for one process at a time.

    With `copied`, it is a copy of what the journal has now, while another process writes to it.
    """
    if folder is None:
        return create(higher)
    if copied:
        return _copied(Path(folder) / JOURNAL, higher)
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    path = Path(folder) / JOURNAL
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _without_partial_line(path)
        storage = JournalStorage(JournalFileBackend(str(path), lock_obj=_NoLock()))  # type: ignore[arg-type]
        return create(higher, storage=storage)
    except OSError as error:
        raise RunError(
            f"'{path}' cannot be written ({error.strerror or error}); choose another folder with "
            "--to."
        ) from None
    except (ValueError, KeyError) as error:
        raise RunError(
            f"'{path}' cannot be read ({error}); restore it from a copy, or start again with "
            "--overwrite."
        ) from None


def _copied(path: Path, higher: Sequence[bool]) -> optuna.Study:
    with tempfile.TemporaryDirectory() as place:
        content = path.read_bytes()
        (Path(place) / JOURNAL).write_bytes(content[: content.rfind(b"\n") + 1])
        made, found = create(higher), opened(place, higher)
        for name, value in found.user_attrs.items():
            made.set_user_attr(name, value)
        made.add_trials(found.trials)
    return made


class _NoLock:
    """In place of Optuna's lock file, which a killed process leaves behind."""

    def acquire(self) -> bool:
        """Always succeeds."""
        return True

    def release(self) -> None:
        """Does nothing."""


def _without_partial_line(path: Path) -> None:
    """Remove what a killed process left of its last line, which Optuna would write on to."""
    if path.exists():
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            write_atomically(path, whole)


def create(
    higher: Sequence[bool],
    sampler: optuna.samplers.BaseSampler | None = None,
    storage: optuna.storages.BaseStorage | None = None,
) -> optuna.Study:
    """A study with these directions; in memory without a storage."""
    import optuna

    with _silent():
        return optuna.create_study(
            study_name="search",
            storage=storage,
            sampler=sampler or optuna.samplers.RandomSampler(seed=0),
            directions=["maximize" if up else "minimize" for up in higher],
            load_if_exists=True,
        )


@contextmanager
def _silent() -> Iterator[None]:
    """Without Optuna's log of every study that is created."""
    import optuna

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(level)


def distribution(option: Option, space: SearchSpace) -> optuna.distributions.BaseDistribution:
    """The search space of an option, as Optuna writes it."""
    from optuna import distributions as kinds

    if not isinstance(space, Range):
        return kinds.CategoricalDistribution(space.values)
    if option.annotation is int:
        return kinds.IntDistribution(int(space.low), int(space.high), log=space.log)
    return kinds.FloatDistribution(space.low, space.high, log=space.log)
