"""The page of an attack: options, and what the attacker knows."""

from __future__ import annotations

from isonomy.cli.printing import print_heading, print_line
from isonomy.cli.shell import console, first_sentence
from isonomy.cli.show.options import example_of, print_options


def show(name: str) -> bool:
    """Print the page of an attack."""
    from isonomy.core.options import options_of
    from isonomy.robust.attacks import ATTACKS

    if name not in ATTACKS:
        return False
    kind = ATTACKS[name]
    options = options_of(kind)
    out = console()
    print_heading(out, f"{name}: {first_sentence(kind.__doc__)}", f"attack; {kind.paper}")
    print_options(out, "Options", options)
    print_line(out, f"The attacker knows: {kind.sees}.")
    print_line(
        out,
        "Every attack also has the options fraction or clients (which clients are malicious), "
        "labels (whether labels are poisoned too) and seed.",
    )
    print_line(out, "Metrics are measured on the benign clients only.")
    example = f'name = "{name}", fraction = 0.2{example_of(options)}'
    print_line(out, f"In a config: attack = {{ {example} }}")
    return True
