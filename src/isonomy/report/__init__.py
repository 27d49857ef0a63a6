"""Reports on runs: tables for the terminal and for papers, figures, and one page that holds all.

`tables.comparison` puts methods side by side, `figures.all_figures` draws them, `page.write`
makes a single HTML file that needs no network. All take a list of `Record` and know no algorithm.
"""

from __future__ import annotations

from isonomy.report.tables import Cell, Column, Table, comparison, everything, reproduction
from isonomy.runs.record import Record

__all__ = ["Cell", "Column", "Record", "Table", "comparison", "everything", "reproduction"]
