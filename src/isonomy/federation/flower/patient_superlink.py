"""Flower's SuperLink, with a database that waits longer for its lock and is used less often.

Every poll of every node writes to the SuperLink's database, and Flower waits 5 s for its lock. If
that is not enough on a busy machine, the request fails; if it was a request of the process that
runs the ServerApp, that process ends, and the federation with it. Two of the writes that Flower
makes with nearly every request are made once a second here, the node of a key is remembered for a
few seconds, connections to the database are kept, and requests pass by layers of the server that
do nothing with them. Together these halve the processor time of a round. Memory does not grow with
the rounds, because a request is freed when it was answered.
"""

from __future__ import annotations

import gc
import threading
import time
from collections import Counter
from contextvars import ContextVar
from functools import partial
from typing import Any

from isonomy.federation.light_memory import trim

SECONDS = 60  # Flower repeats requests that have no answer after 30 s, but not those that fail
EVERY = 1.0  # seconds between writes that can wait
REMEMBERED = 5.0  # seconds for which the node of a key is not looked up again
NODES, APPS = "/v1/fleet/", "/v1/runtime/"  # paths of participants' and of the ServerApp's requests
LARGE = 1 << 20  # bytes of a response after which its connection is closed
COLLECT = 60.0  # seconds between searches for all objects that are not used any more
CONNECTIONS = 8  # to the database that are kept; each has a cache of its own
CACHE = 1000  # kB of each cache; the database has a few MB


def wait_longer() -> None:
    """Let databases that Flower opens in this process wait up to SECONDS for their lock."""
    _set("busy_timeout", SECONDS * 1000)


def _set(setting: str, value: int) -> None:
    """Change a setting of the connections to databases that Flower will open in this process."""
    from flwr.supercore import sql_mixin

    name = "SQLITE_PRAGMAS"
    settings = {**dict(getattr(sql_mixin, name)), setting: str(value)}
    setattr(sql_mixin, name, tuple(settings.items()))


def write_less_often() -> None:
    """Look for expired tasks, and store how many bytes were sent, once in EVERY seconds.

    Tasks expire half a minute or more after their last heartbeat. The bytes are Flower's statistic
    of a run; those of the last second before the end may be missing there.
    """
    from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
    from flwr.supercore.corestate.sql_corestate import SqlCoreState

    name = "_cleanup_expired_task_tokens"
    clean, store = getattr(SqlCoreState, name), SqlLinkState.store_traffic
    cleaning, storing = _Due(), _Due()
    sent: Counter[int] = Counter()  # bytes by run
    received: Counter[int] = Counter()
    lock = threading.Lock()

    def clean_seldom(self: Any) -> None:
        if cleaning.now():
            clean(self)

    def store_seldom(self: Any, run_id: int, *, bytes_sent: int, bytes_recv: int) -> None:
        with lock:
            sent[run_id] += bytes_sent
            received[run_id] += bytes_recv
            if not storing.now():
                return
            out, back = sent.pop(run_id), received.pop(run_id)
        store(self, run_id, bytes_sent=out, bytes_recv=back)

    setattr(SqlCoreState, name, clean_seldom)
    setattr(SqlLinkState, store.__name__, store_seldom)


def remember_nodes() -> None:
    """Look up the node of a key once in REMEMBERED seconds, and not with each of its requests."""
    from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState

    look_up = SqlLinkState.get_node_id_by_public_key
    known: dict[bytes, tuple[float, int]] = {}

    def remembered(self: Any, public_key: bytes) -> int | None:
        until, node = known.get(public_key, (0.0, 0))
        if time.monotonic() < until:
            return node
        found = look_up(self, public_key)
        if found is not None:  # there are as many as registered keys
            known[public_key] = time.monotonic() + REMEMBERED, found
        return found

    setattr(SqlLinkState, look_up.__name__, remembered)


def keep_replies() -> None:
    """Take the reply of a node that has gone offline since.

    Flower reports such a node as unavailable, also if its reply is there. At the end of a run all
    participants answer and leave at once, mostly before the ServerApp asks for their replies.
    """
    from flwr.server.superlink.linkstate import sql_linkstate
    from flwr.supercore.state.schema.linkstate_models import MessageRes
    from sqlalchemy import select

    take = sql_linkstate.SqlLinkState.get_message_res
    name = "check_node_availability_for_in_message"
    check = getattr(sql_linkstate, name)
    reply_to = MessageRes.reply_to_message_id
    answered: ContextVar[set[str]] = ContextVar("answered")

    def check_unanswered(inquired_in_message_ids: set[str], *given: Any, **options: Any) -> Any:
        there = inquired_in_message_ids & answered.get(set())
        inquired_in_message_ids -= there
        errors = check(inquired_in_message_ids, *given, **options)
        inquired_in_message_ids |= there
        return errors

    def take_all(self: Any, message_ids: set[str], run_id: int) -> Any:
        with self.session() as session:
            there = session.scalars(select(reply_to).where(reply_to.in_(message_ids)))
            token = answered.set(set(there))
            try:
                return take(self, message_ids, run_id)
            finally:
                answered.reset(token)

    setattr(sql_linkstate, name, check_unanswered)
    setattr(sql_linkstate.SqlLinkState, take.__name__, take_all)


def keep_connections() -> None:
    """Keep more connections to the database than Flower, with a smaller cache (64 MB there)."""
    from flwr.supercore import sql_mixin

    _set("cache_size", -CACHE)
    name = "create_engine"
    setattr(sql_mixin, name, partial(getattr(sql_mixin, name), pool_size=CONNECTIONS))


def idle_layers() -> dict[type, tuple[str, ...]]:
    """Layers of the SuperLink's HTTP server, and the paths of requests for which they do nothing.

    Each layer costs a task and two streams per request, and there are nine of them.
    """
    from flwr.supercore.routers.runtime.tracing import RuntimeTracingMiddleware
    from flwr.superlink.routers.control import middlewares as control
    from flwr.superlink.routers.fleet.middlewares import FleetEventLogMiddleware
    from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware

    return {
        control.ControlSensitiveResponseMiddleware: (NODES, APPS),
        control.ControlAuthenticationMiddleware: (NODES, APPS),
        control.ControlLicenseMiddleware: (NODES, APPS),
        control.ControlEventLogMiddleware: (NODES, APPS),
        RuntimeTracingMiddleware: (NODES,),
        NodeAuthMiddleware: (APPS,),
        FleetEventLogMiddleware: (APPS,),
    }


def skip_idle_layers() -> None:
    """Pass requests by the layers that do nothing with them."""
    for layer, paths in idle_layers().items():
        layer.__call__ = _passing_by(layer.__call__, paths)  # type: ignore[method-assign]


def _passing_by(call: Any, paths: tuple[str, ...]) -> Any:
    async def passing_by(self: Any, scope: Any, receive: Any, send: Any) -> None:
        idle = scope["type"] == "http" and scope["path"].startswith(paths)
        await (self.app(scope, receive, send) if idle else call(self, scope, receive, send))

    return passing_by


def free_requests() -> None:
    """Free a request, with its body, when it was answered.

    Starlette's class of requests keeps a generator that it never uses, and that refers back to the
    request. Requests with their bodies, several MB for a model, would therefore stay until Python
    looks for reference cycles among old objects, which can take half an hour.
    """
    from starlette.middleware import base

    request: Any = getattr(base, "_CachedRequest")  # noqa: B009
    make = request.__init__

    def made(self: Any, scope: Any, receive: Any) -> None:
        make(self, scope, receive)
        self._wrapped_rc_stream = None

    request.__init__ = made


def close_after_large_responses() -> None:
    """Close the connection after a response of more than LARGE bytes.

    The encryption of a connection keeps a buffer as large as its largest response. The ServerApp's
    connections last as long as the run, and a participant can send a large reply through them.
    """
    from fastapi import FastAPI

    call: Any = FastAPI.__call__

    async def closing(self: Any, scope: Any, receive: Any, send: Any) -> None:
        async def send_closing(message: Any) -> None:
            headers = message.get("headers") or ()
            sizes = [int(value) for name, value in headers if name.lower() == b"content-length"]
            if message["type"] == "http.response.start" and max(sizes, default=0) > LARGE:
                message = {**message, "headers": [*headers, (b"connection", b"close")]}
            await send(message)

        await call(self, scope, receive, send_closing)

    FastAPI.__call__ = closing  # type: ignore[method-assign]


def collect_less_often() -> None:
    """Let Python look for reference cycles less often: that was a quarter of the SuperLink's time.

    What was imported is not examined any more, and new objects only after some thousands of them.
    Python chooses the time for old objects by their number. A request that was interrupted can be
    among them, with a body of several MB, so all objects are examined once in COLLECT seconds.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    threading.Thread(target=collect_all, args=(threading.Event(),), daemon=True).start()


def collect_all(ended: threading.Event) -> None:
    """Free what is not used any more, and return it to the system, once in COLLECT seconds."""
    while not ended.wait(COLLECT):
        gc.collect()
        trim()


class _Due:
    """Says once in EVERY seconds, to one thread, that something is due."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 0.0

    def now(self) -> bool:
        with self._lock:
            moment = time.monotonic()
            due = moment >= self._next
            if due:
                self._next = moment + EVERY
        return due


def main() -> None:
    """Run the SuperLink, as `flower-superlink` does."""
    from flwr.superlink.cli import flower_superlink

    wait_longer()
    write_less_often()
    remember_nodes()
    keep_replies()
    keep_connections()
    skip_idle_layers()
    free_requests()
    close_after_large_responses()
    collect_less_often()
    flower_superlink()


if __name__ == "__main__":
    main()
