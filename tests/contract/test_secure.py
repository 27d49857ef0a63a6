"""Every algorithm that uses only sums runs with secure aggregation, on every engine alike."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from contract.table import ENGINES, algorithms
from isonomy.algorithms import registry
from isonomy.config.schema import SecureConfig
from isonomy.contract.running import Outcome, begin, close, home, outcome, run, same_bits
from isonomy.contract.world import World
from isonomy.core.algorithm import Algorithm
from isonomy.core.capabilities import GivesVerdict
from isonomy.engines.base import Engine
from isonomy.errors import ConfigError
from isonomy.federation.flower.secure_server import SecureServer
from isonomy.privacy.secure.check import seen
from isonomy.privacy.secure.simulated import Quantised, room_of

FINE = SecureConfig(enabled=True, clip=64.0, bits=40)  # steps below what single precision has
ABLE = {label: one for label, one in algorithms().items() if seen(one) is None}
OTHERS = {label: one for label, one in algorithms().items() if seen(one) is not None}
ROUNDS = 3
SLOW = pytest.mark.slow


def rounds(algorithm: Algorithm, where: World, engine: Engine, server: Any, wrap: Any) -> Any:
    for r in range(ROUNDS):
        cohort = engine.cohort(where.ids(r), work=where.work, round=r, wrap=wrap)
        server = algorithm.round(server, cohort)
    everyone = engine.cohort(engine.everyone(), work=where.work, round=ROUNDS, wrap=wrap)
    server = algorithm.finish(server, everyone)
    if isinstance(algorithm, GivesVerdict):
        server = algorithm.examine(server, everyone)
    return server


def quantised(algorithm: Algorithm, name: str, given: SecureConfig = FINE) -> Outcome:
    """A run whose replies are quantised; on `flower` also masked."""
    where, transport = home(algorithm), ENGINES[name]
    room = room_of(where.federation.sizes())
    wrap: Any = (Quantised(given, 2, room),)
    options: dict[str, Any] = {}
    if name == "flower":
        wrap, options = (), {"secure": SecureServer(given, 2, room)}
    engine, server = begin(algorithm, transport, where, **options)
    server = rounds(algorithm, where, engine, server, wrap)
    assert not engine.take_faults()
    assert not engine.take_notes()
    return outcome(algorithm, transport, engine, server, where)


def some(*names: str) -> list[Any]:
    """All variants; of those that are not slow, the main ones of these algorithms."""
    main = set(algorithms(main=True))
    quick = {label for label, one in ABLE.items() if label in main and one.name in names}
    return [pytest.param(label, marks=() if label in quick else SLOW) for label in ABLE]


@pytest.mark.parametrize("label", some("fedavg", "fmtl", "pffl", "l2sgd"))
def test_masked_and_simulated_runs_have_the_same_bits(label: str) -> None:
    """In process, by the messages of a real federation: keys, shares, masked replies."""
    algorithm = ABLE[label]
    simulated, masked = quantised(algorithm, "loop"), quantised(algorithm, "flower")
    same_bits(masked.server, simulated.server, "server")
    same_bits(masked.states, simulated.states, "states")


@pytest.mark.parametrize("label", some("fedfb"))
def test_fine_steps_change_nothing_but_rounding(label: str) -> None:
    algorithm = ABLE[label]
    where = home(algorithm)
    plain = run(algorithm, ENGINES["batched"], where, rounds=ROUNDS, finish=True)
    found = quantised(algorithm, "batched")
    for got, want in zip(found.outputs, plain.outputs, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("label", ["fedavg", "fmtl"])
def test_coarse_steps_change_the_result(label: str) -> None:
    """Otherwise the tests above would compare nothing."""
    algorithm = next(one for name, one in ABLE.items() if name.split()[0].startswith(label))
    coarse = quantised(algorithm, "loop", SecureConfig(enabled=True, clip=2.0, bits=5))
    with pytest.raises(AssertionError):
        close(coarse.server, quantised(algorithm, "loop").server, "server")


@pytest.mark.parametrize("label", OTHERS)
def test_an_algorithm_that_sees_replies_is_refused_in_its_first_round(label: str) -> None:
    algorithm = OTHERS[label]
    where = home(algorithm)
    engine, server = begin(algorithm, ENGINES["loop"], where)
    wrap = (Quantised(FINE, 2, room_of(where.federation.sizes())),)
    with pytest.raises(ConfigError, match=r"secure = true: phase '\w+'"):
        rounds(algorithm, where, engine, server, wrap)


def test_which_algorithms_can_be_aggregated_securely() -> None:
    """The list of docs/secure-aggregation.md; fedfb, gifair and hetpfl depend on their options."""
    able = {one.name for one in ABLE.values()}
    assert seen(registry()["hetpfl"](fusion="none")) is None
    assert able | {"hetpfl"} == {
        "agnosticfair", "apfl", "equifl", "ewc", "fedavg", "fedfair", "fedfb", "fedpf", "fedprox",
        "finetune", "fmtl", "gifair", "group_fedavg", "hetpfl", "l2sgd", "l2sgd_running",
        "lft_fedavg", "local", "local_bgl", "mapper", "perfedavg", "pfedfair", "pffl", "praffl",
        "propfair", "puffle", "symmetric_kl",
    }  # fmt: skip
