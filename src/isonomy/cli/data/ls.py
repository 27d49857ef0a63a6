"""`data ls`: the data sets, their download sizes, and which are in the cache."""

from __future__ import annotations

from isonomy.cli import shell
from isonomy.cli.data.downloads import cached_choice
from isonomy.cli.printing import print_columns, print_line


def ls() -> None:
    """List the data sets, their download sizes, and whether their files are in the cache.

    Example: isonomy data ls
    """
    from isonomy.data.datasets import DATASETS
    from isonomy.data.download.fetch import folder

    cache = folder()
    rows = []
    for name, dataset in sorted(DATASETS.items()):
        size = here = ""
        if dataset.files:
            size = megabytes(sum(file.size for file in dataset.files[0]))
            here = "yes" if cached_choice(dataset.files, cache) else ""
        rows.append((name, dataset.description, size, here))
    out = shell.console()
    print_columns(out, "Data sets", ("name", "what it is", "download", "in the cache"), rows)
    print_line(out, f"The cache is {cache}.")


def megabytes(size: int) -> str:
    """A number of bytes as text.

    >>> megabytes(5_977_458), megabytes(41_000)
    ('6.0 MB', '0.04 MB')
    """
    mb = size / 1e6
    return f"{mb:.0f} MB" if mb >= 10 else f"{mb:.1f} MB" if mb >= 0.1 else f"{mb:.2f} MB"
