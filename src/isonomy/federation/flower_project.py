"""Both apps for a Flower project of one's own: name them in its pyproject.toml, and `flwr run`.

The ServerApp reads `config`, `clients` (north,south) and `run` (a folder) from the run's config;
the ClientApp reads `data`, `home`, `name` and `agree = true` from its node's config. What they
reveal is in the charter, which `agree` agrees to; `charter.words` has it in plain words.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from isonomy.config.files import read
from isonomy.errors import ConfigError
from isonomy.federation import organiser
from isonomy.federation.flower import project_apps
from isonomy.federation.participant import Member
from isonomy.runs.folder import RunFolder
from isonomy.runs.training import Listener


class _Log(Listener):
    def note(self, text: str) -> None:
        """Into the ServerApp's log."""
        print(f"Note: {text}", flush=True)


def conduct(line: project_apps.GridLine, given: project_apps.Settings) -> None:
    """The whole run, or what is left of it."""
    for name in ("config", "clients", "run"):
        if not given.get(name):
            raise ConfigError(f"the run's config has no '{name}'; give it in pyproject.toml.")
    folder = Path(str(given["run"]))
    names = [name.strip() for name in str(given["clients"]).split(",")]
    if RunFolder(folder).exists:
        plan = organiser.again(folder)
    else:
        plan = organiser.begin(read(str(given["config"])), folder, names)
    wait, timeout = float(given.get("wait", 600)), float(given.get("timeout", 120))
    organiser.conduct(plan, line, nodes=None, wait=wait, timeout=timeout, listener=_Log())


def answering(given: project_apps.Settings) -> Callable[[bytes], bytes]:
    """A participant of this node's config; a process lasts one message, its folder stays."""
    for name in ("data", "home", "name"):
        if not given.get(name):
            raise ConfigError(f"the node's config has no '{name}'; give it with --node-config.")
    agreed = given.get("agree") is True
    member = Member(
        Path(str(given["data"])),
        Path(str(given["home"])),
        decide=lambda _: agreed,
        name=str(given["name"]),
    )

    def answer(request: bytes) -> bytes:
        out = member.answer(request)
        if member.trouble is not None:
            raise member.trouble  # Flower's log on this machine has it
        return out

    return answer


server = project_apps.server_app(conduct)
client = project_apps.client_app(answering)
