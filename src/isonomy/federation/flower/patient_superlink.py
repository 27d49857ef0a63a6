"""Flower's SuperLink, with a database that waits longer for its lock.

Every poll of every node writes to the SuperLink's database, and Flower waits 5 s for its lock. If
that is not enough on a busy machine, the request fails; if it was a request of the process that
runs the ServerApp, that process ends, and the federation with it.
"""

from __future__ import annotations

SECONDS = 60  # Flower repeats requests that have no answer after 30 s, but not those that fail


def wait_longer() -> None:
    """Let databases that Flower opens in this process wait up to SECONDS for their lock."""
    from flwr.supercore import sql_mixin

    name = "SQLITE_PRAGMAS"
    settings = {**dict(getattr(sql_mixin, name)), "busy_timeout": str(SECONDS * 1000)}
    setattr(sql_mixin, name, tuple(settings.items()))


def main() -> None:
    """Run the SuperLink, as `flower-superlink` does."""
    from flwr.superlink.cli import flower_superlink

    wait_longer()
    flower_superlink()


if __name__ == "__main__":
    main()
