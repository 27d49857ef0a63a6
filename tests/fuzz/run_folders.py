"""Folders of runs and of exported models with a file that is damaged, replaced or missing."""

from __future__ import annotations

import io
import json
import os
import shutil
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w
from hypothesis import strategies as st

import isonomy
from federation.participants import CONFIG, NAMES, write_tables
from fuzz.fuzzer import Fuzzer, Try
from fuzz.guard import Bug, attempt
from fuzz.mutations import as_json, edited, edits
from isonomy import api
from isonomy.config.files import read
from isonomy.config.schema import Config
from isonomy.errors import IsonomyError
from isonomy.federation import organiser
from isonomy.report import page
from isonomy.runs.listener import Listener

# --- samples --------------------------------------------------------------------------------------


class Stop(Listener):
    """Ends a run after its first round, as a signal would."""

    def round(self, done: int, rounds: int, metrics: Any) -> None:
        raise KeyboardInterrupt


def _samples(folder: Path) -> list[Path]:
    """A complete run, an unfinished one, one with a front and a verdict, a served one, a model."""
    (folder / "config.toml").write_text(CONFIG)
    write_tables(folder / "tables")

    def config(*words: str) -> Config:
        return read(folder / "config.toml", ["engine=loop", *words])

    made = [folder / name for name in ("complete", "unfinished", "front", "verdict", "served")]
    few = "rounds=2", "checkpoint.every=1", "checkpoint.keep=2", "evaluate.every=1"
    api.run(config(*few), made[0])
    with suppress(KeyboardInterrupt, IsonomyError):
        api.run(config(*few), made[1], listeners=[Stop()])
    front = "algorithm=praffl", "front.rays=4", "local.optimiser=adam", "local.lr=0.01"
    api.run(config(*few, *front), made[2])
    bound = "algorithm=pffl", "algorithm.zeta=0.9", "model=logistic", "local.batch=0"
    api.run(config(*few, *bound), made[3], keep=True)
    plan = organiser.begin(read(folder / "config.toml"), made[4], NAMES)
    plan.save()
    api.export(made[0], folder / "exported")
    return [*made, folder / "exported"]


# --- what is done with a folder -------------------------------------------------------------------


def _load(place: Path) -> None:
    isonomy.table(api.load(place))


def _report(place: Path) -> None:
    page.render(api.load(place))


def _predict(place: Path) -> None:
    model = api.predictor(place, client="east")
    model.predict_rows(place.parent / "tables" / "east.csv").csv()


def _export(place: Path) -> None:
    shutil.rmtree(place.parent / "to", ignore_errors=True)
    api.export(place, place.parent / "to", client="east")


def _exported(place: Path) -> None:
    api.load_model(place).predict(place.parent / "tables" / "east.csv")


VERBS: dict[str, Callable[[Path], Any]] = {
    "load": _load,
    "report": _report,
    "predict": _predict,
    "resume": api.resume,
    "export": _export,
    "serve": organiser.reopen,
    "model": _exported,
}
SUITABLE = {  # verbs for each sample
    0: ["load", "predict", "export", "resume", "report"],
    1: ["resume", "resume", "load"],
    2: ["load", "predict", "export", "report"],
    3: ["load", "predict", "resume", "report"],
    4: ["serve", "load"],
    5: ["model"],
}


# --- damage ---------------------------------------------------------------------------------------

_byte = st.tuples(
    st.integers(0, 10**6), st.sampled_from(["set", "cut", "remove", "repeat"]), st.integers(0, 255)
).map(list)
_cases = st.fixed_dictionaries(
    {
        "of": st.integers(0, 5),
        "verb": st.integers(0, 4),
        "file": st.integers(0, 40),
        "kind": st.sampled_from(
            ["values", "values", "values", "bytes", "bytes", "delete", "folder", "swap", "link"]
        ),
    },
    optional={"values": edits(most=3), "bytes": st.lists(_byte, min_size=1, max_size=3)},
).map(as_json)


def _changed(path: Path, case: dict[str, Any]) -> bytes:
    content = path.read_bytes()
    if case["kind"] == "values":
        return _other_values(path, content, case.get("values", ()))
    out = bytearray(content)
    for at, what, byte in case.get("bytes", ()):
        at = at % max(1, len(out))
        if what == "set" and out:
            out[at] = byte
        elif what == "cut":
            del out[at:]
        elif what == "remove":
            del out[at : at + byte]
        elif what == "repeat":
            out[at:at] = out[at : at + byte]
    return bytes(out)


def _other_values(path: Path, content: bytes, changes: Any) -> bytes:
    """The file with other values, in its own format."""
    try:
        if path.suffix == ".json":
            return json.dumps(edited(json.loads(content), changes)).encode()
        if path.suffix == ".jsonl":
            lines = edited([json.loads(line) for line in content.splitlines()], changes)
            lines = lines if isinstance(lines, list) else [lines]
            return "".join(json.dumps(line) + "\n" for line in lines).encode()
        if path.suffix == ".toml":
            return tomli_w.dumps(edited(tomllib.loads(content.decode()), changes)).encode()
        if path.suffix == ".parquet":
            columns = edited(pq.read_table(io.BytesIO(content)).to_pydict(), changes)
            out = io.BytesIO()
            pq.write_table(pa.table(columns), out)
            return out.getvalue()
    except (TypeError, ValueError, AttributeError, OverflowError, pa.ArrowException):
        pass  # these values cannot be written in this format
    return content


@contextmanager
def folders(folder: Path) -> Iterator[Try]:
    samples = _samples(folder)
    files = [sorted(p for p in sample.rglob("*") if p.is_file()) for sample in samples]
    precious = folder / "precious"
    precious.write_text("mine")
    place = folder / "case"

    def one(case_bytes: bytes) -> None:
        case = json.loads(case_bytes)
        number = case["of"] % len(samples)
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(samples[number], place)
        original = files[number][case["file"] % len(files[number])]
        path = place / original.relative_to(samples[number])
        content = _changed(path, case)
        path.unlink()
        if case["kind"] == "folder":
            path.mkdir()
        elif case["kind"] == "link":
            path.symlink_to(precious)
        elif case["kind"] == "swap":
            shutil.copy(files[number][(case["file"] + 1) % len(files[number])], path)
        elif case["kind"] != "delete":
            path.write_bytes(content)
        verbs = SUITABLE[number]
        attempt(lambda: VERBS[verbs[case["verb"] % len(verbs)]](place))
        if precious.read_text() != "mine" or os.path.islink(precious):
            raise Bug("a file outside of the folder was changed")

    yield one


FUZZERS = [Fuzzer("run", _cases, folders)]
