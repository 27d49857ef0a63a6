"""Results for Python users: tables, frames and reports.

Heavy imports are inside the functions, so that importing this module is fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from isonomy.report.notebook import Shown
    from isonomy.runs.record import Record

Format = Literal["text", "markdown", "latex", "csv"]


def table(
    records: Record | Sequence[Record],
    columns: Sequence[str] | None = None,
    *,
    format: Format = "text",
) -> str:
    """A table with one row per method: mean and deviation over seeds, best values marked."""
    from isonomy.errors import ConfigError, unknown
    from isonomy.report.tables import comparison

    known = ("text", "markdown", "latex", "csv")
    if format not in known:
        raise ConfigError(unknown("format", format, known))
    made = comparison(_list(records), list(columns) if columns is not None else None)
    return str(getattr(made, format)())


def frame(
    records: Record | Sequence[Record],
    by: Literal["run", "round", "client", "group"] = "run",
    *,
    to: Literal["pandas", "polars", "arrow"] = "pandas",
) -> Any:
    """The results of runs as a frame: one row per run, round, client or protected group.

    Every metric is a column. "run" has the last metrics, the traffic, and the config keys that
    differ between the runs (`config.local.lr`); "client" and "group" have one row per evaluation.
    A frame needs its package: pandas, polars, or pyarrow for a table (to="arrow").
    """
    from isonomy.report import frames

    return frames.frame(_list(records), by, to)


def figures(records: Record | Sequence[Record]) -> Shown:
    """The figures of the report, which a notebook shows; `figures(records)["curves"]` is one."""
    from isonomy.report.notebook import shown

    return shown(_list(records))


def write_report(records: Record | Sequence[Record], path: str | Path = "report.html") -> Path:
    """Write an HTML page with tables and figures that works offline; returns its path."""
    from isonomy.report import page

    path = Path(path)
    page.write(_list(records), path)
    return path


def _list(records: Record | Sequence[Record]) -> list[Record]:
    return list(records) if isinstance(records, Sequence) else [records]
