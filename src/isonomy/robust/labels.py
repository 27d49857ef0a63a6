"""Which clients are malicious, and what they train on: poisoned labels (A1), flipped groups.

Both are fixed before the first round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from isonomy.core import random
from isonomy.data.federation import Federation
from isonomy.errors import ConfigError

Poison = Literal["none", "auto", "random", "flip"]


def malicious(
    clients: int, *, fraction: float = 0.0, ids: Sequence[int] | None = None, seed: int = 0
) -> Tensor:
    """The malicious clients in ascending order: those given, or a share of all (rounded).

    >>> malicious(10, fraction=0.2, seed=0).tolist() == malicious(10, fraction=0.2, seed=0).tolist()
    True
    """
    if ids is not None:
        wrong = [k for k in ids if not 0 <= k < clients]
        if wrong or len(set(ids)) < len(ids):
            raise ConfigError(
                f"attack.clients = {list(ids)}: give different numbers from 0 to {clients - 1}."
            )
        chosen = torch.tensor(sorted(ids), dtype=torch.int64)
    else:
        count = int(fraction * clients + 0.5)
        if fraction > 0 and not count:
            raise ConfigError(
                f"attack.fraction = {fraction:g} of {clients} clients selects no client; raise it, "
                "or list clients in attack.clients."
            )
        score = random.uniform(random.key(seed), "malicious", (clients,)).double()
        chosen = score.topk(count).indices.sort().values
    if len(chosen) >= clients:
        raise ConfigError(
            "attack: every client is malicious, so no benign client is left to measure; lower "
            "attack.fraction."
        )
    return chosen


def poisoned(federation: Federation, who: Tensor, how: Poison, seed: int) -> Federation:
    """The federation with the malicious clients' training labels changed, and nothing else.

    "random": every label is drawn uniformly from all classes. "flip": y becomes C - 1 - y, so
    two classes are exchanged. "auto", as in the authors' code: "flip" for two classes, otherwise
    "random".
    """
    if how == "none" or not len(who):
        return federation
    classes = federation.classes
    if classes < 2:
        raise ConfigError(
            f"attack.labels = '{how}': '{federation.source}' has no classes whose labels could be "
            "changed; choose an attack on updates, such as 'sign_flip'."
        )
    y = federation.y.clone()
    for k in who.tolist():
        rows = federation.rows(k, "train")
        if how == "flip" or (how == "auto" and classes == 2):
            y[rows] = classes - 1 - y[rows]
        else:
            u = random.uniform(random.key(seed, k), "poison", (rows.stop - rows.start,))
            y[rows] = (u.double() * classes).long().clamp(max=classes - 1)
    return replace(federation, y=y)


def flipped(federation: Federation, who: Tensor, attribute: str) -> Federation:
    """The federation with these clients' training examples in exchanged groups of an attribute.

    Group z of L becomes L - 1 - z. Features stay as they are, also one that tells the group.
    """
    if not len(who):
        return federation
    names = [each.name for each in federation.attributes]
    at = names.index(attribute) if attribute else 0
    groups = federation.groups.clone()
    for k in who.tolist():
        rows = federation.rows(k, "train")
        groups[rows, at] = len(federation.attributes[at].levels) - 1 - groups[rows, at]
    return replace(federation, groups=groups)
