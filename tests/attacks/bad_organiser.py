"""An organiser that serves one run and does something else in its rounds; started like `isonomy`.

It has read the victim's table, except groups and labels, and knows which rows are test rows. What
participants answer is kept in the folder `BAD_KEEP`, as bytes, for the test to judge.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from attacks.organiser import gate
from isonomy.cli import main
from isonomy.core.algorithm import Global
from isonomy.data.tables import files, phases, preprocessing
from isonomy.federation.flower import codec, engine

ONE_ROW, OTHER_QUESTION, REPEAT, OTHER_CHARTER, WIDE = range(1, 6)  # rounds; 0 is honest
CURIOUS = 6  # from this round on, training is honest, and evaluations are of models for one person
VICTIM = 0
_request, _requests, _read = engine.request, engine.Flower._requests, engine.Flower._read


def request(ask: Any, *more: Any) -> dict[str, Any]:
    training = not ask.declared.name.startswith("measure:")
    if training and ask.round == ONE_ROW:
        ask = replace(ask, work=replace(ask.work, steps=1, batch=1))
    head = _request(ask, *more)
    if training and ask.round == OTHER_QUESTION:
        head["phase"] = "measure:train"
    if training and ask.round == REPEAT:
        head["round"] = 0
    if training and ask.round == OTHER_CHARTER:
        head["charter"] = "0" * 64
    return head


def wide(params: dict[str, Any]) -> dict[str, Any]:
    """Eight times as many hidden units."""
    return {
        "linear1.weight": params["linear1.weight"].repeat(8, 1),
        "linear1.bias": params["linear1.bias"].repeat(8),
        "linear2.weight": params["linear2.weight"].repeat(1, 8),
        "linear2.bias": params["linear2.bias"],
    }


def requests(self: Any, ask: Any, name: str, asked: list[int]) -> dict[int, bytes]:
    if name == "local" and ask.round == WIDE:
        ask = replace(ask, message={"params": wide(ask.message["params"])})
    if name.startswith("measure:") and ask.round > CURIOUS:
        rows = test_rows(self.federation)
        person = rows[ask.round % len(rows)]
        ask = replace(
            ask, message={"model": Global(gate(ask.message["model"].params, person.unsqueeze(0)))}
        )
    keep(f"{ask.round}-{name.replace(':', '-')}-asked", codec.pack({}, ask.message))
    return _requests(self, ask, name, asked)


def read(self: Any, content: Any, like: Any, ask: Any, k: int) -> Any:
    got = _read(self, content, like, ask, k)
    if k == VICTIM and not isinstance(got, str):
        name = self.phases.name(ask.phase).replace(":", "-")
        keep(f"{ask.round}-{name}-told", codec.pack({}, got[0]))
    return got


def test_rows(federation: Any) -> torch.Tensor:
    """The features of the victim's test rows, in the order of its table."""
    about = json.loads((Path(os.environ["BAD_RUN"]) / "federation.json").read_text())
    table = files.read(Path(os.environ["BAD_KNOWN"]))
    client = phases.Client(VICTIM, "victim", table, None)
    kept = phases.survey(about["charter"]["survey"], client)[1]
    found = preprocessing.of(federation.preprocessing).transform(table)
    return torch.from_numpy(found[kept == 2])


def keep(name: str, content: bytes) -> None:
    (Path(os.environ["BAD_KEEP"]) / name).write_bytes(content)


if __name__ == "__main__":
    engine.request = request
    engine.Flower._requests = requests  # type: ignore[method-assign]
    engine.Flower._read = read  # type: ignore[method-assign]
    main()
