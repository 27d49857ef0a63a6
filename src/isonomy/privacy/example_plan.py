"""The terms of example-level privacy: the noise, and whether a method can train with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch

from isonomy.config.privacy import PrivacyConfig
from isonomy.core import tree
from isonomy.core.algorithm import Algorithm
from isonomy.core.cohort import Ask, Exchange, NoReplies, Replies
from isonomy.core.task import Task
from isonomy.core.work import Work
from isonomy.data.federation import Federation
from isonomy.engines.loop import Loop
from isonomy.errors import ConfigError
from isonomy.privacy import examples
from isonomy.privacy.accounting import Event, epsilon
from isonomy.privacy.example_ledger import training_events
from isonomy.privacy.examples import PrivateExamples
from isonomy.privacy.ledger import Terms
from isonomy.privacy.noise import Key
from isonomy.privacy.plan import Other, Sampled, noise_and_rounds
from isonomy.privacy.rehearsal import CLIENTS, random_federation


@dataclass
class Training:
    """How often a method trains in a round and after the last, and gradients per batch."""

    rounds: int = 0
    final: int = 0
    calls: int = 1
    still: set[str] = field(default_factory=set)  # phases that use no gradient


class _Watch:
    """Counts the exchanges that use gradients, and refuses replies that need the examples."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.trainings = 0
        self.calls = 0
        self.used: set[str] = set()
        self.seen: set[str] = set()

    def __call__(self, exchange: Exchange) -> Exchange:
        def wrapped(ask: Ask) -> Iterator[Replies]:
            phase = ask.declared.name
            self.seen.add(phase)
            examples.most_calls(reset=True)
            try:
                with examples.counted_peeks() as peeks:
                    chunks = list(exchange(ask))
            except (RuntimeError, IndexError, ValueError):  # labels are not labels
                raise ConfigError(self._refusal(phase, "the reply")) from None
            calls = examples.most_calls()
            self.calls = max(self.calls, calls)
            if calls:
                self.trainings += 1
                self.used.add(phase)
            for chunk in chunks:
                wrong = [name for name, part in chunk.value.items() if not tree.finite(part)]
                if wrong:
                    raise ConfigError(self._refusal(phase, f"'{wrong[0]}'"))
            if peeks[0]:
                raise ConfigError(self._refusal(phase, "the work"))
            yield from chunks

        return wrapped

    def _refusal(self, phase: str, what: str) -> str:
        return (
            f"privacy.level = 'example': {what} of phase '{phase}' of '{self.name}' needs the "
            "examples themselves, not only gradients of the loss on batches; choose another "
            "algorithm, such as fedavg, or privacy.level = 'client'."
        )


def rehearse_examples(
    algorithm: Algorithm, task: Task, like: Federation, work: Work, batches: examples.Batches
) -> Training:
    """Run two rounds on random data; raises ConfigError if a reply needs the examples."""
    out = Training()
    engine = Loop(task, random_federation(like))
    work = replace(work, epochs=1, steps=min(work.steps or 2, 2), batch=min(work.batch, 8))
    side = PrivateExamples(Key.of_seed(0), clip=1.0, noise=1.0, batches=batches)
    params = task.init(0)
    engine.reset(algorithm.init_client(task, params))
    server = algorithm.init_server(task, params, CLIENTS)
    used: set[str] = set()
    for round in range(3):
        seen = _Watch(algorithm.name)
        cohort = engine.cohort(
            engine.everyone(),
            work=work,
            round=round,
            wrap=(seen,),
            around=(side,),
            final=round == 2,
        )
        try:
            if round == 2:
                algorithm.finish(server, cohort)
            else:
                server = algorithm.round(server, cohort)
        except NoReplies:
            pass
        if not tree.finite(engine.states.stacked):
            raise ConfigError(
                f"privacy.level = 'example': the clients' states of '{algorithm.name}' need the "
                "examples themselves, not only gradients of the loss on batches; choose another "
                "algorithm, such as fedavg."
            )
        out.calls = max(out.calls, seen.calls)
        if round == 2:
            out.final = seen.trainings
        else:
            out.rounds = max(out.rounds, seen.trainings)
        out.still |= seen.seen
        used |= seen.used
    out.still -= used
    return out


def example_terms(
    options: PrivacyConfig,
    training: Training,
    federation: Federation,
    work: Work,
    *,
    rounds: int,
    sampled: Sampled,
    other: Other | None = None,
) -> Terms:
    """The terms: noise for the client whose examples would have the largest epsilon.

    `other` is what is released beside training.
    """
    other = other or Other()
    if options.clip == "adaptive":
        raise ConfigError(
            "privacy.clip = 'adaptive' is for level 'client'; at level 'example' give the largest "
            "norm of one example's gradient, e.g. privacy.clip = 1.0."
        )
    if options.weights == "size":
        raise ConfigError(
            "privacy.weights and privacy.largest are for level 'client'; at level 'example' sizes "
            "are public: remove them."
        )
    asked = torch.zeros(len(federation), dtype=torch.int64)
    counts = [asked.clone()]
    for round in range(rounds):
        asked[sampled(round)] += 1
        counts.append(asked.clone())
    sizes = federation.sizes()

    def of_client(z: float, k: int, done: int) -> Mapping[Event, int]:
        times = int(counts[done][k]) * training.rounds + training.final
        one = training_events(work, int(sizes[k]), z / training.calls**0.5, options.batches)
        found = Counter({event: n * times for event, n in one.items()})
        found.update(Event(multiplier) for multiplier in (*other.prepared, *other.evaluations))
        return found

    kinds = {(int(sizes[k]), int(counts[-1][k])): k for k in range(len(federation))}

    def proxy(k: int) -> float:
        whole = {replace(e, limit=0, population=0): n for e, n in of_client(1.0, k, rounds).items()}
        return sum(n * e.rate**2 for e, n in whole.items())

    worst = sorted(kinds.values(), key=proxy)[-1]
    noise, allowed = noise_and_rounds(
        options, lambda z, done: of_client(z, worst, done), rounds, other.reserved
    )
    near = sorted(kinds.values(), key=proxy)[-3:-1]
    while options.epsilon is not None and any(
        epsilon(of_client(noise, k, allowed), options.delta - other.reserved, options.accountant)
        > options.epsilon * (1 + 1e-9)
        for k in near
    ):
        noise *= 1.002
    return Terms(
        level="example",
        delta=options.delta,
        budget=options.epsilon,
        multiplier=noise,
        rate=1.0,
        clients=len(federation),
        rounds=allowed,
        releases=training.rounds,
        final=training.final,
        accountant=options.accountant,
        calls=training.calls,
        still=frozenset(training.still),
        reserved=other.reserved,
        evaluation=other.evaluation,
    )
