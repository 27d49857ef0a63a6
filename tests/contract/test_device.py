"""Phases run on a device: on a fake GPU for every algorithm, and on a real one if there is any."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from contract.table import algorithms
from isonomy.config.schema import parse
from isonomy.engines.devices import Place, place_of
from isonomy.errors import ConfigError
from isonomy.runs.build import build, engine_of
from isonomy.runs.device_check import check_device

TESTS = Path(__file__).parent.parent


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_phases_run_on_a_fake_gpu(every: bool) -> None:
    """No phase uses a tensor of the CPU or reads a number from a tensor, traced as on a GPU."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-m", "contract.device", *(["all"] if every else [])],
        env={**env, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert len(report["traced"]) > 30  # some algorithms have no local loop
    found = report["problems"]
    planted = {label: found.pop(label) for label in list(found) if label.startswith("planted")}
    assert len(planted) == 4
    assert all(planted.values()), planted
    assert set(found) == set(algorithms(main=not every))
    assert {label: what for label, what in found.items() if what} == {}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_algorithms_on_this_gpu() -> None:
    assert [found for found in check_device("cuda") if found.problem] == []


def test_the_check_of_a_device_compares() -> None:
    """On the CPU itself nothing differs."""
    assert [found.problem for found in check_device("cpu", ["fedavg", "fmtl"])] == [None, None]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"engine.device = 'cuda', but .*'cpu'"):
        place_of("cuda")
    assert place_of("auto").host == (not torch.backends.mps.is_available())
    setting = build(
        parse({"data": {"name": "synthetic", "examples": 200}, "engine": {"device": "cuda"}})
    )
    with pytest.raises(ConfigError, match=r"engine.device"):
        engine_of(setting)


def test_a_reference_engine_on_a_device_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"engine\.name = 'batched'"):
        build(parse({"engine": {"name": "loop", "device": "cuda"}}))


def test_the_cpu_is_a_place_that_changes_nothing() -> None:
    value = {"x": torch.ones(2)}
    assert Place().put(value) is value
