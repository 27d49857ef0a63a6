"""Every algorithm on every engine, clause by clause.

A new algorithm joins by being registered, and needs a row in `table.ROWS`; a new engine joins by
a row in `table.ENGINES`. All clauses run on the main variant of every algorithm; its other variants
are recorded and compared between engines.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

import pytest

import isonomy.algorithms
from contract.table import ENGINES, NEVER_ASKED, ROWS, algorithms, row, variants
from isonomy.algorithms import registry
from isonomy.contract import checks
from isonomy.contract.recording import Record, check_recorded, never_asked
from isonomy.contract.running import Transport, home
from isonomy.contract.suite import ON_AN_ENGINE
from isonomy.contract.world import world
from isonomy.core.algorithm import Algorithm

every_variant = pytest.mark.parametrize("algorithm", algorithms().values(), ids=algorithms())
every_algorithm = pytest.mark.parametrize(
    "algorithm", algorithms(main=True).values(), ids=algorithms(main=True)
)
every_name = pytest.mark.parametrize("name", registry())
every_engine = pytest.mark.parametrize("transport", ENGINES.values(), ids=ENGINES)

CLAUSES = tuple(
    clause for clause in ON_AN_ENGINE.values() if clause is not checks.check_engines_agree
)


@every_name
def test_every_algorithm_has_a_row(name: str) -> None:
    if name not in ROWS:
        pytest.fail(
            f"algorithm '{name}' has no row: add one to ROWS in tests/contract/table.py, with the "
            "options to check it under and the limit in which it equals another algorithm."
        )


def test_every_row_has_an_algorithm() -> None:
    assert set(ROWS) <= set(registry())


def test_no_two_algorithms_share_a_name() -> None:
    found = set()
    for module in pkgutil.walk_packages(isonomy.algorithms.__path__, "isonomy.algorithms."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and issubclass(value, Algorithm) and value is not Algorithm:
                found.add(value)
    assert found == set(registry().values())


@every_name
def test_declaration(name: str) -> None:
    checks.check_declaration(registry()[name])
    assert registry()[name].name == name


@every_name
def test_what_a_client_uses_is_a_model(name: str) -> None:
    checks.check_model(registry()[name])


def agreeing() -> Iterator[Any]:
    """Every variant with the class counts to compare engines on: main variants with all of them."""
    main = set(algorithms(main=True))
    for label, algorithm in algorithms().items():
        supported = row(algorithm.name).classes
        for classes in supported if label in main else supported[:1]:
            yield pytest.param(algorithm, classes, id=f"{label}-{classes}")


@every_engine
@pytest.mark.parametrize(("algorithm", "classes"), list(agreeing()))
def test_engines_agree(algorithm: Algorithm, classes: int, transport: Transport) -> None:
    checks.check_engines_agree(algorithm, transport, world(classes))


@every_variant
def test_phases_pure(algorithm: Algorithm) -> None:
    checks.check_phases_pure(algorithm)


@every_name
def test_recorded(name: str) -> None:
    records: list[Record] = []
    for algorithm in variants(name):
        for where in (home(algorithm), *(make() for make in row(name).worlds)):
            check_recorded(algorithm, where, kept=records)
    unused = {
        (phase, verb)
        for phase, verb in never_asked(registry()[name], records)
        if (name, phase) not in NEVER_ASKED
    }
    assert not unused, (
        f"{name} declares {unused}, but no variant in tests/contract/table.py asks it: add a "
        "variant, or the reason to NEVER_ASKED, or remove the declaration"
    )


@every_engine
@every_algorithm
@pytest.mark.parametrize("clause", CLAUSES, ids=lambda clause: clause.__name__[6:])
def test_clause(clause, algorithm: Algorithm, transport: Transport) -> None:
    clause(algorithm, transport)


@every_engine
def test_draws(transport: Transport) -> None:
    checks.check_draws(transport)


@every_engine
@every_name
def test_limit_identity(name: str, transport: Transport) -> None:
    limit = row(name).limit
    if limit is None:
        pytest.fail(f"algorithm '{name}' states no limit identity in tests/contract/table.py")
    limit(transport)
