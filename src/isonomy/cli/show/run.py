"""The page of a run: its main metrics, and the verdict of its method."""

from __future__ import annotations

from pathlib import Path

from isonomy.cli import output


def show(name: str) -> bool:
    """Print the main metrics of a run, if the name is the folder of one."""
    if not (Path(name) / "config.toml").is_file():
        return False
    from isonomy import api
    from isonomy.report.tables import verdict_table

    record = api.load_one(name)
    output.print_run(record)
    output.print_verdict(record)
    found = verdict_table(record)
    if found is not None:
        output.print_table(found)
    return True
