"""A simulation needs nothing that only Unix has.

Windows has no `fcntl`, `resource`, `pwd` or `termios`, no Unix sockets, `fork` or process groups.
The script below takes them away before anything else is imported, and uses the package.
"""

import subprocess
import sys

import pytest

from isonomy.errors import ConfigError
from isonomy.federation.flower import processes

WITHOUT = """
import os, signal, socket, sys
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None  # an import raises ImportError
for module, names in (
    (os, ("fork", "forkpty", "killpg", "setsid", "sysconf", "O_NOFOLLOW")),
    (socket, ("AF_UNIX", "socketpair")),
    (signal, ("SIGKILL", "SIGHUP", "SIGUSR1", "SIGALRM", "pthread_sigmask")),
):
    for name in names:
        delattr(module, name)
"""
SIMULATION = """
import isonomy
from isonomy.cli import app
from typer.testing import CliRunner

small = ["data=synthetic", "data.examples=300", "rounds=1", "excess.clusters=none"]
config = isonomy.make_config("quickstart", *small)
record = isonomy.run(config, "runs/one")
assert 0.3 < record.metrics["accuracy"] <= 1
assert isonomy.resume("runs/one").metrics == record.metrics
results = isonomy.compare(config, "runs/two", algorithms=["fedavg", "local"], seeds=1)
isonomy.write_report(results, "report.html")
with open("all.csv", "w") as file:
    file.write("site,sex,x,ill\\n")
    file.writelines(f"{i % 3},{'fm'[i % 2]},{i % 7},{int(i % 7 > 3)}\\n" for i in range(300))
own = {"path": "all.csv", "client": "site", "label": "ill", "protected": ["sex"]}
tables = isonomy.make_config(data=own, rounds=1, excess={"clusters": "none"})
decision = isonomy.decide(
    tables, "runs/three", require=["accuracy >= 0.5"], trials=1, methods=["fedavg"]
)
assert decision.outcome == "met"
isonomy.export("runs/one", "model")
done = CliRunner().invoke(app, ["doctor"])
assert done.exit_code == 0, done.output
assert not any(name.startswith("isonomy.federation") for name in sys.modules)
print("no problem")
"""


def test_a_simulation_runs_without_what_only_unix_has(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT + SIMULATION],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("no problem\n")


def test_the_script_takes_them_away():
    for use in ("import fcntl", "import os; os.fork", "import socket; socket.AF_UNIX"):
        done = subprocess.run([sys.executable, "-c", WITHOUT + use], capture_output=True)
        assert done.returncode == 1


@pytest.mark.parametrize("verb", ["serve", "demo-federation"])
def test_the_organiser_says_what_it_needs(verb, monkeypatch):
    monkeypatch.delattr(processes.os, "killpg")
    monkeypatch.setattr(processes.sys, "platform", "win32")
    with pytest.raises(ConfigError, match="Unix sockets and process groups, which win32 does not"):
        processes.need_local_sockets(f"isonomy {verb}")
