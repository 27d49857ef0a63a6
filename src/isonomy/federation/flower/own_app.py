"""A participant runs its own ClientApp, and never the one that the organiser sends.

Flower's program `flwr-clientapp` installs and imports the app that comes from the SuperLink. Here
it is given the app of this installation instead. Nothing of what was sent is written or imported.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

REPLACED = (
    "install_from_fab",
    "get_project_dir",
    "install_app_dependencies",
    "get_load_client_app_fn",
)


def use_own_app() -> None:
    """Let Flower's program in this process run the app of `client_app`.

    Raises RuntimeError if this version of Flower has no such steps: then no message is answered.
    """
    from flwr.supernode.runtime import run_clientapp as program

    from isonomy.federation.flower.client_app import app

    missing = [name for name in REPLACED if not hasattr(program, name)]
    if missing:
        raise RuntimeError(f"this version of Flower has no {', '.join(missing)}")

    def nothing(*_: object, **__: object) -> None:
        """Install nothing."""

    def nowhere(*_: object, **__: object) -> Path:
        return Path()

    def own(*_: object, **__: object) -> Any:
        return lambda *_: app

    for name, step in zip(REPLACED, (nothing, nowhere, nothing, own), strict=True):
        setattr(program, name, step)


def main() -> None:
    """Answer one message, as `flwr-clientapp` does."""
    from flwr.supernode.cli import flwr_clientapp

    use_own_app()
    flwr_clientapp()


if __name__ == "__main__":
    main()
