"""The page of a model: options, the data it accepts, losses."""

from __future__ import annotations

from isonomy.cli.printing import print_heading, print_line
from isonomy.cli.shell import console
from isonomy.cli.show.options import print_options


def show(name: str) -> bool:
    """Print the page of a model."""
    from isonomy.models import MODELS

    if name not in MODELS:
        return False
    it = MODELS[name]
    out = console()
    print_heading(out, f"{name}: {it.description}", "model")
    print_options(out, "Options", it.options)
    print_line(out, f"Accepts: {it.accepts}")
    print_line(out, f"Losses: {', '.join(it.losses)} (default: the first that fits the data)")
    print_line(out, f'In a config: model = {{ name = "{name}" }}')
    return True
