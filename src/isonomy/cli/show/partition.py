"""The page of a partition: options, and the data sets that it can be used with."""

from __future__ import annotations

from isonomy.cli.printing import print_heading, print_line
from isonomy.cli.shell import console
from isonomy.cli.show.options import print_options


def show(name: str) -> bool:
    """Print the page of a partition: a general one, or one of a single data set."""
    from isonomy.data.datasets import DATASETS
    from isonomy.data.partition import IMAGE_PARTITIONS, PARTITIONS

    general = PARTITIONS | IMAGE_PARTITIONS
    users = [dataset for dataset in DATASETS.values() if name in dataset.partitions]
    if name not in general and not users:
        return False
    out = console()
    if name in general:
        print_heading(out, f"{name}: {general[name].meaning}", "partition")
        print_options(out, "Options", general[name].options)
        print_line(out, f"Data sets that support it: {', '.join(d.name for d in users)}")
    else:
        print_heading(out, f"{name}: clients as a data set defines them", "partition")
        for dataset in users:
            it = dataset.partitions[name]
            print_line(out, f"{dataset.name}: {it.meaning}")
            if it.options:
                print_options(out, f"Options with {dataset.name}", it.options)
    print_line(out, f'In a config: data.partition = {{ name = "{name}" }}')
    return True
