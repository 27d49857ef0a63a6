"""The package as users get it: its metadata, the archives, an installation, the image, Slurm."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONFIG = """
rounds = 2
data = { name = "synthetic", examples = 300 }
excess = { clusters = "none" }
"""


def run(*command: object, **more: object) -> str:
    """Run a command and return its output; the test fails with what it printed."""
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, **more
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_classifiers_name_the_versions_that_are_supported():
    versions = [c.split(":: ")[-1] for c in PROJECT["classifiers"] if "Python :: 3." in c]
    assert versions == ["3.11", "3.12", "3.13"]
    assert PROJECT["requires-python"] == ">=3.11"


def test_dev_contains_what_make_docs_needs():
    needed = [one for one in PROJECT["optional-dependencies"]["docs"] if "matplotlib" not in one]
    assert set(needed) <= set(PROJECT["optional-dependencies"]["dev"])


def test_the_citation_has_the_version():
    found = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert found[1] == PROJECT["version"]


def test_slurm_runs_a_seed_and_continues_it(tmp_path):
    """The script as a task of a Slurm array runs it, twice."""
    (tmp_path / "mine.toml").write_text(CONFIG)
    program = tmp_path / "bin" / "isonomy"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m isonomy.cli "$@"\n')
    program.chmod(0o755)
    env = os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    env |= {"SLURM_ARRAY_TASK_ID": "3", "SLURM_CPUS_PER_TASK": "1"}
    script = [ROOT / "deploy" / "seeds.sbatch", "mine.toml", "algorithm=fedprox"]
    first = run("bash", *script, cwd=tmp_path, env=env)
    config = tomllib.loads((tmp_path / "runs/mine/seed-3/config.toml").read_text())
    assert config["seed"] == 3
    assert config["algorithm"]["name"] == "fedprox"
    assert config["engine"]["threads"] == 1
    again = run("bash", *script, cwd=tmp_path, env=env)
    assert "Values are from one run, seed 3." in first
    assert "Values are from one run, seed 3." in again


def test_the_dockerfile_copies_what_its_script_needs():
    text = (ROOT / "Dockerfile").read_text()
    copied = [shlex.split(line)[1:-1] for line in text.splitlines() if line.startswith("COPY ")]
    names = [name for line in copied for name in line]
    assert all((ROOT / name).exists() for name in names)
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line[0] == "!"]
    assert set(names) <= set(kept)
    assert {"pyproject.toml", "src", PROJECT["readme"], *PROJECT["license-files"]} <= set(names)


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """The wheel and the source archive."""
    place = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", place, ROOT)
    run(sys.executable, "-m", "twine", "check", "--strict", *place.iterdir())
    (wheel,), (source,) = place.glob("*.whl"), place.glob("*.tar.gz")
    return wheel, source


@pytest.mark.slow
def test_the_archives_hold_the_package_and_little_else(archives):
    wheel, source = archives
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"isonomy", f"isonomy-{PROJECT['version']}.dist-info"}
    for needed in ("isonomy/py.typed", "isonomy/report/page.css", "isonomy/config/presets/"):
        assert any(name.startswith(needed) for name in names), needed
    assert wheel.stat().st_size < 2_000_000
    with tarfile.open(source) as archive:
        tops = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    assert {"src", "tests", "docs", "deploy", "pyproject.toml", "README.md", "LICENSE"} <= tops
    assert not tops & {"runs", "site", "data", ".venv", "dist"}
    assert source.stat().st_size < 8_000_000


@pytest.mark.slow
def test_an_installation_from_the_wheel_works(archives, tmp_path):
    """In a new environment without extras, as a user who has one table and no clone."""
    wheel, _ = archives
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    constraints = ROOT / "constraints.txt"
    run(python, "-m", "pip", "install", "--quiet", "-c", constraints, wheel)
    isonomy = tmp_path / "venv" / "bin" / "isonomy"
    lines = ["group,x,y,label"]
    lines += [f"{'ab'[i % 2]},{i % 7},{(i * i) % 11},{int(i % 7 > 3)}" for i in range(400)]
    (tmp_path / "all.csv").write_text("\n".join(lines))
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"PYTHONWARNINGS": "error"}
    where = {"cwd": tmp_path, "env": env}
    assert run(isonomy, "--version", **where) == f"isonomy {PROJECT['version']}\n"
    assert run(isonomy, "doctor", **where).endswith("No problems.\n")
    options = ["data.path=all.csv", "data.label=label", 'data.protected=["group"]']
    options += ["data.partition=iid", "data.clients=2", "rounds=2", "excess.clusters=none"]
    (tmp_path / "mine.toml").write_text("")
    run(isonomy, "run", "mine.toml", *options, "--to", "runs/one", **where)
    assert (tmp_path / "runs/one/report.html").stat().st_size > 50_000
    require = ["--require", "accuracy >= 0.6", "--trials", "1", "--methods", "fedavg,local"]
    run(isonomy, "decide", "mine.toml", *options, *require, "--to", "runs/two", **where)
    assert (tmp_path / "runs/two/decision.html").exists()


@pytest.mark.slow
def test_the_steps_of_the_image(tmp_path):
    """The files that the Dockerfile copies, its script, and the entry point's default."""
    text = (ROOT / "Dockerfile").read_text()
    for line in text.splitlines():
        if line.startswith("COPY "):
            *names, target = shlex.split(line)[1:]
            folder = tmp_path / target.strip("/")
            for name in names:
                if (ROOT / name).is_dir():
                    shutil.copytree(ROOT / name, folder)
                else:
                    folder.mkdir(parents=True, exist_ok=True)
                    shutil.copy(ROOT / name, folder)
    (script,) = re.findall(r"^RUN sh (\S+) (\S+)$", text, re.MULTILINE)
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"PYTHON": sys.executable}
    target = tmp_path / script[1].strip("/")
    said = run("sh", tmp_path / script[0].strip("/"), target, cwd=tmp_path, env=env)
    assert said.endswith("No problems.\n")
    (entry,) = re.findall(r'^ENTRYPOINT \["(\w+)"\]$', text, re.MULTILINE)
    (default,) = re.findall(r'^CMD \["(\w+)"\]$', text, re.MULTILINE)
    program = target / "bin" / entry
    assert "flwr" in run(program, default, cwd=tmp_path, env=env)
    run(program, "keys", "north", "south", "--to", "keys", cwd=tmp_path, env=env)
    assert (tmp_path / "keys" / "north.pub").exists()
