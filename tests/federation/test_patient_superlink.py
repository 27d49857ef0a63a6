"""The SuperLink's database waits for its lock and is written less often, for busy machines."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sqlite3
import threading
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")

from fastapi import FastAPI, Response
from flwr.app import RecordDict
from flwr.common.serde import recorddict_to_proto
from flwr.server.superlink.linkstate import sql_linkstate
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.supercore import sql_mixin
from flwr.supercore.corestate.sql_corestate import SqlCoreState
from flwr.supercore.error import FlowerError
from flwr.supercore.object_store.sql_object_store import SqlObjectStore
from flwr.supercore.state.schema.linkstate_models import MessageIns, MessageRes, Node
from flwr.superlink.federation import NoOpFederationManager
from sqlalchemy import text
from starlette.middleware import base

from isonomy.federation.flower import patient_superlink
from isonomy.federation.flower.patient_superlink import (
    APPS,
    CONNECTIONS,
    LARGE,
    NODES,
    REMEMBERED,
    SECONDS,
    close_after_large_responses,
    free_requests,
    idle_layers,
    keep_connections,
    keep_replies,
    remember_nodes,
    skip_idle_layers,
    wait_longer,
    write_less_often,
)

pytestmark = pytest.mark.filterwarnings("ignore:No path_separator found")  # of Flower


def write_while_locked(path: Path, seconds: float) -> None:
    """Write to a database of Flower while another connection holds its lock for some time."""
    store = SqlObjectStore(str(path))
    store.initialize()
    held = threading.Event()

    def hold() -> None:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        held.set()
        time.sleep(seconds)
        other.execute("COMMIT")
        other.close()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        held.wait()
        store.query("DELETE FROM objects")
    finally:
        thread.join()
        store._engine.dispose()  # type: ignore[union-attr]


def test_a_lock_that_is_held_for_long_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A twentieth of a second stands for Flower's five seconds."""
    settings = dict(sql_mixin.SQLITE_PRAGMAS)
    assert int(settings["busy_timeout"]) < SECONDS * 1000
    short = tuple({**settings, "busy_timeout": "50"}.items())
    monkeypatch.setattr(sql_mixin, "SQLITE_PRAGMAS", short)
    with pytest.raises(Exception, match="database is locked"):
        write_while_locked(tmp_path / "state.db", 0.3)
    wait_longer()
    write_while_locked(tmp_path / "state.db", 0.3)
    kept = {name: value for name, value in sql_mixin.SQLITE_PRAGMAS if name != "busy_timeout"}
    assert kept.items() <= settings.items()


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_what_can_wait_is_written_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's own functions are recorded here; each request would call both."""
    cleaned: list[object] = []
    stored: list[tuple[int, int, int]] = []

    def store_traffic(self: object, run_id: int, *, bytes_sent: int, bytes_recv: int) -> None:
        stored.append((run_id, bytes_sent, bytes_recv))

    clock = Clock()
    monkeypatch.setattr(patient_superlink, "time", clock)
    monkeypatch.setattr(SqlCoreState, "_cleanup_expired_task_tokens", cleaned.append)
    monkeypatch.setattr(SqlLinkState, "store_traffic", store_traffic)
    write_less_often()
    state = object.__new__(SqlLinkState)
    for _ in range(40):  # within 4 s
        state._cleanup_expired_task_tokens()
        state.store_traffic(7, bytes_sent=10, bytes_recv=1)
        clock.now += 0.1
    assert 4 <= len(cleaned) <= 5
    assert 4 <= len(stored) <= 5
    clock.now += 1
    state.store_traffic(7, bytes_sent=0, bytes_recv=5)
    assert sum(sent for _, sent, _ in stored) == 400  # nothing is lost
    assert sum(received for _, _, received in stored) == 45


def test_the_node_of_a_key_is_remembered_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = {b"north": 7}
    asked: list[bytes] = []

    def get_node_id_by_public_key(self: object, public_key: bytes) -> int | None:
        asked.append(public_key)
        return nodes.get(public_key)

    clock = Clock()
    monkeypatch.setattr(patient_superlink, "time", clock)
    monkeypatch.setattr(SqlLinkState, "get_node_id_by_public_key", get_node_id_by_public_key)
    remember_nodes()
    state = object.__new__(SqlLinkState)
    for _ in range(10):
        assert state.get_node_id_by_public_key(b"north") == 7
        assert state.get_node_id_by_public_key(b"stranger") is None
    assert asked.count(b"north") == 1
    assert asked.count(b"stranger") == 10  # unknown keys are not remembered
    del nodes[b"north"]
    clock.now += REMEMBERED
    assert state.get_node_id_by_public_key(b"north") is None


@pytest.mark.parametrize("kept", [False, True])
def test_a_reply_is_taken_though_its_sender_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """Nodes 7 and 8 have gone offline; node 7 replied before, and node 9 has not replied yet."""
    name = "check_node_availability_for_in_message"
    monkeypatch.setattr(sql_linkstate, name, getattr(sql_linkstate, name))  # to restore them
    monkeypatch.setattr(SqlLinkState, "get_message_res", SqlLinkState.get_message_res)
    monkeypatch.setattr(SqlLinkState, "_check_stored_messages", lambda *_: None)  # of federations
    if kept:
        keep_replies()
    path = str(tmp_path / "state.db")
    store = SqlObjectStore(path)
    state = SqlLinkState(path, NoOpFederationManager(), store)
    state.initialize()
    now, run = time.time(), 5
    about = {"run_id": run, "group_id": "", "created_at": now, "ttl": 60.0, "delivered_at": ""}
    content = recorddict_to_proto(RecordDict()).SerializeToString()
    about |= {"message_type": "query", "content": content, "error": None}
    with state.session() as session:
        session.execute(text("PRAGMA foreign_keys = OFF"))  # there is no run
    with state.session() as session:
        for node, until in ((7, now - 1), (8, now - 1), (9, now + 60)):
            session.add(Node(node_id=node, online_until=until, status="offline"))
            to = {"src_node_id": 1, "dst_node_id": node, "reply_to_message_id": ""}
            session.add(MessageIns(message_id=f"to {node}", **to, **about))
        back = {"src_node_id": 7, "dst_node_id": 1, "reply_to_message_id": "to 7"}
        session.add(MessageRes(message_id="from 7", **back, **about))
    got = state.get_message_res({"to 7", "to 8", "to 9"}, run)
    gone = {one.metadata.reply_to_message_id for one in got if one.has_error()}
    there = [one.metadata.message_id for one in got if not one.has_error()]
    assert (gone, there) == (({"to 8"}, ["from 7"]) if kept else ({"to 7", "to 8"}, []))
    state._engine.dispose()  # type: ignore[union-attr]


def test_connections_to_the_database_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("create_engine", "SQLITE_PRAGMAS"):
        monkeypatch.setattr(sql_mixin, name, getattr(sql_mixin, name))  # to restore it
    keep_connections()
    store = SqlObjectStore(str(tmp_path / "state.db"))
    store.initialize()
    assert store._engine is not None
    open_now = [store._engine.connect() for _ in range(CONNECTIONS + 4)]
    cached = open_now[0].exec_driver_sql("PRAGMA cache_size").scalar()
    for one in open_now:
        one.close()
    assert store._engine.pool.checkedin() == CONNECTIONS  # type: ignore[attr-defined]
    assert cached == -1000
    store._engine.dispose()


def asked(layer: Any, path: str) -> tuple[list[str], list[Any]]:
    """What a layer did with a request: which of its parts ran, and what was sent."""
    ran, sent = [], []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        ran.append("app")
        await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})
        await send({"type": "http.response.body", "body": b"reply"})

    made = layer(app)
    own = made.dispatch_func

    async def dispatch(request: Any, call_next: Any) -> Any:
        ran.append("layer")
        return await own(request, call_next)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    made.dispatch_func = dispatch
    state = SimpleNamespace(fleet_event_log_plugin=None, account_access_dep=None)
    scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b""}
    scope |= {"app": SimpleNamespace(state=state), "state": {}, "server": ("127.0.0.1", 1)}
    with contextlib.suppress(FlowerError):  # a request for the Control API has no account
        asyncio.run(made(scope, receive, send))
    body = b"".join(message.get("body", b"") for message in sent)
    return ran, [*((m["status"], m["headers"]) for m in sent if "status" in m), body]


def test_layers_are_skipped_only_where_they_do_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = idle_layers()
    paths = [f"{NODES}pull-messages", f"{APPS}pull-messages", "/v1/control/list-runs"]
    before = {(layer, path): asked(layer, path) for layer in layers for path in paths}
    for layer in layers:
        monkeypatch.setattr(layer, "__call__", layer.__call__)  # to restore it
    skip_idle_layers()
    for layer, idle in layers.items():
        for path in paths:
            ran, sent = asked(layer, path)
            assert ran == (["app"] if path.startswith(idle) else before[layer, path][0])
            assert sent == before[layer, path][1]  # the same response, headers and all
            assert before[layer, path][0][0] == "layer"


def test_a_request_is_freed_when_it_was_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Python's search for reference cycles, which may come half an hour later."""
    monkeypatch.setattr(base._CachedRequest, "__init__", base._CachedRequest.__init__)  # to restore
    free_requests()
    bodies, requests = [], []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        bodies.append((await receive())["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"reply"})

    async def dispatch(request: Any, call_next: Any) -> Any:
        await request.body()
        requests.append(weakref.ref(request))
        return await call_next(request)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"a model", "more_body": False}

    async def send(message: Any) -> None:
        pass

    layer = base.BaseHTTPMiddleware(app, dispatch)
    gc.disable()
    try:
        asyncio.run(layer({"type": "http", "headers": []}, receive, send))
        assert bodies == [b"a model"]
        assert requests[0]() is None
    finally:
        gc.enable()


def test_old_objects_in_cycles_are_freed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patient_superlink, "COLLECT", 0.01)
    request, ended = Clock(), threading.Event()
    request.itself = request  # type: ignore[attr-defined]
    kept = weakref.ref(request)
    gc.collect()  # now it is old
    del request
    gc.disable()
    thread = threading.Thread(target=patient_superlink.collect_all, args=(ended,))
    try:
        thread.start()
        until = time.monotonic() + 30
        while kept() is not None and time.monotonic() < until:
            time.sleep(0.01)
        assert kept() is None
    finally:
        gc.enable()
        ended.set()
        thread.join()


@pytest.mark.parametrize("size", [1000, 3_000_000])
def test_a_connection_is_closed_after_a_large_response(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(FastAPI, "__call__", FastAPI.__call__)  # to restore it
    close_after_large_responses()
    app, sent = FastAPI(), []
    app.add_api_route("/part", lambda: Response(b"x" * size), methods=["GET"])

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/part", "headers": [], "query_string": b""}
    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == 200
    closed = (b"connection", b"close") in sent[0]["headers"]
    assert closed == (size > LARGE)
    assert sum(len(message.get("body", b"")) for message in sent) == size
