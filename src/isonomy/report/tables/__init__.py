"""Tables: the model and its formats, comparisons of methods, verdicts, published numbers.

`cells` has columns, cells and number formats, `table` and `terminal` the formats of a whole table,
`methods`, `verdict` and `published` the tables of a report.
"""

from isonomy.report.tables.cells import ABSENT, UNDEFINED, Cell, Column, parts, shown
from isonomy.report.tables.methods import comparison, everything, gap_columns
from isonomy.report.tables.published import reproduction
from isonomy.report.tables.remarks import surrogates
from isonomy.report.tables.table import Table
from isonomy.report.tables.verdict import outcomes, verdict_table, verdicts

__all__ = [
    "ABSENT",
    "UNDEFINED",
    "Cell",
    "Column",
    "Table",
    "comparison",
    "everything",
    "gap_columns",
    "outcomes",
    "parts",
    "reproduction",
    "shown",
    "surrogates",
    "verdict_table",
    "verdicts",
]
