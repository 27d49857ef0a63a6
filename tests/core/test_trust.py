"""Code that is not part of isonomy is imported only if the user allows it."""

import os
import subprocess
import sys

import pytest

import isonomy
from isonomy.core.importing import TRUST, from_path, trusted
from isonomy.errors import ConfigError
from isonomy.runs.folder import RunFolder

SMALL = {"data": {"name": "synthetic", "examples": 60}, "rounds": 1, "model": "logistic"}


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A module in the current folder that leaves a file when it is imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    (tmp_path / "evil.py").write_text("open('was-here', 'w').close()\nclass X: pass\n")
    yield tmp_path / "was-here"
    sys.modules.pop("evil", None)


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"name": "os:system", "command": "touch was-here"}},
        {"model": {"name": "subprocess:Popen", "args": "touch was-here"}},
        {"model": "evil:X"},
        {"algorithm": "evil:X"},
        {"algorithm": {"name": "pffl", "constraint": "evil:X"}},
    ],
)
def test_a_config_cannot_run_other_code(evil, change):
    with pytest.raises(ConfigError, match=r"--trust|not a torch\.nn\.Module"):
        isonomy.run(isonomy.make_config(**(SMALL | change)))
    assert not evil.exists()


NET = """
import torch
open('was-here', 'w').close()
class Net(torch.nn.Linear):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
"""


@pytest.mark.slow
def test_a_foreign_run_is_not_resumed_with_its_code(evil):
    (evil.parent / "net.py").write_text(NET)
    isonomy.trust("net")
    config = isonomy.make_config(**(SMALL | {"model": "net:Net", "excess": {"clusters": "none"}}))
    isonomy.run(config, "run")
    RunFolder(evil.parent / "run").reopen()
    evil.unlink()
    command = [sys.executable, "-m", "isonomy.cli", "resume", "run"]
    env = {name: value for name, value in os.environ.items() if name != TRUST}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 2
    assert "'net:Net' is not part of isonomy" in done.stderr
    assert not evil.exists()
    done = subprocess.run([*command, "--trust", "net"], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert evil.exists()


def test_what_is_trusted_is_imported(evil):
    isonomy.trust("evil")
    with pytest.raises(ConfigError, match="not a subclass"):
        isonomy.run(isonomy.make_config(**SMALL | {"algorithm": "evil:X"}))
    assert evil.exists()


def test_a_name_covers_what_is_below_it_and_nothing_else():
    isonomy.trust("pack.nets", "other:Net")
    assert trusted("pack.nets:Net")
    assert trusted("pack.nets.deep:Net")
    assert trusted("other:Net")
    for path in ("pack:Net", "pack.netsx:Net", "other:Netx", "other.sub:Net"):
        assert not trusted(path)


@pytest.mark.parametrize("name", ["", "a b", "a;b", "a,b"])
def test_a_malformed_name_is_refused(name):
    with pytest.raises(ConfigError, match="write a name as"):
        isonomy.trust(name)


def test_a_class_that_the_user_imported_needs_no_permission():
    assert from_path("model", "torch.nn:Linear").__name__ == "Linear"
    assert trusted("torch.nn:Linear")  # also in the processes of --jobs
    with pytest.raises(ConfigError, match="--trust os:system"):
        from_path("model", "os:system")
