"""The public interface of the package: small, imported lazily, and as the README shows it."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

import isonomy
from isonomy import api
from isonomy.core.algorithm import Algorithm, Global
from isonomy.core.options import option
from isonomy.errors import ConfigError, RunError

SMALL: dict[str, Any] = {
    "data": {"name": "synthetic", "examples": 300},
    "model": {"name": "mlp", "hidden": [4]},
    "evaluate": {"bootstrap": 0},
    "excess": {"clusters": "none"},
}


def test_the_surface_is_this():
    assert isonomy.__all__ == [
        "Algorithm",
        "Client",
        "Cohort",
        "Config",
        "Federation",
        "IsonomyError",
        "Listener",
        "Record",
        "Task",
        "__version__",
        "check",
        "compare",
        "decide",
        "descend",
        "excess",
        "export",
        "federation",
        "figures",
        "frame",
        "load",
        "load_model",
        "make_config",
        "methods",
        "pack",
        "phase",
        "postprocess_run",
        "predictor",
        "resume",
        "run",
        "suggest",
        "sweep",
        "table",
        "trust",
        "tune",
        "write_report",
    ]
    for name in isonomy.__all__:
        assert getattr(isonomy, name) is not None
    assert dir(isonomy) == sorted([*isonomy.__all__, "FairFederatedClassifier"])
    from isonomy import algorithms

    for kind in algorithms.registry().values():
        assert getattr(isonomy, kind.__name__) is kind
    for absent in ("fedprox", "FedNothing"):
        with pytest.raises(AttributeError, match=absent):
            getattr(isonomy, absent)


def test_importing_is_cheap():
    code = "import sys, isonomy; assert not {'torch', 'numpy', 'pydantic'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_ten_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    algorithm = {"name": "fedprox", "mu": 0.1}
    config = isonomy.make_config(**SMALL, algorithm=algorithm, rounds=2, seed=0)
    result = isonomy.run(config)
    assert 0 < result.metrics["accuracy"] < 1
    assert 0 <= result.metrics["group.z.demographic_parity"] <= 1
    results = isonomy.compare(config, algorithms=["fedavg", "local"], seeds=2)
    assert [(r.label, r.seed) for r in results] == [
        ("fedavg", 0),
        ("fedavg", 1),
        ("local", 0),
        ("local", 1),
    ]
    assert "±" in isonomy.table(results)
    assert isonomy.table(result, ["accuracy"], format="csv").startswith("method,accuracy")
    assert isonomy.write_report(results, "report.html").read_text().startswith("<!")


def test_in_memory_and_in_a_folder_are_the_same(tmp_path):
    config = isonomy.make_config(**SMALL, rounds=2)
    memory = isonomy.compare(config, algorithms=["fedavg", isonomy.FedProx(mu=1.0)], seeds=[5])
    folder = isonomy.compare(
        config, tmp_path, algorithms=["fedavg", isonomy.FedProx(mu=1.0)], seeds=[5]
    )
    assert [r.metrics for r in memory] == [r.metrics for r in folder]
    loaded = isonomy.load(tmp_path)
    assert {r.label: r.metrics for r in loaded} == {r.label: r.metrics for r in folder}
    assert {r.seed for r in loaded} == {5}


@dataclass(frozen=True)
class Constant(Algorithm[Global]):
    """Never changes the model."""

    name: ClassVar[str] = "constant"
    extra: float = option(1.0, "not used")

    def init_server(self, task: isonomy.Task, params: Any, clients: int) -> Global:
        """The model."""
        return Global(params)

    def round(self, server: Global, cohort: isonomy.Cohort) -> Global:
        """No exchange."""
        return server


def test_a_users_algorithm_runs_by_instance():
    config = isonomy.make_config(**SMALL, rounds=1, algorithm=Constant(extra=2.0))
    assert config.algorithm.name.endswith(":Constant")
    assert isonomy.run(config).metrics["accuracy"] > 0


class Count(isonomy.Listener):
    """Counts the rounds; stops the run after some of them."""

    def __init__(self, stop: int = 0) -> None:
        self.rounds, self.stop = 0, stop

    def round(self, done: int, rounds: int, metrics: dict[str, float] | None) -> None:
        """One more round."""
        self.rounds += 1
        if done == self.stop:
            raise KeyboardInterrupt


def test_several_listeners_follow_a_run_that_is_resumed(tmp_path):
    config = isonomy.make_config(**SMALL, rounds=3, checkpoint={"every": 1})
    whole = isonomy.run(config)
    first, second = Count(), Count(stop=2)
    with pytest.raises(KeyboardInterrupt):
        isonomy.run(config, tmp_path / "run", listeners=[first, second])
    assert (first.rounds, second.rounds) == (2, 2)
    third = Count()
    result = isonomy.resume(tmp_path / "run", listeners=[third])
    assert third.rounds == 1
    assert result.metrics == whole.metrics
    both = [Count(), Count()]
    isonomy.compare(config, algorithms=["fedavg", "local"], seeds=1, listeners=both)
    assert [one.rounds for one in both] == [6, 6]


def test_what_cannot_be_compared_or_loaded(tmp_path):
    config = isonomy.make_config(**SMALL)
    with pytest.raises(ConfigError, match="algorithm"):
        isonomy.compare(config, algorithms=[])
    with pytest.raises(ConfigError, match="fedavg"):
        isonomy.methods(config, config)
    with pytest.raises(ConfigError, match="nine"):
        isonomy.make_config(nine=9)
    with pytest.raises(RunError, match="no run"):
        isonomy.load(tmp_path)


def test_folders_of_runs_come_in_the_order_of_their_numbers(tmp_path):
    for seed in (0, 2, 10):
        (tmp_path / f"seed-{seed}").mkdir()
        (tmp_path / f"seed-{seed}" / "config.toml").write_text("[versions]\nisonomy = '1'\n")
    assert [p.name for p in api.run_folders(tmp_path)] == ["seed-0", "seed-2", "seed-10"]


def test_a_users_algorithm_is_found_in_the_current_folder(tmp_path):
    """By the installed command, which is in another folder."""
    page = Path(__file__).parents[2] / "docs" / "adding-an-algorithm.md"
    code = page.read_text().split("```python\n")[1].split("```")[0]
    (tmp_path / "own_methods.py").write_text(code)
    command = [str(Path(sys.executable).with_name("isonomy"))]
    name = "own_methods:Skeleton"
    changes = [f"algorithm={name}", "algorithm.strength=2.0", "data=synthetic", "rounds=1"]
    changes += ["model=logistic", "excess.clusters=none"]
    run = ["run", "quickstart", *changes, "--to", "run", "--no-report"]
    for words in ([*run, "--trust", "own_methods"], ["show", name]):
        done = subprocess.run(
            command + words, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    assert "strength" in done.stdout
    wrong = ["run", "quickstart", "algorithm=own_methods:Skeletton", "--trust", "own_methods"]
    done = subprocess.run(
        command + wrong, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "Did you mean 'Skeleton'?" in done.stderr
