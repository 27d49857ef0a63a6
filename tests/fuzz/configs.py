"""Config files and overrides: read, built and, if they are small, trained for one round."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tomli_w
from hypothesis import strategies as st

from fuzz.fuzzer import Fuzzer, Try
from fuzz.guard import Bug, attempt
from fuzz.mutations import ODD, damaged, edited, edits
from isonomy import algorithms, api
from isonomy.config.schema import Config, parse
from isonomy.core.options import options_of
from isonomy.robust.attacks import ATTACKS
from isonomy.robust.combiners import COMBINERS
from isonomy.runs.build import build

SMALL: dict[str, Any] = {
    "rounds": 1,
    "seed": 3,
    "data": {"name": "synthetic", "examples": 120, "clients": 3},
    "model": {"name": "mlp", "hidden": [4]},
    "algorithm": {"name": "fedavg"},
    "local": {"steps": 1, "batch": 8, "lr": 0.1},
    "cohort": {"size": 2, "dropout": 0.1},
    "evaluate": {"every": 1, "bootstrap": 0, "split": "test"},
    "excess": {"clusters": "none"},
    "engine": "loop",
}


def _samples() -> list[dict[str, Any]]:
    """A small config of every algorithm with its options, and some of other tables."""
    out: list[dict[str, Any]] = []
    for name, kind in sorted(algorithms.registry().items()):
        options = {
            k: v.default for k, v in options_of(kind).items() if type(v.default) in (int, float)
        }
        out.append(SMALL | {"algorithm": {"name": name, **options}})
    out.append(SMALL | {"attack": {"name": "sign_flip", "fraction": 0.3}, "defence": "median"})
    out += [SMALL | {"defence": {"name": name}} for name in COMBINERS]
    out += [SMALL | {"attack": {"name": name, "fraction": 0.4}} for name in ATTACKS]
    out.append(SMALL | {"data": {"name": "synthetic", "examples": 60, "partition": "iid"}})
    out.append(SMALL | {"privacy": {"rows": 4, "cell": 2, "rounding": True, "repeats": 3}})
    return out


SAMPLES = _samples()
WORDS = [*ODD, *(name for name in algorithms.registry()), "batched", "loop", "logistic", "cnn"]


def _small(config: Config) -> bool:
    """Whether the config can be built and trained at once, without a download."""
    options = config.data.options
    numbers = [v for v in options.values() if isinstance(v, int)]
    numbers += [v for v in config.model.options.values() if isinstance(v, int)]
    numbers += [n for v in config.model.options.values() if isinstance(v, list) for n in v]
    numbers += [v for v in config.algorithm.options.values() if isinstance(v, int)]
    work = config.local
    return (
        config.data.name == "synthetic"
        and all(n <= 300 for n in numbers if isinstance(n, int))
        and (config.data.clients or 0) <= 50
        and config.rounds <= 2
        and (work.steps or 0) <= 5
        and (work.epochs or 0) <= 5
        and config.evaluate.bootstrap <= 50
        and config.front.rays <= 20
        and config.excess.clusters == "none"
    )


def _use(config: Config | None) -> None:
    if config is None:
        return
    again = parse(tomllib.loads(config.toml()))
    if again.toml() != config.toml():
        raise Bug("a config that was written is not the same when it is read")
    if _small(config) and attempt(lambda: build(config)) is not None:
        attempt(lambda: api.run(config))


@contextmanager
def files(folder: Path) -> Iterator[Try]:
    place = folder / "case.toml"

    def one(case: bytes) -> None:
        place.write_bytes(case)
        _use(attempt(lambda: api.make_config(place)))

    yield one


@contextmanager
def words(folder: Path) -> Iterator[Try]:
    place = folder / "base.toml"
    place.write_text(tomli_w.dumps(SMALL))

    def one(case: bytes) -> None:
        given = case.decode("utf-8", "surrogateescape").split("\n")
        _use(attempt(lambda: api.make_config(place, *given)))

    yield one


def _toml(parts: tuple[dict[str, Any], list[list[Any]]]) -> bytes:
    sample, changes = parts
    try:
        return tomli_w.dumps(_without_none(edited(sample, changes))).encode()
    except (TypeError, ValueError, AttributeError):
        return tomli_w.dumps(sample).encode()


def _without_none(value: Any) -> Any:
    """TOML has no null."""
    if isinstance(value, dict):
        return {str(k): _without_none(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_none(v) for v in value if v is not None]
    return value


edited_files = st.tuples(st.sampled_from(SAMPLES), edits(WORDS)).map(_toml)
TEXTS = [tomli_w.dumps(sample).encode() for sample in SAMPLES]
TOKENS = [b"[", b"]]", b"=", b'"""', b"\n[a.b]\n", b"inf", b"1979-05-27", b"0x", b"{", b"\xff"]
KEYS = sorted(
    {f"{name}.{key}" for s in SAMPLES for name, v in s.items() if isinstance(v, dict) for key in v}
)
_key = st.sampled_from([*KEYS, *SMALL, "privacy.rows", "front.rays", "label", "a.b.c", ""])
_value = st.sampled_from([str(v) for v in WORDS]) | st.integers().map(str) | st.text(max_size=9)
_word = st.tuples(_key, st.sampled_from(["=", "=", "=", "", "=="]), _value).map("".join)
overrides = st.lists(_word, min_size=1, max_size=4).map(
    lambda ws: "\n".join(ws).encode("utf-8", "surrogatepass")
)

FUZZERS = [
    Fuzzer("config", edited_files | damaged(TEXTS, TOKENS), files),
    Fuzzer("override", overrides, words),
]
