"""ACS: five prediction tasks about people in the US, one client per state (folktables).

Ding et al. (2021), "Retiring Adult: New Datasets for Fair Machine Learning", from the American
Community Survey's 1-Year person files (see `isonomy.data.download.census_files`). `task` is one of

    income           PINCP > 50,000   of AGEP > 16, PINCP > 100, WKHP > 0, PWGTP >= 1
    public_coverage  PUBCOV = 1       of AGEP < 65, PINCP <= 30,000
    mobility         MIG = 1          of 18 < AGEP < 35
    employment       ESR = 1          of 16 < AGEP < 90, PWGTP >= 1
    employment_all   ESR = 1          of all
    travel_time      JWMNP > 20       of AGEP > 16, PWGTP >= 1, ESR = 1

with the paper's features and RAC1P (race) as the protected attribute. `employment` is the task of
the paper, which folktables calls ACSEmploymentFiltered; `employment_all` is ACSEmployment of
folktables, without the feature GCL and with rows of all ages. People who work at home have no JWMNP
and count as at most 20 minutes, as in folktables. From 2019 on, the Bureau's RELSHIPP and JWTRNS
are used as RELP and JWTR, and from 2023 on, STATE is used as ST.

Our choices: AGEP, WKHP, PINCP, JWMNP and POVPIP are numbers, 0 if blank as in folktables,
standardised by the training rows; all others are categories, with blank as a separate one. A
protected column is not used as a feature unless `keep_protected` is true. By default the 50 states
are clients (folktables adds PR, Puerto Rico). A row takes 4 bytes for each value of each category:
income of all states has about 800 features and needs 5 GB. `density` uses a random share of each
state's rows, and `rare` merges values with fewer training rows.

`path` is a folder with the Bureau's files, or one Parquet file of people who were selected before:
the task's features, its target as a number or as true and false, and a column STATE. Its codes of
RAC1P are not named, because such extracts often have codes of their own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isonomy.core.options import Option
from isonomy.core.values import Coded, Frame, Plain, coded, joined
from isonomy.data.dataset import Dataset, Request
from isonomy.data.download import census_files
from isonomy.data.federation import Federation
from isonomy.data.partition import FRACTIONS, PARTITIONS, generator
from isonomy.data.public_tables import array
from isonomy.errors import ConfigError, DataError, unknown

Numbers = NDArray[np.float64]
People = Mapping[str, Numbers]  # columns, NaN if blank: comparisons with it are false

NUMERIC = ("AGEP", "WKHP", "PINCP", "JWMNP", "POVPIP")
WORDS = {
    "SEX": {1: "male", 2: "female"},
    "RAC1P": {
        1: "White",
        2: "Black",
        3: "American Indian",
        4: "Alaska Native",
        5: "American Indian or Alaska Native, tribe not stated",
        6: "Asian",
        7: "Pacific Islander",
        8: "other race",
        9: "two or more races",
    },
}


@dataclass(frozen=True)
class Task:
    """A prediction task: which people, which features, which label.

    `rows` is the number of rows in 2018 with Puerto Rico that the authors state.
    """

    features: str
    target: str
    positive: Callable[[Numbers], NDArray[np.bool_]]
    labels: tuple[str, str]
    asked: Callable[[People], NDArray[np.bool_]] | None = None
    needs: str = ""  # columns that `asked` uses
    rows: int = 0

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that must be read."""
        return tuple(dict.fromkeys([*self.features.split(), self.target, *self.needs.split()]))


_EMPLOYED = "AGEP SCHL MAR RELP DIS ESP CIT MIG MIL ANC NATIVITY DEAR DEYE DREM SEX RAC1P"

TASKS = {
    "income": Task(
        features="AGEP COW SCHL MAR OCCP POBP RELP WKHP SEX RAC1P",
        target="PINCP",
        positive=lambda income: income > 50_000,
        labels=("at most $50,000", "more than $50,000"),
        asked=lambda p: (p["AGEP"] > 16) & (p["PINCP"] > 100) & (p["WKHP"] > 0) & (p["PWGTP"] >= 1),
        needs="PWGTP",
        rows=1_664_500,
    ),
    "public_coverage": Task(
        features="AGEP SCHL MAR SEX DIS ESP CIT MIG MIL ANC NATIVITY DEAR DEYE DREM PINCP ESR ST "
        "FER RAC1P",
        target="PUBCOV",
        positive=lambda covered: covered == 1,
        labels=("not covered", "covered"),
        asked=lambda p: (p["AGEP"] < 65) & (p["PINCP"] <= 30_000),
    ),
    "mobility": Task(
        features="AGEP SCHL MAR SEX DIS ESP CIT MIL ANC NATIVITY RELP DEAR DEYE DREM RAC1P GCL COW "
        "ESR WKHP JWMNP PINCP",
        target="MIG",
        positive=lambda moved: moved == 1,
        labels=("moved", "same address"),
        asked=lambda p: (p["AGEP"] > 18) & (p["AGEP"] < 35),
        rows=620_937,
    ),
    "employment": Task(
        features=_EMPLOYED + " GCL",
        target="ESR",
        positive=lambda status: status == 1,
        labels=("not employed", "employed"),
        asked=lambda p: (p["AGEP"] > 16) & (p["AGEP"] < 90) & (p["PWGTP"] >= 1),
        needs="PWGTP",
        rows=2_320_013,
    ),
    "employment_all": Task(
        features=_EMPLOYED,
        target="ESR",
        positive=lambda status: status == 1,
        labels=("not employed", "employed"),
        rows=3_236_107,
    ),
    "travel_time": Task(
        features="AGEP SCHL MAR SEX DIS ESP MIG RELP RAC1P PUMA ST CIT OCCP JWTR POWPUMA POVPIP",
        target="JWMNP",
        positive=lambda minutes: minutes > 20,
        labels=("at most 20 minutes", "more than 20 minutes"),
        asked=lambda p: (p["AGEP"] > 16) & (p["PWGTP"] >= 1) & (p["ESR"] == 1),
        needs="PWGTP ESR",
    ),
}
LABEL, STATE = "label", "state"
PARQUET = (".parquet", ".pq")


def people(task: Task, table: Any) -> Any:
    """Select the people of a task from a state's table: their features and the `label`."""
    columns = {name: array(table[name]).astype(np.float64) for name in task.columns}
    asked = np.ones(len(table), dtype=np.bool_) if task.asked is None else task.asked(columns)
    kept = {name: columns[name][asked] for name in task.features.split()}
    answer = task.positive(columns[task.target][asked])
    arrays = {name: _words(name, values, WORDS.get(name)) for name, values in kept.items()}
    return Frame(arrays | {LABEL: Coded(answer.astype(np.int32), task.labels)})


def _words(name: str, values: Numbers, known: dict[int, str] | None) -> Any:
    """Convert columns: numbers with NaN for blank, and codes to words if these are known."""
    if known is None:
        return Plain(values)
    wrong = values[~np.isin(values, list(known))]
    if len(wrong):
        raise DataError(
            f"{name} is {wrong[0]:g} in one row but must be 1 to {max(known)}; get a complete "
            "copy of the file from the Census Bureau."
        )
    return Coded(values.astype(np.int32) - 1, [known[code] for code in sorted(known)])


def load(request: Request) -> Federation:
    """Find or download every state's file, read what the task needs, and prepare it as a table."""
    options = request.options
    if options["task"] not in TASKS:
        raise ConfigError(unknown("task of data set 'acs'", options["task"], TASKS))
    if not 0 < options["density"] <= 1:
        raise ConfigError(
            f"data set 'acs': density is {options['density']}; set it to a share above 0 and at "
            "most 1."
        )
    if Path(options["path"]).suffix in PARQUET:
        return _prepared(Path(options["path"]).expanduser(), request)
    states = options["states"] or census_files.STATES
    paths, origin = census_files.obtain(states, options["year"], options["path"], request.progress)
    tables, sums = [], []
    for state, path in zip(states, paths, strict=True):
        table, digest = _state(state, path, request)
        tables.append(table)
        sums.append(digest)
    return replace(federate(joined(tables), sums, request), origin=origin)


def _state(state: str, path: Path, request: Request) -> tuple[Any, str]:
    """Return the people of a state, all or a random share, with the state in each row."""
    options = request.options
    task = TASKS[options["task"]]
    table, digest = census_files.read(path, state, options["year"], task.columns)
    table = _share(people(task, table), state, request)
    return table.having(STATE, Coded(np.zeros(len(table), np.int32), [state])), digest


def _share(table: Any, state: str, request: Request) -> Any:
    """The random share of a state's rows that `density` asks for."""
    density = request.options["density"]
    if density == 1:
        return table
    rng = generator("acs", (request.seed, int(census_files.CODES[state])))
    return table.take(np.sort(rng.permutation(len(table))[: round(density * len(table))]))


def _prepared(path: Path, request: Request) -> Federation:
    """Build the federation from one Parquet file of selected people with a column STATE."""
    from isonomy.data.tables import parquet_files

    options = request.options
    task = TASKS[options["task"]]
    if not path.is_file():
        raise DataError(
            f"{path} does not exist; give the path of the table, or of a folder with the "
            "Bureau's files."
        )
    file = parquet_files.open_file(path)
    found = parquet_files.read_whole(path, file)
    table = Frame(dict(zip(parquet_files.given_names(file), found, strict=True)))
    needed = [*task.features.split(), task.target, "STATE"]
    if missing := [name for name in needed if name not in table.names]:
        raise DataError(
            f"{path} has no column {missing[0]}; a table for the task '{options['task']}' needs "
            f"{', '.join(needed)}."
        )
    where = np.array(table["STATE"].listed())
    states = options["states"] or sorted(set(where.tolist()))
    census_files.check(states, options["year"])
    if absent := sorted(set(states) - set(where.tolist())):
        raise DataError(f"{path} has no rows of {', '.join(absent)}; change data.states.")
    answer = array(table[task.target])
    answer = answer.astype(np.bool_) if answer.dtype == np.bool_ else task.positive(answer)
    arrays = {
        name: _words(name, array(table[name]).astype(np.float64), WORDS["SEX"])
        if name == "SEX"
        else table[name]
        for name in task.features.split()
    }
    labels = Coded(answer.astype(np.int32), task.labels)
    people = Frame(arrays | {LABEL: labels, STATE: coded(where.tolist())})
    parts = [_share(people.take(where == state), state, request) for state in states]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return replace(federate(joined(parts), [digest], request), origin="the file given")


def federate(table: Any, sums: list[str], request: Request) -> Federation:
    """Build the federation of all states."""
    from isonomy.data import tables

    options = request.options
    task = TASKS[options["task"]]
    features = task.features.split()
    roles = tables.Roles(
        label=LABEL,
        positive=task.labels[1],
        protected=options["protected"],
        bins=options["bins"],
        keep_protected=options["keep_protected"],
        drop=(STATE,),
        numeric=tuple(name for name in features if name in NUMERIC),
        categorical=tuple(name for name in features if name not in NUMERIC),
        impute="zero",
        rare=options["rare"],
    )
    notes = [f"SHA-256 of {_read_what(sums)}: {_together(sums)}."]
    whole = len(sums) == len(census_files.STATES) + 1 and "PR" in options["states"]
    if task.rows and whole and options["year"] == 2018 and options["density"] == 1:
        notes.append(f"{len(table):,} rows; Ding et al. (2021) state {task.rows:,}.")
    return tables.federate(table, roles, request, source=DATASET.source, notes=tuple(notes))


def _read_what(sums: list[str]) -> str:
    return "the table read" if len(sums) == 1 else f"the SHA-256 of the {len(sums)} tables read"


def _together(sums: list[str]) -> str:
    if len(sums) == 1:
        return sums[0]
    return hashlib.sha256("".join(f"{one}\n" for one in sums).encode()).hexdigest()


DATASET = Dataset(
    name="acs",
    description="census samples of the US states: employment, income and three more (folktables)",
    source="ACS 1-Year PUMS, US Census Bureau, as in folktables (Ding et al., 2021)",
    licence="public, under the Census Bureau's terms of service",
    load=load,
    options={
        "task": Option("employment", f"the prediction task: {', '.join(TASKS)}"),
        "states": Option((), "postal codes such as ['CA', 'TX', 'PR']; the 50 states if empty"),
        "year": Option(2018, "the year of the survey"),
        "density": Option(1.0, "random share of each state's rows to use"),
        "rare": Option(10, "values with fewer training rows than this become 'other'"),
        "protected": Option(("RAC1P",), "protected attributes: columns, or 'RAC1P*SEX'"),
        "keep_protected": Option(False, "whether protected columns are also used as features"),
        "bins": Option({}, "edges of groups of protected numbers, such as {AGEP = [30, 60]}"),
        "fractions": Option(FRACTIONS, "shares of a client's rows for train, validation and test"),
        "path": Option(
            "",
            "a folder with csv_p??.zip or psam_p??.csv, or one Parquet file of the task's people "
            "with a column STATE, instead of downloading them",
        ),
    },
    protected=("RAC1P",),
    clients=50,
    partition={"name": "column", "column": STATE},
    partitions=PARTITIONS,
)
