"""Imports point one way, read from the source without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "isonomy"
MODULES = sorted(SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {name_of(path) for path in MODULES}


def imports(source: str, module: str, package: bool = False) -> Iterator[str]:
    """Every module that the source imports anywhere, names of modules in full."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = module.split(".")
                up = up[: len(up) - node.level + package]
                base = ".".join([*up, *([base] if base else [])])
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                yield whole if whole in NAMES or not base.startswith("isonomy") else base


def imports_of(path: Path) -> set[str]:
    return set(imports(path.read_text(), name_of(path), path.name == "__init__.py"))


def within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == p or name.startswith(f"{p}.") for p in packages)


def full(*names: str) -> tuple[str, ...]:
    return tuple(f"isonomy.{name}" for name in names)


def in_layer(*names: str) -> list[Path]:
    return [path for path in MODULES if within(name_of(path), full(*names))]


def ids(path: Path) -> str:
    return name_of(path)


ALLOWED = full(
    "algorithm",
    "task",
    "tree",
    "random",
    "blocks",
    "models",
    "errors",
    "fields",
    "importing",
    "data.federation",
    "fold",
    "verdict",
    "work",
)


@pytest.mark.parametrize("path", in_layer("algorithms"), ids=ids)
def test_algorithms_know_only_the_contract(path: Path) -> None:
    ours = {name for name in imports_of(path) if within(name, ("isonomy",))}
    beyond = {n for n in ours if not within(n, ALLOWED) and n != "isonomy"}
    assert not beyond, f"{name_of(path)} imports {sorted(beyond)}"


@pytest.mark.parametrize("path", in_layer("metrics", "report"), ids=ids)
def test_metrics_and_report_know_no_algorithm_or_engine(path: Path) -> None:
    beyond = {n for n in imports_of(path) if within(n, full("algorithms", "engines", "algorithm"))}
    assert not beyond, f"{name_of(path)} imports {sorted(beyond)}"


LOWER = full(
    "algorithm",
    "task",
    "tree",
    "random",
    "fold",
    "verdict",
    "work",
    "errors",
    "blocks",
    "models",
    "data",
)


@pytest.mark.parametrize("path", [p for p in MODULES if within(name_of(p), LOWER)], ids=ids)
def test_what_algorithms_stand_on_knows_none_of_them(path: Path) -> None:
    above = full("algorithms", "engines", "experiments", "cli", "report", "metrics")
    beyond = {n for n in imports_of(path) if within(n, above)}
    assert not beyond, f"{name_of(path)} imports {sorted(beyond)}"


@pytest.mark.parametrize("path", in_layer("engines"), ids=ids)
def test_engines_know_no_algorithm(path: Path) -> None:
    above = full("algorithms", "experiments", "cli", "report")
    beyond = {n for n in imports_of(path) if within(n, above)}
    assert not beyond, f"{name_of(path)} imports {sorted(beyond)}"


@pytest.mark.parametrize("path", MODULES, ids=ids)
def test_only_the_flower_engine_imports_flower(path: Path) -> None:
    if not within(name_of(path), full("engines.flower")):
        assert not [n for n in imports_of(path) if within(n, ("flwr",))]


@pytest.mark.parametrize("path", MODULES, ids=ids)
def test_only_programs_use_torchs_private_parts(path: Path) -> None:
    private = ("torch._C", "torch._functorch")
    if name_of(path) == "isonomy.engines.program":
        return
    assert not [n for n in imports_of(path) if within(n, private)]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            used = f"{node.value.id}.{node.attr}"
            assert used not in private, f"{name_of(path)} uses {used}"


def test_the_walk_sees_what_it_should() -> None:
    """The tests above rest on `imports`; it has to see every way of writing one."""
    text = """
import isonomy.engines.loop as loop
from isonomy import tree, random
from isonomy.engines import batched
from isonomy.errors import ConfigError
from ..engines.base import sample
from . import fedprox
def later():
    import flwr.server
    from torch._C import _functorch
"""
    assert set(imports(text, "isonomy.algorithms.fedavg")) == {
        "isonomy.engines.loop",
        "isonomy.tree",
        "isonomy.random",
        "isonomy.engines.batched",
        "isonomy.errors",
        "isonomy.algorithms",
        "flwr.server",
        "torch._C._functorch",
    } | {"isonomy.engines.base"}
    assert len(MODULES) > 20
    program = SOURCE / "engines" / "program.py"
    assert any(within(n, ("torch._C",)) for n in imports_of(program))
