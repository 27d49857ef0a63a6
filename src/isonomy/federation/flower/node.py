"""A participant's node: it fetches messages from the SuperLink and answers them in this process.

Flower's own program for this, the SuperNode, fetches the organiser's app too, and starts a process
for each message in which that app runs. Here the process that has the table answers, so that torch
is loaded once, and no app is fetched. Requests, messages and their pieces are Flower's own.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import httpx
from flwr.app import Error, Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import HEARTBEAT_CALL_TIMEOUT, HEARTBEAT_DEFAULT_INTERVAL, ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node as Sender
from flwr.supercore.constant import (
    FLWR_COMPONENT_NAME_METADATA_KEY,
    FLWR_PACKAGE_NAME_METADATA_KEY,
    FLWR_PACKAGE_VERSION_METADATA_KEY,
)
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    pull_and_inflate_object_from_tree,
    push_objects,
)
from flwr.supercore.version import package_name, package_version
from flwr.supernode.fleet_http_client import FleetHttpClient

from isonomy.errors import IsonomyError
from isonomy.federation.flower.message_content import content_of, record_of

SHORT, LONG = 0.3, 3.0  # seconds between requests for messages: when one is due, and at rest
GROWTH = 1.25  # from one pause to the next, up to the longest
EARLY = 0.8  # of the usual time from a reply to the next message, in which none is asked for
LATEST = 10.0  # seconds after a reply, at which the next message is asked for in any case
AWAY = (502, 503, 504)  # the gateway's answers while the SuperLink does not run, or is busy
FAILED = 500  # the SuperLink's answer if, for example, its database is locked for too long
TRIES = 10  # of a request that fails in the SuperLink
NOT_ACTIVATED = 2004  # Flower's code: the key is not known, or another process uses it
VERSION = {
    FLWR_PACKAGE_NAME_METADATA_KEY: package_name,
    FLWR_PACKAGE_VERSION_METADATA_KEY: package_version,
    FLWR_COMPONENT_NAME_METADATA_KEY: "SuperNode",
}
Answer = Callable[[bytes], bytes]
Sign = Callable[[], Mapping[str, str]]
_Reply = TypeVar("_Reply")


class Refused(Exception):
    """The SuperLink refuses a request; the text is its reason, and `code` Flower's number of it."""

    def __init__(self, response: httpx.Response) -> None:
        try:
            about = json.loads(response.text)
        except ValueError:
            about = None
        about = about if isinstance(about, dict) else {}
        self.code = about.get("code")
        reason = about.get("detail") or about.get("reason") or f"HTTP {response.status_code}"
        super().__init__(str(reason))


class Ended(Exception):
    """The participant has ended while a request was waiting for the server."""


class _Headers:
    """Adds the signature and Flower's version to every request."""

    def __init__(self, sign: Sign) -> None:
        self._sign = sign

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        context.request.headers.update({**VERSION, **self._sign()})
        return call_next(context)


class Pace:
    """How long to wait before the next request for messages.

    The next message comes when all participants have replied, usually after about the same time as
    before. Until shortly before that, requests would only keep the server from its work.
    """

    def __init__(self) -> None:
        self._gaps: deque[float] = deque(maxlen=3)  # seconds from a reply to the next message
        self._replied: float | None = None  # when the last reply was sent
        self._pause = SHORT

    def came(self) -> None:
        """A message has come."""
        if self._replied is not None:
            self._gaps.append(time.monotonic() - self._replied)

    def replied(self) -> float:
        """A message was answered; returns seconds to wait before the first request."""
        self._replied = time.monotonic()
        self._pause = SHORT
        return max(SHORT, min(EARLY * min(self._gaps, default=0.0), LATEST))

    def nothing(self) -> float:
        """There was no message; returns seconds to wait before the next request."""
        pause, self._pause = self._pause, min(GROWTH * self._pause, LONG)
        return pause * random.uniform(0.8, 1.2)  # not all nodes at once


class Node:
    """A connection to the SuperLink, from the moment at which the server knows that it is online.

    `sign` makes the headers that show the participant's key, whose public half is `public`. `final`
    raises an error for a failed connection that cannot succeed later. `lost` is called when the
    connection is interrupted, and `ended` stops what waits for it.
    """

    def __init__(
        self,
        server: tuple[str, int],
        *,
        sign: Sign,
        public: bytes,
        ca: Path | None,
        register: bool,
        ended: threading.Event,
        final: Callable[[Exception], None],
        lost: Callable[[], None],
    ) -> None:
        host, port = server
        at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._ended, self._final, self._lost = ended, final, lost
        self._client = FleetHttpClient.from_server_address(
            at, ca is None, None if ca is None else ca.read_bytes(), [_Headers(sign)]
        )
        self._closed = threading.Event()
        try:
            if register:
                self._call(self._client.RegisterNode, RegisterNodeFleetRequest(public_key=public))
            activated = self._call(
                self._client.ActivateNode,
                ActivateNodeRequest(
                    public_key=public, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL
                ),
            )
        except BaseException:
            self._client.close()
            raise
        self._node = Sender(node_id=activated.node_id)
        self._heart = threading.Thread(target=self._beat, daemon=True)
        self._heart.start()

    def close(self) -> None:
        """Tell the server that this node is offline."""
        self._closed.set()
        self._heart.join(HEARTBEAT_CALL_TIMEOUT + 1)
        with suppress(httpx.HTTPError, RuntimeError):  # the server notices by itself, in a minute
            self._client.DeactivateNode(DeactivateNodeRequest(node_id=self._node.node_id))
        self._client.close()

    def run(self, answer: Answer, note: Callable[[str], None]) -> None:
        """Answer messages until `ended`; raises Refused if the server does not know the node."""
        pace = Pace()
        while not self._ended.is_set():
            got = self._call(self._client.PullMessages, PullMessagesRequest(node=self._node))
            if not got.messages_list:
                self._ended.wait(pace.nothing())
                continue
            pace.came()
            about, pieces = got.messages_list[0], got.message_object_trees[0]
            try:
                self._handle(message_from_proto(about), pieces, answer)
            except (Refused, ObjectPullError, ObjectPushError) as error:
                # for example, its run has ended meanwhile
                note(f"a message could not be fetched or answered ({error}).")
            self._ended.wait(pace.replied())

    def _handle(self, about: Message, pieces: ObjectTree, answer: Answer) -> None:
        """Fetch a message, and send its answer; what cannot be read is answered with an error."""
        begin = time.monotonic()
        run = about.metadata.run_id
        call, client, node = self._call, self._client, self._node
        try:
            message = pull_and_inflate_object_from_tree(
                pieces,
                make_pull_object_fn_protobuf(partial(call, client.PullObject), node, run),
                make_confirm_message_received_fn_protobuf(
                    partial(call, client.ConfirmMessageReceived), node, run
                ),
                return_type=Message,
            )
            message.metadata.__dict__["_message_id"] = pieces.object_id
            content = content_of(message)
        except (Refused, Ended, ObjectPullError, IsonomyError):
            raise
        except Exception:  # whatever is sent, it must not end the participant
            why = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "it is not a message of isonomy")
            self._send(Message(why, reply_to=about), 0.0)
            return
        reply = Message(record_of(answer(content)), reply_to=message)
        del message, content
        self._send(reply, time.monotonic() - begin)

    def _send(self, reply: Message, seconds: float) -> None:
        run = reply.metadata.run_id
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with no_object_id_recompute():
            sent = self._call(
                self._client.PushMessages,
                PushMessagesRequest(
                    node=self._node,
                    messages_list=[message_to_proto(_without_content(reply))],
                    message_object_trees=[get_object_tree(reply)],
                    clientapp_runtime_list=[seconds],
                ),
            )
            push = make_push_object_fn_protobuf(
                partial(self._call, self._client.PushObject), self._node, run, sent.session_id
            )
            push_objects(
                get_all_nested_objects(reply),
                partial(self._push, push),
                object_ids_to_push=set(sent.objects_to_push),
            )

    def _push(self, push: Callable[[str, bytes], None], number: str, content: bytes) -> None:
        """Send a part of a reply; the SuperLink may need several attempts to store it."""
        for _ in range(TRIES - 1):
            try:
                return push(number, content)
            except ObjectPushError:
                if self._ended.wait(SHORT):
                    raise Ended from None
        return push(number, content)

    def _call(self, method: Callable[[Any], _Reply], request: Any) -> _Reply:
        """The reply to a request, which is repeated while the server cannot be reached."""
        pause, failed = SHORT, 0
        while True:
            try:
                return method(request)
            except httpx.HTTPStatusError as error:
                status = error.response.status_code
                failed += status == FAILED
                if status not in (*AWAY, FAILED) or failed == TRIES:
                    raise Refused(error.response) from None
                if status != FAILED:
                    self._lost()
            except httpx.TransportError as error:
                self._final(error)
                self._lost()
            if self._closed.is_set() or self._ended.wait(pause):
                raise Ended
            pause = min(GROWTH * pause, LONG)

    def _beat(self) -> None:
        """Tell the server regularly that this node is online, also while it computes."""
        usual = 0.8 * (HEARTBEAT_DEFAULT_INTERVAL - HEARTBEAT_CALL_TIMEOUT)
        request = SendNodeHeartbeatRequest(
            node=self._node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL
        )
        pause = 0.0
        while not self._closed.wait(pause):
            try:
                self._client.SendNodeHeartbeat(request)
                pause = usual * random.uniform(0.9, 1.1)
            except (httpx.HTTPError, RuntimeError):
                pause = LONG


def _without_content(message: Message) -> Message:
    return remove_content_from_message(message) if message.has_content() else message
