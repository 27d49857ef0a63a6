"""Reports on runs: tables for terminals and papers, figures, and a page with everything.

`tables.comparison` compares methods, `figures.all_figures` draws every figure, and `page.write`
writes a single HTML file that needs no network. All take a list of `Record`, and none depends on an
algorithm.
"""

from __future__ import annotations

from isonomy.report.tables import Cell, Column, Table, comparison, everything, reproduction
from isonomy.runs.record import Record

__all__ = ["Cell", "Column", "Record", "Table", "comparison", "everything", "reproduction"]
