"""Processor seconds and bytes of secure aggregation, without a network: one client, and the server.

python benchmarks/secure_aggregation.py 3 10 50
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch

from isonomy.config.schema import SecureConfig
from isonomy.core.phase import Declaration, Part
from isonomy.federation.flower.secure_server import SLOTS
from isonomy.privacy.secure import member as members
from isonomy.privacy.secure.member import KEY, Member
from isonomy.privacy.secure.quantise import Encoding, room_for
from isonomy.privacy.secure.recovery import unmasked
from isonomy.privacy.secure.threshold import least

MODEL = Declaration("local", ("mean",), {"params": Part("model")})


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Processor seconds, and what was computed."""
    begin = time.process_time()
    out = work()
    return round(time.process_time() - begin, 4), out


def measure(clients: int, numbers: int, lost: int) -> dict[str, Any]:
    """One epoch and one exchange, in which some clients drop out after the keys."""
    ids = list(range(clients))
    threshold = least(-(-2 * clients // 3), clients)
    group = {k: Member(k, threshold) for k in ids}
    adverts = {k: one.advertise("e", ids, SLOTS) for k, one in group.items() if k}
    spent, adverts[0] = timed(lambda: group[0].advertise("e", ids, SLOTS))
    out: dict[str, Any] = {"clients": clients, "threshold": threshold, "lost": lost}
    out["numbers"] = numbers
    sealed = {k: one.share("e", adverts) for k, one in group.items() if k}
    share, sealed[0] = timed(lambda: group[0].share("e", adverts))
    out[f"a client's keys and shares for {SLOTS} exchanges, s"] = round(spent + share, 4)
    for k, one in group.items():
        one.receive("e", {j: sealed[j][k] for j in ids if j != k})
    reply = {"params": {"w": torch.randn(numbers)}}
    encoding = Encoding.of(MODEL, reply, room_for(1000 * clients, clients), SecureConfig())
    about = members.context(members.roster("e", adverts), 0, ids, "benchmark")
    masked = {
        k: group[k].mask("e", 0, ids, about, encoding.vector(reply, 1000))
        for k in ids[1 : clients - lost]
    }
    spent, masked[0] = timed(
        lambda: group[0].mask("e", 0, ids, about, encoding.vector(reply, 1000))
    )
    out["a client's masks, s"] = spent
    answered = sorted(masked)
    shares = {k: group[k].unmask("e", 0, answered) for k in answered}
    spent, total = timed(lambda: unmasked(masked, shares, adverts, 0, ids, threshold, about))
    assert encoding.decoded(total).total == 1000 * len(answered)
    out["the server's sum, s"] = spent
    out["bytes of a masked reply"] = encoding.nbytes
    out["bytes of a plain reply"] = 4 * numbers
    keys, shares_ = KEY * (SLOTS + 1), (clients - 1) * members.sealed_size(SLOTS)
    out["bytes of a client's keys and shares per exchange, up and down"] = [
        round((keys + shares_) / SLOTS),
        round((clients * keys + shares_) / SLOTS),
    ]
    return out


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("counts", type=int, nargs="*", default=[3, 10], help="numbers of clients")
    parser.add_argument("--numbers", type=int, default=69_000, help="parameters of the model")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for count in given.counts:
        for lost in (0, 1):
            print(json.dumps(measure(count, given.numbers, lost)), flush=True)
