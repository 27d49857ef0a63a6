"""Imports point one way, read from the source without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "isonomy"

LAYERS = {
    # package: what its modules may import of the others
    "errors": (),
    "core": ("errors",),
    "data": ("core", "errors"),
    "models": ("core", "data.federation", "errors"),
    "blocks": ("core", "models", "errors"),
    "algorithms": ("core", "blocks", "models", "errors"),
    "metrics": ("core", "errors"),
    "postprocess": ("core", "errors", "metrics"),
    "robust": ("core", "blocks", "data.federation", "errors"),
    "engines": ("core", "data.federation", "errors"),
    "config": ("core", "errors"),
    "privacy": ("config", "core", "data.federation", "engines", "errors", "robust"),
    "runs": (
        "algorithms",
        "blocks",
        "config",
        "core",
        "data",
        "engines",
        "errors",
        "metrics",
        "models",
        "postprocess",
        "privacy",
        "robust",
    ),
    "report": ("core", "errors", "metrics", "runs.record"),
    "deploy": (
        "algorithms",
        "config",
        "core",
        "data",
        "engines",
        "errors",
        "metrics",
        "models",
        "postprocess",
        "report",
        "runs",
    ),
    "studies": (
        "algorithms",
        "blocks",
        "config",
        "core",
        "data",
        "deploy",
        "engines",
        "errors",
        "metrics",
        "postprocess",
        "privacy",
        "report",
        "runs",
    ),
    "federation": (
        "algorithms",
        "config",
        "core",
        "data",
        "deploy",
        "engines",
        "errors",
        "metrics",
        "models",
        "privacy",
        "robust",
        "runs",
    ),
    "contract": (
        "algorithms",
        "config",
        "core",
        "data.federation",
        "engines",
        "errors",
        "federation",
        "models",
        "robust",
        "runs.client_counts",
    ),
    "api": ("*",),
    "__main__": ("cli",),
    "api_data": ("*",),
    "api_results": ("*",),
    "api_search": ("*",),
    "estimator": ("*",),
    "cli": ("*",),
}


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(SOURCE.rglob("*.py"))}


@cache
def parsed(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text())


def imports(tree: ast.Module, module: str, package: bool = False) -> Iterator[str]:
    """Every module that the source imports anywhere, by its full name."""
    for node in ast.walk(tree):
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
                yield whole if whole in MODULES or not base.startswith("isonomy") else base


@cache
def imports_of(name: str) -> frozenset[str]:
    return frozenset(imports(parsed(name), name, MODULES[name].name == "__init__.py"))


def within(name: str, packages: tuple[str, ...]) -> bool:
    return any(p == "*" or name == p or name.startswith(f"{p}.") for p in packages)


def beyond(layer: str) -> list[str]:
    """Every import in a layer that the layer may not have, as 'module imports module'."""
    allowed = tuple(p if p == "*" else f"isonomy.{p}" for p in (*LAYERS[layer], layer))
    return [
        f"{name} imports {other}"
        for name in MODULES
        if within(name, (f"isonomy.{layer}",))
        for other in sorted(imports_of(name))
        if within(other, ("isonomy",)) and other != "isonomy" and not within(other, allowed)
    ]


def cycle(graph: Mapping[str, set[str]]) -> list[str]:
    """One cycle of a graph of imports; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_what_lies_below_it(layer: str) -> None:
    assert not beyond(layer)


def test_every_package_has_a_layer() -> None:
    packages = {name.split(".")[1] for name in MODULES if "." in name}
    assert packages == set(LAYERS)


def test_no_module_imports_itself_by_a_detour() -> None:
    own = {name for name in MODULES if name != "isonomy"}  # that one holds the public names
    assert not cycle({name: set(imports_of(name)) & own - {name} for name in own})


def test_no_package_imports_itself_by_a_detour() -> None:
    graph: dict[str, set[str]] = {}
    for name in MODULES:
        if name != "isonomy":
            package = name.split(".")[1]
            others = {o.split(".")[1] for o in imports_of(name) if o.startswith("isonomy.")}
            graph.setdefault(package, set()).update(others - {package})
    assert not cycle(graph)


def test_only_the_flower_transport_imports_flower() -> None:
    assert not [
        name
        for name in MODULES
        if not within(name, ("isonomy.federation.flower",))
        and any(within(other, ("flwr",)) for other in imports_of(name))
    ]


PROGRAM = "isonomy.engines.batched.program"


def test_only_programs_use_torchs_private_parts() -> None:
    private = ("torch._C", "torch._functorch")
    for name in MODULES:
        if name == PROGRAM:
            continue
        assert not [n for n in imports_of(name) if within(n, private)], name
        for node in ast.walk(parsed(name)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert f"{node.value.id}.{node.attr}" not in private, name


def test_the_walk_sees_what_it_should() -> None:
    """The tests above rest on `imports`; it has to see every way of writing one."""
    text = """
import isonomy.engines.loop as loop
from isonomy.core import tree, random
from isonomy.engines import base
from isonomy.errors import ConfigError
from ..engines.base import sample
from . import fedprox
def later():
    import flwr.server
    from torch._C import _functorch
"""
    assert set(imports(ast.parse(text), "isonomy.algorithms.fedavg")) == {
        "isonomy.engines.loop",
        "isonomy.core.tree",
        "isonomy.core.random",
        "isonomy.errors",
        "isonomy.algorithms",
        "flwr.server",
        "torch._C._functorch",
        "isonomy.engines.base",
    }
    assert len(MODULES) > 20
    assert any(within(n, ("torch._C",)) for n in imports_of(PROGRAM))


def test_a_cycle_is_found() -> None:
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}})
    assert not cycle({"a": {"b", "c"}, "b": {"c"}})
