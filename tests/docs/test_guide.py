"""The guide's examples are run as they stand there."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from isonomy.config.schema import parse
from isonomy.studies.compare import methods

GUIDE = (Path(__file__).parents[2] / "docs" / "guide.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, flags=re.DOTALL)


def test_the_python_example():
    (code,) = blocks("python")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    said = r"after 5 rounds, worst off: client \d with accuracy \d\.\d\d\n"
    assert re.fullmatch(said, done.stdout)


def test_the_configs_are_valid():
    one, many, own = blocks("toml")
    config = parse(tomllib.loads(one + many))
    assert config.data.options["protected"][2] == "sex*race"
    assert [m.label for m in methods(config)] == ["FedAvg", "FedProx, smaller steps"]
    assert methods(config)[1].config.local.lr == 0.05
    assert methods(config)[1].config.local.schedule == "exponential"
    assert parse(tomllib.loads(own)).model.options == {"width": 32}
