"""The options of a user's own tables, in files or in memory, and how rows are assigned."""

from __future__ import annotations

from isonomy.core.options import Option
from isonomy.data.partition import FRACTIONS, PARTITIONS, Partition
from isonomy.data.tables.columns import MISSING

OPTIONS = {
    "path": Option("", "a folder (each file is one client) or one file"),
    "exclude": Option((), "files of the folder that are not tables of clients"),
    "label": Option("", "the column to predict"),
    "protected": Option((), "protected columns, or intersections such as 'sex*race'"),
    "bins": Option(
        {}, "groups of protected numbers: edges {age = [25, 60]}, or a number {age = 4}"
    ),
    "client": Option("", "the column that identifies clients, if data.path is one file"),
    "positive": Option("", "the label that becomes class 1 (default: the last in order)"),
    "task": Option("auto", "classification, regression, or auto: by the label's values"),
    "features": Option((), "the columns to predict from (default: all others)"),
    "drop": Option((), "columns that are not used, such as identifiers"),
    "keep_protected": Option(False, "whether protected columns are also used as features"),
    "numeric": Option((), "columns that must contain numbers"),
    "categorical": Option((), "columns whose numbers are codes of categories"),
    "split": Option("", "the column that contains train, validation or test"),
    "fractions": Option(FRACTIONS, "shares of rows for train, validation, test, without split"),
    "missing": Option(MISSING, "texts that mean a missing value"),
    "impute": Option("mean", "what replaces missing numbers: mean, median or zero"),
    "indicate": Option(False, "whether to add a feature that marks missing numbers"),
    "scale": Option("standard", "scaling of numbers: standard, minmax or none"),
    "rare": Option(10, "categories with fewer training rows in total become 'other'"),
    "encoding": Option("utf-8", "the encoding of CSV files"),
}

IN_MEMORY = {
    "digest": Option("", "identifies the content; set by isonomy.run(config, data=...)"),
    **{k: v for k, v in OPTIONS.items() if k not in ("path", "exclude", "encoding")},
}

WITH_OWN = {"own": Partition("own", "clients as in the tables", counts=True), **PARTITIONS}
