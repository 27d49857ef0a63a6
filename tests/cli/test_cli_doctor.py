"""`isonomy doctor`, `--version` and completion in a shell."""

import shutil
import subprocess
import sys
from importlib import metadata

import pytest
import torch

from isonomy.cli import doctor


def test_the_version(cli):
    assert cli("--version").stdout == f"isonomy {metadata.version('isonomy')}\n"


def test_a_complete_installation(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("ISONOMY_DATA", str(tmp_path / "cache"))
    said = cli("doctor").stdout
    for package in ("torch", "numpy", "duckdb"):
        assert f"{package} " in said
        assert metadata.version(package) in said
    assert str(tmp_path / "cache") in said
    assert "0 of 1" in said  # no data set is in the new cache
    assert said.endswith("No problems.\n")


def test_what_is_missing_or_too_old_is_named(cli, monkeypatch):
    known = doctor._version
    pretend = {"duckdb": None, "numpy": "1.26.4", "flwr": None}
    monkeypatch.setattr(doctor, "_version", lambda name: pretend.get(name, known(name)))
    said = cli("doctor", code=1).stdout
    assert "Problem: duckdb: run `pip install 'duckdb" in said
    assert "Problem: numpy: isonomy needs numpy" in said
    assert "pip install 'isonomy[flower]'" in said
    assert "No problems" not in said


def test_a_cache_that_cannot_be_written(cli, monkeypatch):
    monkeypatch.setattr(doctor.os, "access", lambda path, mode: False)
    assert "set ISONOMY_DATA to a folder that you can write to" in cli("doctor", code=1).stdout


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("isonomy doc", ["doctor"]),
        ("isonomy run quick", ["quickstart"]),
        ("isonomy run tin", ["tiny.toml"]),
        ("isonomy run --over", ["--overwrite"]),
    ],
)
def test_bash_completes(typed, offered, place):
    if shutil.which("bash") is None:
        pytest.skip("bash is not installed")
    program = place / "isonomy"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m isonomy.cli "$@"\n')
    program.chmod(0o755)
    script = f"""
        eval "$(_ISONOMY_COMPLETE=source_bash ./isonomy)"
        COMP_WORDS=({typed}); COMP_CWORD={len(typed.split()) - 1}
        _isonomy_completion ./isonomy
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.split() == offered, done.stderr


def test_a_device_that_is_not_there_is_refused(cli):
    assert "unknown device 'tpu'" in cli("doctor", "--device", "tpu", code=2).stderr
    # it may be the CPU, and then nothing would be compared
    assert "unknown device 'auto'" in cli("doctor", "--device", "auto", code=2).stderr
    if not torch.cuda.is_available():
        said = cli("doctor", "--device", "cuda", code=2)
        assert "the same as on the CPU" not in said.stdout
        assert "engine.device = 'cuda'" in said.stderr
