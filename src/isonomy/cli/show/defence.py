"""The page of a defence: options, needs, and what it reveals to the server."""

from __future__ import annotations

from isonomy.cli.printing import print_heading, print_line
from isonomy.cli.shell import console, first_sentence
from isonomy.cli.show.options import example_of, print_options


def show(name: str) -> bool:
    """Print the page of a defence."""
    from isonomy.core.options import options_of
    from isonomy.robust.combiners import COMBINERS

    if name not in COMBINERS:
        return False
    kind = COMBINERS[name]
    options = options_of(kind)
    out = console()
    print_heading(out, f"{name}: {first_sentence(kind.__doc__)}", f"defence; {kind.paper}")
    print_options(out, "Options", options)
    print_line(out, f"Clients' weights: {kind.weights}.")
    if kind.needs:
        print_line(out, f"Needs: {kind.needs}.")
    print_line(
        out,
        "Revealed to the server: every client's update, where it would otherwise see only the "
        "mean.",
    )
    if kind.losses:
        print_line(out, "Also revealed: every client's loss, in one more exchange per round.")
    print_line(out, f'In a config: defence = {{ name = "{name}"{example_of(options)} }}')
    return True
