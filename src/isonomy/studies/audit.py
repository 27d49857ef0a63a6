"""Audit of client-level privacy: canary clients, and who finds them in what was released.

A run is repeated with canary clients that are added to the config's clients. Each is switched on
with probability 1/2. One that is on replies, in every round, an update of the full length of the
clip in a direction of its own; one that is off contributes nothing. Whoever sees the releases
scores a canary by how far they moved in its direction. From the scores follows a lower bound of
epsilon (`isonomy.privacy.audit`), which must not exceed the epsilon that the ledger claims.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from isonomy.config.schema import Config
from isonomy.core import random, tree
from isonomy.core.cohort import Ask, Exchange, NoReplies, Replies
from isonomy.data.federation import Federation
from isonomy.errors import ConfigError
from isonomy.privacy.audit import Guessed, guess
from isonomy.privacy.clipping import part_of, rows_of
from isonomy.privacy.release import ClientRelease, finite_only
from isonomy.runs import coverage, private
from isonomy.runs.build import Setting, build, engine_of

CANARIES = 400


@dataclass(frozen=True)
class Audit:
    """What an audit found."""

    claimed: float | None  # epsilon by the ledger; None: no finite one
    delta: float
    confidence: float
    found: Guessed

    @property
    def passed(self) -> bool:
        """Whether the claim is not contradicted."""
        return self.claimed is None or self.found.bound <= self.claimed

    def plain(self) -> dict[str, Any]:
        """All numbers, as JSON values."""
        return {
            "passed": self.passed,
            "claimed_epsilon": self.claimed,
            "delta": self.delta,
            "lower_bound": self.found.bound,
            "largest_bound_possible": self.found.most,
            "confidence": self.confidence,
            "canaries": self.found.canaries,
            "guesses": self.found.guesses,
            "right": self.found.right,
        }

    def text(self) -> str:
        """The outcome in sentences."""
        got = self.found
        claim = "no finite epsilon" if self.claimed is None else f"epsilon = {self.claimed:g}"
        out = [
            f"{got.right} of {got.guesses} guesses about {got.canaries} canaries were right, so "
            f"epsilon is at least {got.bound:.3g} with {self.confidence:.0%} confidence "
            f"(delta = {self.delta:g})."
        ]
        if self.passed:
            out.append(f"Passed: the ledger claims {claim}, which is not contradicted.")
            if self.claimed is not None and got.most < self.claimed:
                out.append(
                    f"This audit could not have found more than {got.most:.3g}; use more canaries "
                    "to test a claim of this size."
                )
        else:
            out.append(f"FAILED: the ledger claims {claim}, which is too low.")
        return "\n".join(out)


class _Canaries:
    """The canaries' replies, and the scores of what was released."""

    def __init__(self, first: int, included: Tensor, seed: int) -> None:
        self.first, self.included, self.seed = first, included, seed
        self.scores = torch.zeros(len(included), dtype=torch.float64)
        self._directions: dict[tuple[str, str], Tensor] = {}

    def directions(self, phase: str, name: str, width: int) -> Tensor:
        """A direction of length 1 for each canary."""
        key = (phase, name)
        if key not in self._directions:
            ids = random.key(self.seed, torch.arange(len(self.included)))
            drawn = random.normal(ids, f"canary {phase} {name}", (width,)).double()
            self._directions[key] = drawn / drawn.norm(dim=1, keepdim=True)
        return self._directions[key]

    def __call__(self, exchange: Exchange) -> Exchange:
        """Replace the replies of canaries."""

        def wrapped(ask: Ask) -> Iterator[Replies]:
            for chunk in exchange(ask):
                which = chunk.ids >= self.first
                if not bool(which.any()):
                    yield chunk
                    continue
                at, ids = which.nonzero().squeeze(-1), chunk.ids[which] - self.first
                value = {
                    name: self._replaced(ask, name, chunk.value, at, ids) for name in chunk.value
                }
                yield chunk._replace(value=value)

        return wrapped

    def _replaced(self, ask: Ask, name: str, value: Any, at: Tensor, ids: Tensor) -> Any:
        part = part_of(ask, name, value)
        leaves = [t.clone() for t in tree.leaves(value[name])]
        origin = None if part.origin is None or part.own else tree.leaves(part.origin)
        width, first = sum(t[0].numel() for t in leaves), 0
        push = self.directions(ask.declared.name, name, width)[ids]
        push = push * torch.where(self.included[ids], 1e4, 0.0).unsqueeze(1)  # clipped later
        for i, leaf in enumerate(leaves):
            count = leaf[0].numel()
            moved = push[:, first : first + count].reshape(-1, *leaf.shape[1:])
            leaf[at] = ((0.0 if origin is None else origin[i].double()) + moved).to(leaf.dtype)
            first += count
        return tree.like(value[name], leaves)

    def seen(self, ask: Ask, name: str, released: Tensor, unit: float) -> None:
        """Score a release: a vector, and its noise's standard deviation."""
        ways = self.directions(ask.declared.name, name, len(released))
        self.scores += ways @ released.double() / max(unit, 1e-12)


class _Watched(ClientRelease):
    """A release that tells the auditor what it gives to the algorithm."""

    canaries: _Canaries

    def _noised(self, ask: Ask, name: str, folded: Any, weight: float) -> Any:
        out = super()._noised(ask, name, folded, weight)
        flat = torch.cat([t.flatten() for t in tree.leaves(out)])
        self.canaries.seen(ask, name, flat, self._at[ask.final, ask.exchange][name].noise)
        return out

    def _clipped(
        self, ask: Ask, chunk: Replies, scales: Any, within: Any, place: dict[int, int]
    ) -> Replies:
        out = super()._clipped(ask, chunk, scales, within, place)
        at = torch.tensor([place[int(k)] for k in out.ids], dtype=torch.int64)
        for name in self._each(ask):  # noised one by one: a canary's own reply tells of it alone
            rows = rows_of(out.value, part_of(ask, name, out.value), at)
            ways = self.canaries.directions(ask.declared.name, name, rows.shape[1])
            for k, row in zip(out.ids.tolist(), rows, strict=True):
                if k >= self.canaries.first:
                    i = k - self.canaries.first
                    self.canaries.scores[i] += ways[i] @ row / max(scales[name].noise, 1e-12)
        return out


def audit(config: Config, *, canaries: int = CANARIES, confidence: float = 0.95) -> Audit:
    """Train once with canaries, and compare the bound from guesses with the ledger's epsilon."""
    if config.privacy.level != "client":
        raise ConfigError(
            f"privacy.level = '{config.privacy.level}': an audit tests client-level privacy; set "
            "privacy.level = 'client'."
        )
    if config.secure.enabled:
        raise ConfigError(
            "secure = true: an audit watches noise that the server adds; set secure = false."
        )
    setting, clients = _with_canaries(build(config), canaries)
    included = random.uniform(random.key(config.seed), "canaries", (canaries,)) < 0.5
    watched = _Canaries(clients, included, config.seed)
    kept = private.start(setting, None)
    assert kept is not None
    _train(setting, kept, watched)
    ledger = kept.ledger.plain()
    found = guess(
        watched.scores.numpy(), included.numpy(), setting.config.privacy.delta, confidence
    )
    return Audit(ledger["epsilon"], ledger["delta"], confidence, found)


def _with_canaries(setting: Setting, count: int) -> tuple[Setting, int]:
    """The setting with further clients, each with one row of the first client, and its terms."""
    data, config = setting.federation, setting.config
    row = int(data.ranges[0, 0, 0])
    extra = torch.full((count, *data.ranges.shape[1:]), row)
    extra[:, 0, 1] = row + 1
    names = (*(data.name(k) for k in range(len(data))), *(f"canary {k}" for k in range(count)))
    more: Federation = replace(
        data, ranges=torch.cat([data.ranges, extra]), names=names, clusters=None
    )
    size = config.cohort.size
    if size is not None:  # the same probability to take part
        size = max(1, round(size * (len(data) + count) / len(data)))
        cohort = config.cohort.model_copy(update={"size": size})
        config = config.model_copy(update={"cohort": cohort})
    terms = coverage.terms_of(config, setting.algorithm, setting.task, more, remote=False)
    made = replace(setting, config=config, federation=more, clean=more, privacy=terms)
    return made, len(data)


def _train(setting: Setting, kept: private.Private, watched: _Canaries) -> None:
    """All rounds that the budget allows, and the last phase."""
    config, algorithm, engine = setting.config, setting.algorithm, engine_of(setting)
    engine.reset(algorithm.init_client(setting.task, setting.params))
    server = algorithm.init_server(setting.task, setting.params, len(setting.federation))
    work = config.local
    for round in range(kept.terms.rounds + 1):
        last = round == kept.terms.rounds
        ids, empty = engine.everyone(), False
        if not last:
            ids, empty = private.cohort_of(setting, kept, round)
        made = private.release_of(setting, kept, empty=empty, kind=_Watched)
        assert isinstance(made, _Watched)
        made.canaries = watched
        cohort = engine.cohort(
            ids,
            work=work,
            round=round,
            rate=work.rate(round, config.rounds),
            wrap=(watched, finite_only, made),
            release=made,
            final=last,
        )
        with contextlib.suppress(NoReplies):
            server = algorithm.finish(server, cohort) if last else algorithm.round(server, cohort)
        kept.ledger.close_round()
