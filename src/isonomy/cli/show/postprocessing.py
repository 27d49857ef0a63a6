"""The page of a post-processing method: options, what its clients report, an example."""

from __future__ import annotations

from isonomy.cli.printing import print_heading, print_line
from isonomy.cli.shell import console, first_sentence
from isonomy.cli.show.options import print_options


def show(name: str) -> bool:
    """Print the page of a post-processing method."""
    from isonomy.core.options import options_of
    from isonomy.postprocess import METHODS

    if name not in METHODS:
        return False
    kind = METHODS[name]
    out = console()
    print_heading(out, f"{name}: {first_sentence(kind.__doc__)}", f"post-processing; {kind.paper}")
    print_options(out, "Options", options_of(kind))
    classes = "two or more" if kind.several_classes else "two"
    print_line(out, f"Needs: {classes} classes, and a protected attribute, also to predict.")
    print_line(out, f"Revealed to the server: {kind.reveals}.")
    print_line(out, f'In a config: postprocess = {{ name = "{name}", budget = 0.05 }}')
    print_line(out, f"For a finished run: isonomy postprocess RUN {name} budget=0.05 --to FOLDER")
    return True
