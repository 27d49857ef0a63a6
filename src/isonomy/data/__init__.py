"""Data: federations, the ways to make clients of rows, and data sets by name."""

from isonomy.data.datasets import DATASETS, load
from isonomy.data.federation import SPLITS, Attribute, Federation, Split, build
from isonomy.data.partition import PARTITIONS

__all__ = [
    "DATASETS",
    "PARTITIONS",
    "SPLITS",
    "Attribute",
    "Federation",
    "Split",
    "build",
    "load",
]
