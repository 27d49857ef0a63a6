"""MLflow: parameters, metrics by round, tags, and files as artefacts of a run."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from isonomy.config.schema import TrackConfig
from isonomy.runs.trackers.base import About, Finished

LONGEST = 500  # characters of a parameter's value
MOST = 100  # parameters, and metrics of one request, that every store accepts
_NOT_ALLOWED = re.compile(r"[^\w\-. /]")


class MLflow:
    """A run of MLflow's tracking server, or of its SQLite or file store.

    `to` is the tracking URI, such as "sqlite:///mlflow.db" or "http://host:5000" (MLflow's own
    setting if empty), and `project` the experiment.
    """

    def start(self, given: TrackConfig, about: About, known: str | None) -> str:
        """Create a run in the experiment, or continue the one that is known."""
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        self.client = MlflowClient(tracking_uri=given.to or None)
        if known is not None:
            self.client.update_run(known, status="RUNNING")
            self.run = known
            return known
        experiment = self.client.get_experiment_by_name(given.project)
        number = (
            self.client.create_experiment(given.project)
            if experiment is None
            else experiment.experiment_id
        )
        made = self.client.create_run(number, run_name=about.name)
        self.run = str(made.info.run_id)
        params = [Param(_name(k), str(v)[:LONGEST]) for k, v in about.flat.items()]
        for start in range(0, len(params), MOST):
            self.client.log_batch(self.run, params=params[start : start + MOST])
        if about.folder is not None:
            self.client.set_tag(self.run, "isonomy.folder", str(about.folder.absolute()))
        return self.run

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keep the metrics of a round, with the round as their step."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        found: list[Any] = [Metric(_name(k), v, now, step) for k, v in metrics.items()]
        for start in range(0, len(found), MOST):
            self.client.log_batch(self.run, metrics=found[start : start + MOST])

    def finish(self, result: Finished) -> None:
        """Keep verdict, config, report and model."""
        if result.verdict:
            status = str((result.record.verdict or {}).get("status"))
            self.client.set_tag(self.run, "isonomy.verdict", status)
            self.client.log_text(self.run, result.verdict, "verdict.json")
        self.client.log_artifact(self.run, str(result.config))
        self.client.log_artifact(self.run, str(result.report))
        if result.model is not None:
            self.client.log_artifacts(self.run, str(result.model), "model")
        self.client.set_terminated(self.run, "FINISHED")

    def stop(self) -> None:
        """Mark the run as killed; it continues if the run is resumed."""
        self.client.set_terminated(self.run, "KILLED")


def _name(text: str) -> str:
    """A name as MLflow accepts it: without, say, the colon of 'accuracy:low'."""
    return _NOT_ALLOWED.sub("_", text)
