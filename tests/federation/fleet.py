"""A SuperLink's answers to a node, without a network: messages are real, and kept in memory."""

from __future__ import annotations

from typing import Any

import httpx
from flwr.app import Message, Metadata, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import ActivateNodeResponse, PullMessagesResponse, PushMessagesResponse
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatResponse
from flwr.proto.message_pb2 import PullObjectResponse, PushObjectResponse
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

NODE, RUN = 77, 5


class Fleet:
    """Stands for Flower's `FleetHttpClient`; every request is recorded by its name."""

    def __init__(self, *contents: RecordDict, done: Any = lambda: None) -> None:
        self.waiting = list(contents)
        self.done = done  # called when every message was answered
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.errors: dict[str, list[Exception]] = {}  # to raise, by the name of the request
        self.unstored = 0  # parts of replies that are not stored at first
        self.objects: dict[str, bytes] = {}
        self.pushed: dict[str, bytes] = {}
        self.replies: list[Message] = []

    def from_server_address(self, *arguments: Any) -> Fleet:
        self.interceptors = arguments[-1]
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not name[0].isupper():
            raise AttributeError(name)

        def ask(request: Any) -> Any:
            self.asked.append(name)
            made = httpx.Request("POST", f"http://test/{name}")
            context = type("Context", (), {"request": made})
            for one in self.interceptors:
                one.intercept(context, lambda _: httpx.Response(200))
            self.headers.append(dict(made.headers))
            if self.errors.get(name):
                raise self.errors[name].pop(0)
            return getattr(self, f"_{name}")(request)

        return ask

    def _ActivateNode(self, _: Any) -> Any:  # noqa: N802
        return ActivateNodeResponse(node_id=NODE)

    def _RegisterNode(self, _: Any) -> Any:  # noqa: N802
        return None

    def _DeactivateNode(self, _: Any) -> Any:  # noqa: N802
        return None

    def _SendNodeHeartbeat(self, _: Any) -> Any:  # noqa: N802
        return SendNodeHeartbeatResponse(success=True)

    def _ConfirmMessageReceived(self, _: Any) -> Any:  # noqa: N802
        return None

    def _PullMessages(self, _: Any) -> Any:  # noqa: N802
        if not self.waiting:
            self.done()
            return PullMessagesResponse()
        about = Metadata(RUN, "", 1, NODE, "", "1", 0.0, 1e9, "query")
        message = make_message(about, self.waiting.pop(0))
        about.__dict__["_message_id"] = message.object_id
        self.objects |= {k: v.deflate() for k, v in get_all_nested_objects(message).items()}
        return PullMessagesResponse(
            messages_list=[message_to_proto(remove_content_from_message(message))],
            message_object_trees=[get_object_tree(message)],
        )

    def _PullObject(self, request: Any) -> Any:  # noqa: N802
        content = self.objects[request.object_id]
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def _PushMessages(self, request: Any) -> Any:  # noqa: N802
        pieces = request.message_object_trees[0]
        self.replies.append(message_from_proto(request.messages_list[0]))
        wanted = [one.object_id for one in iterate_object_tree(pieces)]
        return PushMessagesResponse(objects_to_push=wanted, session_id="s")

    def _PushObject(self, request: Any) -> Any:  # noqa: N802
        self.unstored -= 1
        if self.unstored >= 0:
            return PushObjectResponse(stored=False)
        self.pushed[request.object_id] = request.object_content
        return PushObjectResponse(stored=True)

    def close(self) -> None:
        self.asked.append("close")

    def answer(self, place: int = 0) -> Message:
        """A whole reply, put together from its pieces."""
        number = self.replies[place].metadata.message_id
        found = inflate_object_from_contents(number, dict(self.pushed))
        assert isinstance(found, Message)
        return found
