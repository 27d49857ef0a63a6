"""Figures of runs, for a notebook or for the page; one file per figure.

Each file has a function `draw` that takes records and returns views, each a chart
(`isonomy.report.svg`) with its entry in the figure's menu, or none if the runs contain nothing to
draw; and a `FIGURE` with its title and caption. To add a figure, write such a file and add it to
`FIGURES`.
"""

from __future__ import annotations

from dataclasses import dataclass

from isonomy.report.figures import (
    clients,
    costs,
    excess,
    groups,
    holdings,
    learnt_fronts,
    learnt_preferences,
    recorded,
    rounds,
    setting_fronts,
    trade_off,
)
from isonomy.report.figures.drawing import Kind, View
from isonomy.runs.record import Record

FIGURES: tuple[Kind, ...] = (
    setting_fronts.FIGURE,
    trade_off.FIGURE,
    learnt_fronts.FIGURE,
    learnt_preferences.FIGURE,
    groups.FIGURE,
    clients.FIGURE,
    excess.FIGURE,
    rounds.FIGURE,
    recorded.FIGURE,
    holdings.FIGURE,
    costs.FIGURE,
)
"""Every kind of figure, in the order of the page."""


@dataclass(frozen=True)
class Figure:
    """A drawn figure with its title and caption."""

    name: str
    title: str
    caption: str
    views: tuple[View, ...]


def all_figures(records: list[Record]) -> list[Figure]:
    """Every figure that the runs have data for, in the order of the page."""
    found = []
    for kind in FIGURES:
        views = kind.draw(records)
        if views:
            found.append(Figure(kind.name, kind.title, kind.caption, tuple(views)))
    return found
