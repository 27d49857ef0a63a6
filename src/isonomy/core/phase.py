"""A phase: what one client does in one exchange, a pure function of the message and the client."""

from __future__ import annotations

from collections.abc import Callable

from isonomy.core.client import Client, Message, Reply, State
from isonomy.core.task import Task

Phase = Callable[[Task, Message, Client], tuple[Reply, State]]
