"""What an algorithm records about its rounds, from the folder to the notes."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from isonomy import Algorithm, descend, phase
from isonomy.config.schema import parse
from isonomy.core.algorithm import Global
from isonomy.runs.folder import RunFolder
from isonomy.runs.training import run

CONFIG = {
    "rounds": 4,
    "algorithm": f"{__name__}:Recording",
    "data": {"name": "synthetic", "clients": 5, "examples": 300},
    "model": {"name": "logistic"},
    "local": {"batch": 16},
    "evaluate": {"every": 2, "bootstrap": 0},
    "excess": {"clusters": "none"},
    "cohort": {"size": 3, "dropout": 0.5},
    "seed": 3,
}


@dataclass(frozen=True)
class Recording(Algorithm[Global]):
    """FedAvg that records its rounds."""

    name: ClassVar[str] = "recording"
    family: ClassVar[str] = "average"
    paper: ClassVar[str] = "none"
    reveals: ClassVar[str] = "only the sum of the clients' models"

    def init_server(self, task, params, clients):
        return Global(params)

    def round(self, server, cohort):
        cohort.record(number=cohort.round, word="odd" if cohort.round % 2 else "even")
        reply = cohort.mean(self.local, {"params": server.params})
        cohort.record(sizes=cohort.sizes)
        return Global(reply["params"])

    def finish(self, server, cohort):
        cohort.record(end=torch.tensor(0.5))
        return server

    @phase("mean", params="model")
    def local(self, task, message, client):
        return {"params": descend(task.loss, message["params"], client)}, client.state


def test_recorded_entries_are_in_the_rounds_lines_and_words_are_counted(tmp_path):
    """A round that no client answered has no entries; the last phase adds to the last line."""
    made = run(parse(CONFIG), tmp_path / "run")
    lines = RunFolder(tmp_path / "run").lines("rounds.jsonl")
    assert made.rounds == lines
    assert [line["answered"] for line in lines] == [1, 1, 0, 1]  # by the seed
    assert "recorded" not in lines[2]
    for t in (0, 1, 3):
        recorded = lines[t]["recorded"]
        assert recorded["number"] == t
        assert recorded["word"] == ("odd" if t % 2 else "even")
        assert len(recorded["sizes"]) == lines[t]["answered"]
        assert ("end" in recorded) == (t == 3)
    assert "Rounds by word: even 1, odd 2." in made.notes
