"""Figures for a notebook: the same charts as those of the page, shown where they are made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape as attribute_text
from pathlib import Path

from isonomy.errors import ConfigError, unknown
from isonomy.report.figures import Figure, all_figures
from isonomy.report.markup import document, html_figure
from isonomy.runs.record import Record


@dataclass(frozen=True)
class Shown:
    """One or several figures of runs, which a notebook shows as they are on the page.

    `figures["curves"]` is one of them by name, `list(figures.names)` are all names, and `html` is a
    page that needs no network.
    """

    figures: tuple[Figure, ...]
    title: str = "Isonomy"
    height: int = 620

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the figures, in the order of the page."""
        return tuple(figure.name for figure in self.figures)

    def __len__(self) -> int:
        return len(self.figures)

    def __iter__(self) -> Iterator[Shown]:
        return (self[name] for name in self.names)

    def __getitem__(self, name: str) -> Shown:
        if name not in self.names:
            raise ConfigError(unknown("figure of these runs", str(name), self.names))
        (found,) = [figure for figure in self.figures if figure.name == name]
        return Shown((found,), found.title, self.height)

    @property
    def html(self) -> str:
        """The figures as a page of their own."""
        parts = [html_figure(figure) for figure in self.figures]
        return document(self.title, ["<main>", *parts, "</main>"])

    def write(self, path: str | Path) -> Path:
        """Write the figures as an HTML page; returns its path."""
        to = Path(path)
        to.write_text(self.html, encoding="utf-8")
        return to

    def _repr_html_(self) -> str:
        """A frame of its own, so that neither styles nor scripts meet those of the notebook."""
        return (
            f'<iframe srcdoc="{attribute_text(self.html)}" title="{attribute_text(self.title)}" '
            f'style="width:100%;height:{self.height}px;border:0" sandbox="allow-scripts"></iframe>'
        )

    def __repr__(self) -> str:
        return f"Figures({', '.join(self.names) or 'none'})"


def shown(records: Sequence[Record]) -> Shown:
    """Every figure that the runs have data for."""
    return Shown(tuple(all_figures(list(records))))
