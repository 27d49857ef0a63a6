"""Weights & Biases: config, metrics by round, verdict in the summary, files as an artefact."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from isonomy.config.schema import TrackConfig
from isonomy.runs.trackers.base import About, Finished


class WeightsAndBiases:
    """A run of Weights & Biases.

    `project` is the project, and `to` the folder of its local files (the package's own setting if
    empty). The package's environment variables apply: WANDB_API_KEY, WANDB_BASE_URL, and
    WANDB_MODE=offline to write files only, which `wandb sync` uploads later.
    """

    run: Any

    def start(self, given: TrackConfig, about: About, known: str | None) -> str:
        """Create a run in the project, or continue the one that is known."""
        import wandb

        self.run = wandb.init(
            project=given.project,
            name=about.name,
            dir=given.to or None,
            config=dict(about.config),
            id=known,
            resume=None if known is None else "allow",
            reinit="create_new",
            settings=wandb.Settings(silent=True),
        )
        self.run.define_metric("*", step_metric="round")
        return str(self.run.id)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keep the metrics of a round."""
        self.run.log({"round": step, **metrics})

    def finish(self, result: Finished) -> None:
        """Keep the verdict, and config, report and model as one artefact."""
        import wandb

        if result.verdict:
            self.run.summary["verdict"] = dict(result.record.verdict or {})
        name = re.sub(r"[^\w.-]+", "-", f"run-{self.run.id}")
        kept = wandb.Artifact(name, type="isonomy-run")
        kept.add_file(str(result.config), "config.toml")
        kept.add_file(str(result.report), "report.html")
        if result.model is not None:
            kept.add_dir(str(result.model), "model")
        self.run.log_artifact(kept)
        self.run.finish()

    def stop(self) -> None:
        """End the run as failed; it continues if the run is resumed."""
        self.run.finish(exit_code=1)
