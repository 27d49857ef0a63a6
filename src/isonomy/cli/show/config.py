"""The page of every key of a config, with defaults and meanings."""

from __future__ import annotations

from isonomy.cli.printing import print_columns, print_heading, print_line
from isonomy.cli.shell import console
from isonomy.cli.show.options import value_text


def show(name: str) -> bool:
    """Print every key of a config, if the name is 'config'."""
    if name != "config":
        return False
    from isonomy.config.reference import all_keys

    rows = [(key, value_text(k.default), k.meaning) for key, k in all_keys() if key != "versions"]
    out = console()
    print_heading(out, "config: every key of an experiment's config", "a TOML file, or key=value")
    print_columns(out, "Keys", ("key", "default", "meaning"), rows)
    print_line(out, "Data sets, models and algorithms have further options: isonomy show NAME.")
    return True
