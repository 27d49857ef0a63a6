"""Both apps for your own Flower project: name them in its pyproject.toml, and use `flwr run`.

The ServerApp reads `config`, `clients` (north,south) and `run` (a folder) from the run's config;
the ClientApp reads `data`, `home`, `name` and `agree = true` from its node's config. `agree` is the
consent to the charter, which `consent.consent_text` describes; `rows` and `cell` are the limits
that this participant insists on, by default those of the config's table `privacy`, and `exact` and
`share-rows` are those of `isonomy join`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from isonomy.config.files import read
from isonomy.config.privacy import PrivacyConfig
from isonomy.errors import ConfigError
from isonomy.federation import organiser
from isonomy.federation.flower import project_apps
from isonomy.federation.participant import Participant
from isonomy.runs.folder import RunFolder
from isonomy.runs.listener import Listener


class _Log(Listener):
    def note(self, text: str) -> None:
        """Print it to the log of the ServerApp."""
        print(f"Note: {text}", flush=True)


def conduct(transport: project_apps.GridTransport, given: project_apps.Settings) -> None:
    """Run the whole federation, or resume it."""
    for name in ("config", "clients", "run"):
        if not given.get(name):
            raise ConfigError(f"the run's config has no '{name}'; set it in pyproject.toml.")
    folder = Path(str(given["run"]))
    names = [name.strip() for name in str(given["clients"]).split(",")]
    if RunFolder(folder).exists:
        plan = organiser.reopen(folder)
    else:
        plan = organiser.begin(read(str(given["config"])), folder, names)
    wait, timeout = float(given.get("wait", 600)), float(given.get("timeout", 120))
    organiser.conduct(plan, transport, nodes=None, wait=wait, timeout=timeout, listeners=[_Log()])


def answering(given: project_apps.Settings) -> Callable[[bytes], bytes]:
    """A participant with this node's config; its process handles one message, its folder stays."""
    for name in ("data", "home", "name"):
        if not given.get(name):
            raise ConfigError(f"the node's config has no '{name}'; set it with --node-config.")
    agreed = given.get("agree") is True
    participant = Participant(
        Path(str(given["data"])),
        Path(str(given["home"])),
        decide=lambda _: agreed,
        name=str(given["name"]),
        rows=int(given.get("rows", PrivacyConfig().rows)),
        cell=int(given.get("cell", PrivacyConfig().cell)),
        exact=given.get("exact") is True,
        share_rows=given.get("share-rows") is True,
        lasting=False,
    )

    def answer(request: bytes) -> bytes:
        out = participant.answer(request)
        if participant.error is not None:
            raise participant.error  # shown in Flower's log on this machine
        return out

    return answer


server = project_apps.server_app(conduct)
client = project_apps.client_app(answering)
