"""A dishonest participant: its replies are refused and named, or bounded in weight."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from federation.participants import CONFIG, NAMES, NODES, Room, participant, write_tables
from isonomy import api
from isonomy.config.files import read
from isonomy.core import tree
from isonomy.core.cohort import Cohort
from isonomy.core.sums import capped
from isonomy.engines.batched.engine import Batched
from isonomy.engines.loop import Loop
from isonomy.errors import RunError
from isonomy.federation import organiser
from isonomy.federation.flower import codec
from isonomy.federation.flower.engine import InProcessFlower
from isonomy.runs import saved_model
from isonomy.runs.build import build
from isonomy.runs.folder import RunFolder

Lie = Callable[[dict[str, Any], bytes], bytes]


@pytest.fixture
def here(tmp_path: Path) -> Path:
    write_tables(tmp_path / "tables")
    (tmp_path / "config.toml").write_text(CONFIG)
    return tmp_path


def serve(here: Path, lie: Lie, *overrides: str) -> Any:
    """A run in which 'north' lies."""

    def spoil(name: str, request: bytes, reply: bytes) -> bytes:
        return lie(codec.header(request), reply) if name == "north" else reply

    plan = organiser.begin(read(here / "config.toml", list(overrides)), here / "run", NAMES)
    room = Room({name: participant(here, name) for name in NAMES}, spoil)
    return organiser.conduct(plan, room, nodes=NODES, wait=0.0, timeout=5.0)


# --- tables ---------------------------------------------------------------------------------------


def sizes_of(*sizes: Any) -> Callable[[Any], None]:
    return lambda reply: reply.update(sizes=list(sizes))


def mean_of(value: Any) -> Callable[[Any], None]:
    return lambda reply: reply["numbers"]["age"].update(mean=value)


def many_categories(reply: Any) -> None:
    reply["categories"]["job"]["values"] = {f"job {i}": 1 for i in range(200_000)}


def other_counts(reply: Any) -> None:
    reply["categories"]["job"]["values"] = {"clerk": 10**6}


def another_column(reply: Any) -> None:
    reply["numbers"]["patient"] = reply["numbers"]["age"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (sizes_of(10**18, 10, 10), "sizes"),
        (sizes_of(-5, 10, 10), "sizes"),
        (sizes_of(True, 10, 10), "sizes"),
        (sizes_of(59.5, 10, 10), "sizes"),
        (sizes_of(5000, 10, 10), "training rows"),  # the counts of its columns are others
        (mean_of(1e300), "age"),
        (mean_of("12"), "age"),
        (mean_of(-40.0), "age"),
        (many_categories, "job"),
        (other_counts, "job"),
        (another_column, "number columns"),
    ],
)
def test_what_no_table_gives_is_refused_and_named(
    here: Path, change: Callable[[Any], None], said: str
) -> None:
    def lie(head: dict[str, Any], reply: bytes) -> bytes:
        if head["kind"] != "table":
            return reply
        about = codec.header(reply)
        change(about["reply"])
        return codec.pack(about)

    with pytest.raises(RunError, match="'north'") as caught:
        serve(here, lie)
    assert said in str(caught.value)
    assert "'east'" not in str(caught.value)
    assert json.loads((here / "run" / "federation.json").read_text())["fitted"] is None


def test_a_number_that_is_not_one_is_not_saved(here: Path) -> None:
    def lie(head: dict[str, Any], reply: bytes) -> bytes:
        if head["kind"] != "table":
            return reply
        about = codec.header(reply)
        mean = about["reply"]["numbers"]["age"]["mean"]
        inner = json.dumps(str(mean))[1:-1]
        return reply.replace(inner.encode(), b"NaN".ljust(len(inner)))

    with pytest.raises(RunError, match="'north'"):
        serve(here, lie)
    assert json.loads((here / "run" / "federation.json").read_text())["fitted"] is None


# --- training and evaluation ----------------------------------------------------------------------


def changed(reply: bytes, change: Callable[[Any], Any]) -> bytes:
    head, value = codec.unpack(reply)
    return codec.pack(head, change(value))


def test_an_update_of_3e38_is_neither_averaged_nor_saved(here: Path) -> None:
    def lie(head: dict[str, Any], reply: bytes) -> bytes:
        if head["kind"] != "phase" or head["phase"] != "local" or head["round"] != 1:
            return reply
        return changed(reply, lambda v: tree.tmap(lambda t: torch.full_like(t, 3e38), v))

    serve(here, lie)
    lines = RunFolder(here / "run").lines("rounds.jsonl")
    assert [line["answered"] for line in lines] == [3, 2, 3]
    fault = lines[1]["faults"][0]
    assert fault["client"] == "north"
    assert "3e+38" in fault["why"]
    server = saved_model.read(here / "run" / "model").server
    assert max(float(t.abs().max()) for t in tree.leaves(server)) < 100


def spoilt_counts(value: Any, change: Callable[[Any], None]) -> Any:
    change(value)
    return value


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda v: v["counts"].neg_(), "fewer than 0 rows"),
        (lambda v: v["counts"].mul_(1000), "more than its"),
        (lambda v: v["counts"][1].add_(50), "groups have more rows"),
        (lambda v: v["loss"].fill_(1e300), "losses"),
        (lambda v: v["loss"].neg_(), "losses"),
    ],
)
def test_counts_that_its_rows_cannot_have_are_left_out(
    here: Path, change: Callable[[Any], None], said: str
) -> None:
    def lie(head: dict[str, Any], reply: bytes) -> bytes:
        if not str(head.get("phase")).startswith("measure:"):
            return reply
        return changed(reply, lambda v: spoilt_counts(v, change))

    record = serve(here, lie)
    assert set(record.clients["name"]) == {"east", "south"}
    lines = RunFolder(here / "run").lines("rounds.jsonl")
    faults = [fault for line in lines for fault in line.get("faults", ())]
    assert {fault["client"] for fault in faults} == {"north"}
    assert all(said in fault["why"] for fault in faults), faults


def test_counts_of_cells_are_compared_with_sizes(here: Path) -> None:
    def lie(head: dict[str, Any], reply: bytes) -> bytes:
        if head.get("phase") != "measure":
            return reply
        return changed(reply, lambda v: {"cells": v["cells"]._replace(count=v["cells"].count * 99)})

    serve(here, lie, "algorithm=fedfb")
    lines = RunFolder(here / "run").lines("rounds.jsonl")
    faults = [fault for line in lines for fault in line.get("faults", ())]
    assert {fault["client"] for fault in faults} == {"north"}
    assert "rows cannot have" in faults[0]["why"]


def test_sizes_are_fixed_when_tables_are_prepared(here: Path) -> None:
    """A participant that claims as many rows as it may has no more weight than is allowed."""

    def lie(head: dict[str, Any], reply: bytes) -> bytes:
        if head["kind"] == "table":
            about = codec.header(reply)
            told = about["reply"]
            more = 10**6
            told["sizes"][0] += more
            for one in told["numbers"].values():
                one["squares"] *= 1 + more / one["count"]
                one["count"] += more
            told["categories"]["job"]["values"]["clerk"] += more
            return codec.pack(about)
        if head["kind"] == "phase" and head["phase"] == "local":
            return changed(reply, lambda v: tree.tmap(lambda t: t + 5.0, v))
        return reply

    def warnings() -> str:
        return str(json.loads((here / "run" / "federation.json").read_text())["fitted"]["warnings"])

    serve(here, lie, "rounds=1", "evaluate.every=1")
    assert "'north' says that it has 100% of all training rows" in warnings()
    (here / "run").rename(here / "free")
    for name in NAMES:
        (here / "homes" / name).rename(here / f"old-{name}")
    free = saved_model.read(here / "free" / "model").server
    serve(here, lie, "rounds=1", "evaluate.every=1", "cohort.max_weight=0.4")
    assert "says that it has" not in warnings()
    bound = saved_model.read(here / "run" / "model").server
    # it owns the first model (shifted by 5), and has 40 % of the second
    shift = [
        float((a - b).mean()) for a, b in zip(tree.leaves(free), tree.leaves(bound), strict=True)
    ]
    assert shift == pytest.approx([3.0] * len(shift), abs=0.3)
    assert moved_of(bound) < moved_of(free)


def moved_of(server: Any) -> float:
    return max(float(t.abs().max()) for t in tree.leaves(server))


@pytest.mark.parametrize("kind", [Loop, Batched, InProcessFlower])
def test_no_client_has_more_than_its_share_on_any_engine(here: Path, kind: Any) -> None:
    words = ["data.path=" + str(here / "tables"), "cohort.max_weight=0.4", "rounds=2"]
    setting = build(read(here / "config.toml", words))
    engine = kind(setting.task, setting.federation, seed=0)
    engine.reset(())
    cohort: Cohort = engine.cohort(
        engine.everyone(), work=setting.config.local, round=0, max_weight=0.4
    )
    assert float(cohort.sizes.max() / cohort.sizes.sum()) <= 0.4 + 1e-6
    plain = engine.cohort(engine.everyone(), work=setting.config.local, round=0)
    assert float(plain.sizes.max() / plain.sizes.sum()) > 0.4
    record = api.run(read(here / "config.toml", [*words, "engine=loop"]))
    other = api.run(read(here / "config.toml", [*words[:1], "rounds=2", "engine=loop"]))
    assert record.metrics != other.metrics


@pytest.mark.parametrize("share", [0.2, 0.34, 0.5, 0.9, 1.0])
def test_capped_weights(share: float) -> None:
    for weights in ([1.0, 1.0, 1.0], [1e9, 1.0, 2.0], [5.0, 5.0, 0.0], [3.0, 200.0, 100.0, 7.0]):
        got = capped(torch.tensor(weights, dtype=torch.float64), share)
        most = max(share, 1 / sum(w > 0 for w in weights))
        assert float(got.max() / got.sum()) <= most + 1e-9
        assert bool((got <= torch.tensor(weights)).all())


@pytest.mark.parametrize("defence", ["none", "median"])
def test_a_sign_flip_within_the_bounds_is_left_to_the_defence(here: Path, defence: str) -> None:
    """What a participant could have computed cannot be refused; a defence bounds it."""

    def lie(head: dict[str, Any], reply: bytes) -> bytes:
        if head["kind"] != "phase" or head["phase"] != "local":
            return reply
        return changed(reply, lambda v: tree.tmap(lambda t: -20 * t, v))

    serve(here, lie, f"defence={defence}")
    assert all(line["answered"] == 3 for line in RunFolder(here / "run").lines("rounds.jsonl"))
    server = saved_model.read(here / "run" / "model").server
    large = moved_of(server)
    assert large > 5 if defence == "none" else large < 5
