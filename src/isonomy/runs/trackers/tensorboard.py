"""TensorBoard: metrics as scalars by round, config and verdict as text, in event files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from isonomy.config.schema import TrackConfig
from isonomy.runs.trackers.base import About, Finished


class TensorBoard:
    """A folder of event files for each run, inside `to` ("tensorboard" if empty) and `project`.

    Event files hold no other files, so the report and the model are named in the text `files`.
    """

    def start(self, given: TrackConfig, about: About, known: str | None) -> str:
        """Open the folder of the run."""
        from torch.utils.tensorboard import SummaryWriter

        if known is None:
            base = Path(given.to or "tensorboard") / given.project
            name = re.sub(r"[^\w.=-]+", "-", about.name).strip("-")
            free = (base / (f"{name}-{i}" if i else name) for i in range(10_000))
            known = str(next(path for path in free if not path.exists()).absolute())
        self.writer = SummaryWriter(known)
        self.about = about
        self.writer.add_text("config", _block(about.toml, "toml"))
        self.writer.flush()
        return known

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keep the metrics of a round, by their family: client.accuracy.std is below client."""
        for name, value in metrics.items():
            self.writer.add_scalar(name.replace(".", "/", 1), value, step)
        self.writer.flush()

    def finish(self, result: Finished) -> None:
        """Keep the verdict, and where the run's files are."""
        if result.verdict:
            self.writer.add_text("verdict", _block(result.verdict, "json"))
        if self.about.folder is not None:
            where = self.about.folder.absolute()
            self.writer.add_text("files", f"model: `{where / 'model'}`; run: `{where}`")
        self.writer.close()

    def stop(self) -> None:
        """Close the files; a resumed run adds others in the same folder."""
        self.writer.close()


def _block(text: str, kind: str) -> str:
    return f"```{kind}\n{text}\n```"
