"""`isonomy check`: an algorithm of one's own, right and wrong."""

from __future__ import annotations

import sys

import pytest

RIGHT = """
from dataclasses import dataclass
from typing import ClassVar, NamedTuple
from isonomy.blocks.descent import descend
from isonomy.core.algorithm import Algorithm
from isonomy.core.phase import phase


class Server(NamedTuple):
    params: dict


@dataclass(frozen=True)
class Mine(Algorithm[Server]):
    name: ClassVar[str] = "mine"
    family: ClassVar[str] = "own"
    paper: ClassVar[str] = "none"
    reveals: ClassVar[str] = "the mean of models"

    def init_server(self, task, params, clients):
        return Server(params)

    def round(self, server, cohort):
        return Server(cohort.mean(self.local, {"params": server.params})["params"])

    @phase("mean", params="model")
    def local(self, task, message, client):
        made = descend(task.loss, message["params"], client)
        return {"params": made}, client.state
"""


@pytest.fixture
def own(place, monkeypatch):
    monkeypatch.syspath_prepend(str(place))

    def write(name: str, text: str) -> str:
        (place / f"{name}.py").write_text(text)
        sys.modules.pop(name, None)
        return f"{name}:Mine"

    return write


def test_a_right_algorithm_passes(cli, own):
    result = cli("check", own("right_one", RIGHT), "--trust", "right_one")
    assert "all 5 checks passed" in result.output


def test_randomness_of_its_own_is_found(cli, own):
    """Noise that is not drawn from the seed: the same run gives other bits."""
    noisy = RIGHT.replace("import phase\n", "import phase\nimport torch\n").replace(
        '        return Server(cohort.mean(self.local, {"params": server.params})["params"])',
        '        new = cohort.mean(self.local, {"params": server.params})["params"]\n'
        "        return Server({k: v + torch.rand(()) for k, v in new.items()})",
    )
    result = cli("check", own("noisy_one", noisy), "--trust", "noisy_one", code=1)
    assert "failed  repeats" in result.output
    assert "tensors differ by up to" in result.output


def test_a_reply_that_is_not_declared_is_found(cli, own):
    wrong = RIGHT.replace('return {"params": made}', 'return {"params": made, "size": client.size}')
    result = cli("check", own("wrong_one", wrong), "--trust", "wrong_one", code=1)
    assert "failed  runs" in result.output
    assert "1 of 1 checks failed" in result.output
    assert "Traceback" not in result.output


def test_code_that_is_not_trusted_is_not_run(cli, own):
    result = cli("check", own("unknown_one", RIGHT), code=1)
    assert "--trust" in result.output
