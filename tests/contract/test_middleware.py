"""Client-side middleware runs around the phase, in the client's own process, on every engine."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from contract.table import ENGINES
from isonomy.algorithms.average.fedavg import FedAvg
from isonomy.algorithms.client_fair.term import TERM
from isonomy.contract.checks import LOOP, Transport, begin, close, outcome
from isonomy.contract.world import world
from isonomy.core import tree
from isonomy.core.cohort import Ask
from isonomy.core.phase import Phase

NORM, NOISE = 0.05, 0.01


def clipped_and_noised(ask: Ask, phase: Phase) -> Phase:
    """Clips the update of every part of kind `model` and adds noise from the client's own key."""
    parts = {name: part.of for name, part in ask.declared.parts.items() if part.kind == "model"}

    @functools.wraps(phase)
    def wrapped(task: Any, message: Any, client: Any) -> Any:
        reply, state = phase(task, message, client)
        out = dict(reply)
        for name, of in parts.items():
            update = tree.sub(reply[name], message[of])
            scale = (NORM / tree.sq_norm(update).sqrt().clamp(min=NORM)).to(torch.float32)
            out[name] = {
                key: message[of][key] + scale * u + NOISE * client.normal(f"{name} {key}", u.shape)
                for key, u in update.items()
            }
        return out, state

    return wrapped


def run(algorithm: Any, transport: Transport, around: tuple[Any, ...], wrap: Any = ()) -> Any:
    where = world()
    engine, server = begin(algorithm, transport, where)
    for r in range(2):
        cohort = engine.cohort(where.ids(r), work=where.work, round=r, around=around, wrap=wrap)
        server = algorithm.round(server, cohort)
    return outcome(algorithm, transport, engine, server, where)


@pytest.mark.parametrize("transport", ENGINES.values(), ids=ENGINES)
@pytest.mark.parametrize("algorithm", [FedAvg(), TERM()], ids=lambda a: a.name)
def test_noise_at_the_client_is_the_same_on_every_engine(
    algorithm: Any, transport: Transport
) -> None:
    expected = run(algorithm, LOOP, (clipped_and_noised,))
    close(run(algorithm, transport, (clipped_and_noised,)), expected, "noised")
    plain = run(algorithm, transport, ())
    assert any(not torch.equal(a, b) for a, b in zip(plain.outputs, expected.outputs, strict=True))


@pytest.mark.parametrize("transport", ENGINES.values(), ids=ENGINES)
def test_the_server_receives_only_what_the_client_side_lets_out(transport: Transport) -> None:
    """What crosses the exchange is clipped already: the server side never sees the honest reply."""
    where, norms = world(), []

    def looks(exchange: Any) -> Any:
        def wrapped(ask: Ask) -> Any:
            for chunk in exchange(ask):
                update = tree.sub(chunk.value["params"], ask.message["params"])
                rows = torch.cat([t.flatten(1) for t in tree.leaves(update)], 1)
                norms.extend(rows.norm(dim=1).tolist())
                yield chunk

        return wrapped

    algorithm = FedAvg()
    run(algorithm, transport, (clipped_and_noised,), (looks,))
    numbers = sum(t.numel() for t in where.params.values())
    assert norms
    assert max(norms) < NORM + 3 * NOISE * numbers**0.5
