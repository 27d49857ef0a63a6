"""The skeleton of docs/adding-an-algorithm.md, copied, filled and put through the contract."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from contract.table import ENGINES
from contract.test_contract import CLAUSES
from isonomy.config.schema import parse
from isonomy.contract import checks
from isonomy.runs.training import run

PAGE = Path(__file__).parents[2] / "docs" / "adding-an-algorithm.md"

FILLED = {
    "# FILL 1: the exchanges of a round": "# every client has the same weight",
    'cohort.mean(self.local, {"params": server.params})': (
        'cohort.mean(self.local, {"params": server.params}, weight="equal")'
    ),
    "# FILL 2: the local objective\n        objective = task.loss": (
        "objective = lambda p, batch: self.strength * task.loss(p, batch)"
    ),
    "# FILL 3: what is sent back": "# the model",
}


@pytest.fixture(scope="module")
def skeleton(tmp_path_factory):
    """The page's code with its three places filled: FedAvg with equal weights and a scaled loss."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    for old, new in FILLED.items():
        assert code.count(old) == 1, old
        code = code.replace(old, new)
    assert "FILL" not in code
    path = tmp_path_factory.mktemp("own") / "my_methods.py"
    path.write_text(code)
    spec = importlib.util.spec_from_file_location("my_methods", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["my_methods"] = module
    spec.loader.exec_module(module)
    yield module.Skeleton
    del sys.modules["my_methods"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("clause", CLAUSES, ids=lambda clause: clause.__name__)
def test_the_filled_skeleton_keeps_the_contract(skeleton, clause, engine):
    clause(skeleton(strength=0.5), ENGINES[engine])


def test_its_engines_agree(skeleton):
    checks.check_engines_agree(skeleton(strength=0.5), ENGINES["batched"])
    checks.check_phases_pure(skeleton(strength=0.5))


def test_it_is_fedavg_in_its_limit(skeleton):
    from isonomy.algorithms.average.fedavg import FedAvg

    checks.check_same_run(skeleton(strength=1.0), FedAvg(weight="equal"), ENGINES["batched"])


def test_it_runs_by_its_import_path(skeleton):
    config = parse(
        {
            "algorithm": {"name": "my_methods:Skeleton", "strength": 2.0},
            "data": {"name": "synthetic", "clients": 3, "examples": 300},
            "model": "logistic",
            "rounds": 2,
            "excess": {"clusters": "none"},
        }
    )
    assert 0.5 < run(config).metrics["accuracy"] <= 1
