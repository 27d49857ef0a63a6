"""The page of a data set: source, licence, options, protected attributes, partitions."""

from __future__ import annotations

from isonomy.cli.printing import print_heading, print_line
from isonomy.cli.shell import console
from isonomy.cli.show.options import print_options, value_text


def show(name: str) -> bool:
    """Print the page of a data set."""
    from isonomy.data.datasets import DATASETS

    if name not in DATASETS:
        return False
    it = DATASETS[name]
    out = console()
    subtitle = f"data set; {it.source}; licence: {it.licence}"
    print_heading(out, f"{name}: {it.description}", subtitle)
    print_options(out, "Options", it.options)
    print_line(out, f"Protected attributes: {', '.join(it.protected) or 'none'}")
    fixed = it.partitions[str(it.partition["name"])].counts
    print_line(out, f"Clients: {'those of the data' if fixed else it.clients}")
    print_line(out, f"Partition: {value_text(dict(it.partition))}")
    print_line(out, f"Available partitions: {', '.join(it.partitions)}")
    example = f'name = "{name}"' if fixed else f'name = "{name}", clients = {it.clients}'
    print_line(out, f"In a config: {it.example or f'data = {{ {example} }}'}")
    return True
