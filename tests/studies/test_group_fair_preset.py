"""The preset of the group-fair family: all methods are in it, and each is a valid experiment."""

from __future__ import annotations

from isonomy import algorithms
from isonomy.studies.reproduce import find, methods_of

FAMILY = {
    "agnosticfair",
    "equifl",
    "fair_fate",
    "fairfed",
    "fcfl",
    "fedfair",
    "fedfb",
    "gifair",
    "lft_ensemble",
    "lft_fedavg",
}


def test_every_method_is_there_and_valid() -> None:
    preset = find("group-fair-adult")
    for quick in (False, True):
        chosen = methods_of(preset, "quick" if quick else None)
        assert len({m.label for m in chosen}) == len(preset.methods)
        made = {m.config.algorithm.name for m in chosen}
        assert made >= FAMILY | {"fedavg"}
        for m in chosen:
            algorithms.make(m.config.algorithm.name, m.config.algorithm.options)


def test_settings_of_a_method_are_one_series() -> None:
    preset = find("group-fair-adult")
    for table, method in zip(preset.methods, methods_of(preset), strict=True):
        assert method.config.series == table["label"]
