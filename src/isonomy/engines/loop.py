"""The reference engine: one client at a time. Tests compare the other engines with it."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from isonomy.core import tree
from isonomy.core.cohort import Ask, Replies
from isonomy.core.fold import using
from isonomy.engines.base import Engine


class Loop(Engine):
    """Runs one client's phase after another, as each client's own machine would."""

    name = "loop"

    def exchange(self, ask: Ask) -> Iterator[Replies]:
        """One chunk for each client."""
        for i, k in enumerate(ask.ids.tolist()):
            ids = torch.tensor([k])
            parts = self.client(ask, ids)
            message = ask.message
            if ask.each is not None:
                message = {**message, **tree.take(ask.each, i)}
            with torch.no_grad(), using(None):
                lane = tree.take(parts["lanes"], 0)
                value, state = self.run_phase(ask, message, lane, parts["shared"])
            self.states.put(ids, tree.tmap(lambda t: t.unsqueeze(0), state))
            value = tree.tmap(lambda t: t.unsqueeze(0), value)
            yield Replies(value, ids, self.federation.sizes(clients=ids))
