"""Which rows go to which client, and which of a client's rows train, validate and test.

Every partition is a pure function of the rows' labels, groups and named columns (`Rows`), the
number of clients and a seed. It returns one tensor of row numbers per client, in ascending order;
every row goes to exactly one client, and every client gets at least `minimum` rows. Random draws
come from NumPy's PCG64, keyed by the seed: the same seed gives the same clients on every machine.

To add a partition, write one function with the decorator `@partition` in one of the modules
`random_rows`, `label_skew`, `by_column` or `rotation` (or in a new module that is imported below).

>>> import numpy as np
>>> rows = Rows(np.array([0, 0, 0, 1, 1, 1]))
>>> [part.tolist() for part in iid(rows, 2, seed=0, minimum=1)]
[[0, 1, 5], [2, 3, 4]]
"""

from __future__ import annotations

# Partitions are listed in the order in which they are imported here.
from isonomy.data.partition.random_rows import iid, power_law  # isort: split

from isonomy.data.partition.label_skew import dirichlet, shards, uneven, windows  # isort: split

from isonomy.data.partition.by_column import by_column, column_names  # isort: split

from isonomy.data.partition.rotation import rotation_angles, rotations  # isort: split

from isonomy.data.partition.allocation import allocate, assign
from isonomy.data.partition.registry import IMAGE_PARTITIONS, PARTITIONS, Partition, Spec, plan
from isonomy.data.partition.rows import Categories, Integers, Rows, Seed, generator
from isonomy.data.partition.sizes import largest_remainders
from isonomy.data.partition.splits import FRACTIONS, split

__all__ = [
    "FRACTIONS",
    "IMAGE_PARTITIONS",
    "PARTITIONS",
    "Categories",
    "Integers",
    "Partition",
    "Rows",
    "Seed",
    "Spec",
    "allocate",
    "assign",
    "by_column",
    "column_names",
    "dirichlet",
    "generator",
    "iid",
    "largest_remainders",
    "plan",
    "power_law",
    "rotation_angles",
    "rotations",
    "shards",
    "split",
    "uneven",
    "windows",
]
