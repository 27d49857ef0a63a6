"""Differential privacy in a run: the ledger, the key of the noise, and the release of a round."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isonomy.core.cohort import Ask, ClientSide, Exchange, Replies, ServerSide
from isonomy.core.phase import declared
from isonomy.engines.base import Engine, sample
from isonomy.privacy.evaluation import Counting
from isonomy.privacy.example_ledger import ExampleLedger
from isonomy.privacy.examples import PrivateExamples
from isonomy.privacy.guard import guard
from isonomy.privacy.ledger import Ledger, Terms
from isonomy.privacy.noise import Key
from isonomy.privacy.release import ClientRelease
from isonomy.privacy.shares import ShareRelease, shares_of
from isonomy.runs import preparation
from isonomy.runs.build import Setting
from isonomy.runs.coverage import left_out, not_covered
from isonomy.runs.folder import RunFolder


@dataclass
class Private:
    """What a private run keeps beside its model."""

    ledger: Ledger | ExampleLedger
    key: Key

    @property
    def terms(self) -> Terms:
        """What the run promises."""
        return self.ledger.terms


def start(
    setting: Setting, place: RunFolder | None, engine: Engine | None = None
) -> Private | None:
    """The ledger and the key of a run; None without differential privacy.

    The key is stored in the folder when the run begins, so that a resumed run draws the same noise.
    Several processes of a run use the key of the one that has the folder.
    """
    terms, seed = setting.privacy, setting.config.privacy.seed
    if terms is None:
        return None
    if seed is not None:
        key = Key.of_seed(seed)
    elif place is None:
        key = Key.fresh()
    else:
        key = Key.read(place.noise_key(Key.fresh().text))
    if engine is not None:
        key = Key.read(engine.everywhere(key.text)[0])
    ledger: Ledger | ExampleLedger = Ledger(terms)
    if terms.level == "example":
        batches, sizes = setting.config.privacy.batches, setting.federation.sizes()
        ledger = ExampleLedger(terms, sizes, calls=terms.calls, batches=batches, still=terms.still)
    for entry in preparation.releases(setting.config):
        ledger.charge_everyone("train", float(entry["multiplier"]), entry)
    return Private(ledger, key)


def cohort_of(setting: Setting, private: Private | None, round: int) -> tuple[Tensor, bool]:
    """The clients of a round, and whether they only stand in for a cohort of nobody.

    The draw of a secret cohort follows from the secret key. If it is empty, a client is asked for
    the shape of its reply only, so that the release is noise.
    """
    config, federation = setting.config, setting.federation
    count = config.cohort.size or len(federation)
    how, seed = config.cohort.sampling, config.seed
    if private is not None and private.terms.secret:
        seed = private.key.integer("cohort", round)
    ids = sample(federation, count, seed=seed, round=round, how=how)
    if private is not None and private.terms.secret and not len(ids):
        return torch.tensor([0]), True
    return ids, False


def release_of(
    setting: Setting,
    private: Private | None,
    *,
    empty: bool,
    kind: type[ClientRelease] = ClientRelease,
) -> ClientRelease | ShareRelease | None:
    """What clips and noises the replies of a round, at level 'client', or counts on clients to."""
    if private is None or not isinstance(private.ledger, Ledger):
        return None
    given = setting.config.privacy
    shares = shares_of(setting.config, len(setting.federation), private.terms.multiplier)
    if shares is not None:
        return ShareRelease(private.ledger, private.key, shares)
    return kind(
        private.ledger,
        private.key,
        clip=None if given.clip == "adaptive" else given.clip,
        bounds=given.bounds,
        sizes=setting.federation.sizes(),
        largest=given.largest,
        empty=empty,
    )


def example_side(
    setting: Setting, private: Private | None
) -> tuple[tuple[ServerSide, ...], tuple[ClientSide, ...]]:
    """What wraps exchanges and phases at level 'example': the ledger, and private gradients."""
    if private is None or not isinstance(private.ledger, ExampleLedger):
        return (), ()
    given, ledger = setting.config.privacy, private.ledger

    def charged(exchange: Exchange) -> Exchange:
        def wrapped(ask: Ask) -> Iterator[Replies]:
            ledger.charge(ask)
            yield from exchange(ask)

        return wrapped

    if setting.remote:  # participants train privately by themselves, with keys of their own
        return (charged,), ()
    assert given.clip != "adaptive"  # refused before
    side = PrivateExamples(
        private.key,
        clip=given.clip,
        noise=private.terms.multiplier,
        batches=given.batches,
    )
    return (charged,), (side,)


def public_line(line: dict[str, Any], private: Private | None) -> dict[str, Any]:
    """A round's line without what would tell who, or how many, were in a secret cohort."""
    if private is None or not private.terms.secret:
        return line
    expected, asked = private.terms.rate * private.terms.clients, max(line["cohort"], 1)
    out = {k: v for k, v in line.items() if k not in ("rejected", "attacked")}
    for name in ("cohort", "answered", "bytes_down", "bytes_up", "messages"):
        each = line[name] / asked if name not in ("cohort", "answered") else 1.0
        out[name] = math.ceil(each * expected)
    return out


def ledger_of(setting: Setting, private: Private) -> dict[str, Any]:
    """The content of privacy.json."""
    config, algorithm = setting.config, setting.algorithm
    plain = private.ledger.plain()
    releases = plain.pop("releases")
    ended = private.terms.rounds < config.rounds
    status = f"ended by the budget after {private.terms.rounds} of {config.rounds} rounds"
    return {
        "status": status if ended else "within the budget",
        **plain,
        "not_covered": not_covered(config, algorithm, setting.clean),
        "left_out": left_out(config, algorithm),
        "stays_with_clients": (
            "each client's own state (its personal model): it is in the folder of a simulation, "
            "and must be given to nobody else"
            if _has_state(setting)
            else ""
        ),
        "releases": releases,
    }


def _has_state(setting: Setting) -> bool:
    from isonomy.core import tree

    return bool(tree.leaves(setting.algorithm.init_client(setting.task, setting.params)))


def guard_of(setting: Setting, private: Private | None) -> ServerSide | None:
    """What lets no question to clients pass that is not in the ledger; None without privacy."""
    if private is None:
        return None
    measured = {"evaluation", "validation", "excess", "verdict"} & set(setting.config.privacy.allow)
    phases = {one.name for one in declared(type(setting.algorithm)).values()}

    def exempt(ask: Ask) -> bool:
        """Whether the config allows what is asked without noise."""
        if ask.declared.name in phases:
            return "verdict" in measured and ask.final
        return bool(measured)

    return guard(private.ledger, exempt)


def counting_of(setting: Setting, multiplier: float) -> Counting:
    """How this run's counts of predictions are noised."""
    levels = tuple(len(a.levels) for a in setting.federation.attributes)
    options = setting.config.privacy
    assert options.level != "none"
    return Counting(options.level, levels, multiplier, options.counted)


def allowed(setting: Setting, name: str) -> bool:
    """Whether something may be measured without noise."""
    return setting.privacy is None or name in setting.config.privacy.allow


def allowed_rounds(setting: Setting) -> int:
    """The rounds of the config, or as many of them as the budget allows."""
    rounds = setting.config.rounds
    return rounds if setting.privacy is None else min(rounds, setting.privacy.rounds)


def note(setting: Setting, private: Private | None) -> list[str]:
    """Sentences about privacy, for every output."""
    if private is None:
        return []
    found = ledger_of(setting, private)
    spent = "no finite epsilon" if found["epsilon"] is None else f"epsilon = {found['epsilon']:g}"
    out = [
        f"Differential privacy of {found['level']}s: {spent} at delta = {found['delta']:g}, for "
        f"{found['neighbours']}."
    ]
    if found["status"] != "within the budget":
        out.append(
            f"Training {found['status']} (privacy.epsilon = {private.terms.budget:g}, "
            f"privacy.noise = {private.terms.multiplier:g})."
        )
    out += [f"Not covered by differential privacy: {t}." for t in found["not_covered"].values()]
    if private.terms.evaluation:
        counting = counting_of(setting, private.terms.evaluation)
        whose = "all clients together" if counting.level == "client" else "each client"
        out.append(
            "Metrics are computed from counts with noise, and have no intervals: the noise in the "
            f"number of examples of a group, label and prediction of {whose} has the standard "
            f"deviation {counting.deviation:.3g}."
        )
    if found["left_out"]:
        out.append(f"Not measured, because it has no noise: {', '.join(found['left_out'])}.")
    return out
