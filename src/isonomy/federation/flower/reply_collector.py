"""Collects replies whose parts arrive one by one, without waiting for those of a single sender.

A node first announces a reply, and then sends its parts. Flower's `Grid.pull_messages` waits for
the parts of one reply before it takes the next. A participant that ends or hangs in between, on
purpose or not, would therefore hold up a round for minutes, whatever its timeout is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice

from flwr.app import Message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
)
from flwr.superlink.grid.http_grid import HttpGrid

MOST = 1000  # parts of a reply; one of 4 MB has three, and a larger one has one more per 5 MB
AT_ONCE = 4  # requests for parts


class BrokenReply(Exception):
    """A reply cannot be put together from its parts."""


@dataclass
class _Announced:
    """A reply that was announced, and its parts that have arrived."""

    message: str  # the message that it answers
    wanted: list[str]
    parts: dict[str, bytes] = field(default_factory=dict)


class ReplyCollector:
    """Takes replies from a SuperLink; those that are not complete yet are taken later."""

    def __init__(self, grid: HttpGrid) -> None:
        self._client, self._node = grid._runtime_client, grid.node
        self._run = grid.run.run_id
        self._pull = make_pull_object_fn_protobuf(self._client.PullObject, self._node, self._run)
        self._announced: dict[str, _Announced] = {}  # by the reply's id

    def take(self, messages: Iterable[str]) -> Iterator[tuple[str, Message | BrokenReply]]:
        """The replies to these messages that are complete by now, each with its message's id."""
        known = {one.message for one in self._announced.values()}
        if new := [message for message in messages if message not in known]:
            yield from self._look_for(new)
        missing = [
            (number, part)
            for number, one in self._announced.items()
            for part in one.wanted
            if part not in one.parts
        ]
        if not missing:
            return
        broken: dict[str, ObjectPullError] = {}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            found = pool.map(self._part, (part for _, part in missing))
            for (number, part), content in zip(missing, found, strict=True):
                if isinstance(content, ObjectPullError):
                    broken[number] = content
                elif content is not None:
                    self._announced[number].parts[part] = content
        for number, one in list(self._announced.items()):
            if number in broken:
                del self._announced[number]
                yield one.message, BrokenReply("a part of it did not arrive")
            elif all(part in one.parts for part in one.wanted):
                del self._announced[number]
                yield one.message, self._whole(number, one)

    def _look_for(self, messages: list[str]) -> Iterator[tuple[str, BrokenReply]]:
        """Note which replies were announced; returns those that cannot be taken."""
        got = self._client.PullMessages(PullAppMessagesRequest(message_ids=messages))
        for about, pieces in zip(got.messages_list, got.message_object_trees, strict=True):
            wanted = [one.object_id for one in islice(iterate_object_tree(pieces), MOST + 1)]
            to = about.metadata.reply_to_message_id
            if len(wanted) > MOST:
                yield to, BrokenReply(f"it has more than {MOST} parts")
            else:
                self._announced[about.metadata.message_id] = _Announced(to, wanted)

    def _part(self, number: str) -> bytes | ObjectPullError | None:
        """A part of a reply; None if it has not arrived yet."""
        try:
            return self._pull(number)
        except ObjectUnavailableError:
            return None
        except ObjectPullError as error:
            return error

    def _whole(self, number: str, announced: _Announced) -> Message | BrokenReply:
        self._client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(
                node=self._node, run_id=self._run, message_object_id=number
            )
        )
        try:
            message = inflate_object_from_contents(number, announced.parts)
        except Exception as error:  # the parts are the sender's
            return BrokenReply(f"it cannot be read ({type(error).__name__})")
        if not isinstance(message, Message):
            return BrokenReply("it is not a message")
        return message


class OtherGrid:
    """The same with the `pull_messages` of any grid, for example that of a simulation."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def take(self, messages: Iterable[str]) -> Iterator[tuple[str, Message | BrokenReply]]:
        """The replies to these messages that have arrived."""
        for message in self._grid.pull_messages(list(messages)):
            yield message.metadata.reply_to_message_id, message


def collector(grid: Grid) -> ReplyCollector | OtherGrid:
    """What takes replies from a grid."""
    return ReplyCollector(grid) if isinstance(grid, HttpGrid) else OtherGrid(grid)
