"""The cohort's verbs, with literal numbers and an exchange written by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from isonomy.core.cohort import Ask, Cohort, NoReplies, Replies, _positions
from isonomy.core.phase import phase
from isonomy.core.work import Work
from isonomy.errors import IsonomyError

SIZES = {2: 10, 5: 30, 7: 60, 9: 100}
REPLY = {2: 1.0, 5: 2.0, 7: 4.0, 9: 8.0}


def chunk(ids: list[int]) -> Replies:
    """Client k replies with its number of REPLY, as a vector, and with k itself as an integer."""
    value = {
        "v": torch.tensor([[REPLY[k], -REPLY[k]] for k in ids]).reshape(-1, 2),
        "id": torch.tensor(ids, dtype=torch.int64),
    }
    sizes = torch.tensor([SIZES[k] for k in ids], dtype=torch.int64)
    return Replies(value, torch.tensor(ids, dtype=torch.int64), sizes)


class Wire:
    """An exchange that answers in given chunks and remembers what it was asked."""

    def __init__(self, *phases: list[list[int]]) -> None:
        self.phases = list(phases)
        self.asked: list[Ask] = []

    def __call__(self, ask: Ask) -> Iterator[Replies]:
        self.asked.append(ask)
        for ids in self.phases.pop(0):
            yield chunk(ids)


def cohort(wire: Wire, ids: tuple[int, ...] = (2, 5, 7, 9), **options: Any) -> Cohort:
    sizes = torch.tensor([SIZES[k] for k in ids])
    settings = {"work": Work(), "round": 3, "rate": 0.1, "clients": 12, **options}
    return Cohort(wire, torch.tensor(ids), sizes, **settings)


@phase("gather", "mean", "sum", "weigh", seen=("id",), v="statistic", id="statistic")
def counted(*_: Any) -> Any:
    raise AssertionError("the wire above does not run phases")


@phase("mean", v="statistic")
def one_part(*_: Any) -> Any:
    raise AssertionError("the wire above does not run phases")


@phase("sum", n="statistic")
def number(*_: Any) -> Any:
    raise AssertionError("the wire above does not run phases")


ALL = [[2, 5, 7, 9]]


def test_gather_puts_replies_in_the_cohorts_order() -> None:
    got = cohort(Wire([[9, 2], [7], [5]])).gather(counted, {})
    assert got.ids.tolist() == [2, 5, 7, 9]
    assert got.sizes.tolist() == [10, 30, 60, 100]
    assert got.value["id"].tolist() == [2, 5, 7, 9]
    assert got.value["v"].tolist() == [[1, -1], [2, -2], [4, -4], [8, -8]]


def test_gather_of_a_cohort_that_is_not_sorted() -> None:
    got = cohort(Wire([[9, 2], [7], [5]]), ids=(7, 2, 9, 5)).gather(counted, {})
    assert got.ids.tolist() == got.value["id"].tolist() == [7, 2, 9, 5]
    assert got.sizes.tolist() == [60, 10, 100, 30]


def test_gather_with_missing_replies() -> None:
    made = cohort(Wire([[9], [5]]))
    got = made.gather(counted, {})
    assert got.ids.tolist() == got.value["id"].tolist() == made.ids.tolist() == [5, 9]
    assert got.sizes.tolist() == made.sizes.tolist() == [30, 100]


@pytest.mark.parametrize("chunks", [ALL, [[9], [7], [5], [2]], [[5, 9], [2, 7]]])
def test_mean_by_hand(chunks: list[list[int]]) -> None:
    """By size: (10*1 + 30*2 + 60*4 + 100*8) / 200 = 5.55; equal: 15 / 4 = 3.75."""
    mean = cohort(Wire(chunks)).mean(counted, {})
    assert mean["v"].tolist() == pytest.approx([5.55, -5.55])
    assert float(mean["id"]) == pytest.approx((10 * 2 + 30 * 5 + 60 * 7 + 100 * 9) / 200)
    equal = cohort(Wire(chunks)).mean(counted, {}, weight="equal")
    assert equal["v"].tolist() == pytest.approx([3.75, -3.75])
    assert mean["v"].dtype == mean["id"].dtype == torch.float32


@pytest.mark.parametrize("chunks", [ALL, [[9], [7], [5], [2]], [[7, 5], [2, 9]]])
def test_mean_with_weights_aligned_with_ids(chunks: list[list[int]]) -> None:
    """(1*4 + 0*8 + 3*1 + 4*2) / 8, for the cohort in the order 7, 9, 2, 5."""
    weight = torch.tensor([1.0, 0.0, 3.0, 4.0])
    mean = cohort(Wire(chunks), ids=(7, 9, 2, 5)).mean(counted, {}, weight=weight)
    assert mean["v"].tolist() == pytest.approx([15 / 8, -15 / 8])


def test_mean_over_those_that_answered() -> None:
    made = cohort(Wire([[9], [2]], [[9, 2]]))
    assert made.mean(counted, {})["v"].tolist() == pytest.approx([810 / 110, -810 / 110])
    assert made.ids.tolist() == [2, 9]
    weight = torch.tensor([3.0, 1.0])  # aligned with what is left
    assert made.mean(counted, {}, weight=weight)["v"].tolist() == pytest.approx([11 / 4, -11 / 4])


def test_mean_is_exact_for_one_client() -> None:
    value = torch.tensor([[0.1, -1 / 3, 1e-30, 3e30]])

    def one(ask: Ask) -> Iterator[Replies]:
        yield Replies({"v": value}, torch.tensor([9]), torch.tensor([100]))

    made = Cohort(
        one, torch.tensor([9]), torch.tensor([97]), work=Work(), round=0, rate=0.1, clients=10
    )
    assert torch.equal(made.mean(one_part, {})["v"], value[0])


def test_mean_of_many_small_chunks_keeps_its_precision() -> None:
    """A hundred thousand replies of 0.1 add up to more than float32 can hold exactly."""
    count = 2000
    ids = torch.arange(count)

    def many(ask: Ask) -> Iterator[Replies]:
        for k in range(count):
            yield Replies({"v": torch.tensor([0.1])}, ids[k : k + 1], torch.ones(1))

    made = Cohort(
        many, ids, torch.full((count,), 12345), work=Work(), round=0, rate=0.1, clients=count
    )
    assert float(made.mean(one_part, {})["v"]) == pytest.approx(0.1, rel=1e-7)


def test_weights_of_no_weight() -> None:
    with pytest.raises(NoReplies, match="round 3"):
        cohort(Wire(ALL)).mean(counted, {}, weight=torch.zeros(4))


def test_sum_by_hand() -> None:
    total = cohort(Wire([[9, 5], [7], [2]])).sum(counted, {})
    assert total["v"].tolist() == [15.0, -15.0]
    assert float(total["id"]) == 23.0
    assert total["v"].dtype == torch.float64
    assert cohort(Wire([[5]])).sum(counted, {})["v"].tolist() == [2.0, -2.0]


def test_large_integers_add_up_exactly() -> None:
    big = 2**40 + 1

    def two(ask: Ask) -> Iterator[Replies]:
        yield Replies({"n": torch.tensor([big, big])}, torch.tensor([2, 5]), torch.ones(2))

    made = Cohort(two, torch.tensor([2, 5]), torch.ones(2), work=Work(), round=0, rate=1, clients=9)
    assert float(made.sum(number, {})["n"]) == 2 * big


@pytest.mark.parametrize("verb", ["gather", "mean", "sum"])
@pytest.mark.parametrize("chunks", [[], [[]], [[], []]])
def test_nobody_answers(verb: str, chunks: list[list[int]]) -> None:
    made = cohort(Wire(chunks))
    with pytest.raises(NoReplies, match="round 3: no client answered"):
        getattr(made, verb)(counted, {})
    assert made.ids.tolist() == [2, 5, 7, 9]
    assert issubclass(NoReplies, IsonomyError)


@pytest.mark.parametrize("verb", ["gather", "mean", "sum"])
def test_later_phases_go_to_those_that_answered(verb: str) -> None:
    wire = Wire([[5], [9, 2]], [[9, 5]], [[5]])
    made = cohort(wire)
    for _ in range(3):
        getattr(made, verb)(counted, {})
    assert [ask.ids.tolist() for ask in wire.asked] == [[2, 5, 7, 9], [2, 5, 9], [5, 9]]
    assert made.ids.tolist() == [5]
    assert made.sizes.tolist() == [30]


def test_a_question_carries_the_round() -> None:
    wire = Wire(ALL, ALL)
    made = cohort(wire, rate=0.25, work=Work(batch=3))
    made.gather(counted, {"a": torch.ones(1)})
    made.gather(counted, {}, work=Work(batch=5))
    first, second = wire.asked
    assert (first.round, first.rate, first.work.batch, first.each) == (3, 0.25, 3, None)
    assert first.phase is counted
    assert first.message["a"].tolist() == [1.0]
    assert second.work.batch == 5


def test_each_follows_its_client() -> None:
    each = {"share": torch.tensor([0.2, 0.5, 0.7, 0.9]), "pair": (torch.arange(8).reshape(4, 2),)}
    ask = Ask(counted, {}, Work(), 0, 0.1, torch.tensor([2, 5, 7, 9]), each)
    fewer = ask.to(torch.tensor([9, 5]))
    assert fewer.ids.tolist() == [9, 5]
    assert fewer.each is not None
    assert fewer.each["share"].tolist() == pytest.approx([0.9, 0.5])
    assert fewer.each["pair"][0].tolist() == [[6, 7], [2, 3]]
    assert ask.to(torch.tensor([7])).to(torch.tensor([7])).each["share"].tolist() == pytest.approx(
        [0.7]
    )


@pytest.mark.parametrize("wanted", [[7, 2], [2, 5, 7, 9], [], [9, 9]])
def test_positions(wanted: list[int]) -> None:
    ids = torch.tensor([7, 2, 9, 5])
    at: Tensor = _positions(ids, torch.tensor(wanted, dtype=torch.int64))
    assert ids[at].tolist() == wanted


# --- weigh ----------------------------------------------------------------------------------------


def by_log_of_id(seen: Any) -> Tensor:
    return seen["id"].double().log()


@pytest.mark.parametrize("chunks", [ALL, [[9], [7], [5], [2]], [[7, 5], [2, 9]]])
def test_weigh_by_hand(chunks: list[list[int]]) -> None:
    """Equal weights times exp(log id): (2*1 + 5*2 + 7*4 + 9*8) / 23 = 112 / 23."""
    got = cohort(Wire(chunks)).weigh(
        counted, {}, seen=("id",), tilt={"v": by_log_of_id}, weight="equal"
    )
    assert got.mean["v"].tolist() == pytest.approx([112 / 23, -112 / 23])
    assert set(got.mean) == {"v"}
    assert got.seen.value["id"].tolist() == got.seen.ids.tolist() == [2, 5, 7, 9]
    assert got.seen.sizes.tolist() == [10, 30, 60, 100]
    assert got.total == 4.0


def test_weigh_multiplies_the_weights() -> None:
    """Sizes times id: (10*2*1 + 30*5*2 + 60*7*4 + 100*9*8) / (20 + 150 + 420 + 900)."""
    got = cohort(Wire([[9, 5], [2, 7]])).weigh(counted, {}, seen=("id",), tilt={"v": by_log_of_id})
    assert got.mean["v"].tolist() == pytest.approx([9200 / 1490, -9200 / 1490])


@pytest.mark.parametrize("weight", ["size", "equal"])
@pytest.mark.parametrize("chunks", [ALL, [[9, 2], [7], [5]]])
def test_weigh_without_tilt_is_mean_to_the_bit(chunks: list[list[int]], weight: Any) -> None:
    expected = cohort(Wire(chunks)).mean(counted, {}, weight=weight)
    zero = {"v": lambda seen: 0.0 * seen["id"].double()}
    for tilt in (None, {}, zero):
        got = cohort(Wire(chunks)).weigh(counted, {}, seen=("id",), tilt=tilt, weight=weight)
        assert torch.equal(got.mean["v"], expected["v"])


@pytest.mark.parametrize("chunks", [ALL, [[9], [7], [5], [2]], [[2], [5], [7], [9]]])
@pytest.mark.parametrize("factor", [1e5, -1e5])
def test_weigh_with_scores_of_any_size(chunks: list[list[int]], factor: float) -> None:
    tilt = {"v": lambda seen: factor * seen["id"].double()}
    got = cohort(Wire(chunks)).weigh(counted, {}, seen=("id",), tilt=tilt, weight="equal")
    best = REPLY[9 if factor > 0 else 2]
    assert got.mean["v"].tolist() == [best, -best]


def test_weigh_leaves_out_who_has_no_weight_however_large_its_score() -> None:
    tilt = {"v": lambda seen: 1000.0 * seen["id"].double()}
    weight = torch.tensor([1.0, 1.0, 0.0, 0.0])
    got = cohort(Wire([[9], [7, 5], [2]])).weigh(
        counted, {}, seen=("id",), tilt=tilt, weight=weight
    )
    assert got.mean["v"].tolist() == [2.0, -2.0]
    got = cohort(Wire([[9, 7]])).weigh(counted, {}, seen=("id",), tilt=tilt, weight=weight)
    assert got.mean["v"].tolist() == [0.0, 0.0]
    assert got.total == 0.0


def test_weigh_shows_the_tilt_only_what_is_seen() -> None:
    def spying(seen: Any) -> Tensor:
        return seen["v"][:, 0]

    with pytest.raises(KeyError):
        cohort(Wire(ALL)).weigh(counted, {}, seen=("id",), tilt={"v": spying})


def test_weigh_goes_by_those_that_answered() -> None:
    made = cohort(Wire([[9], [5]], []))
    got = made.weigh(counted, {}, seen=("id",), tilt={"v": by_log_of_id}, weight="equal")
    assert got.mean["v"].tolist() == pytest.approx([82 / 14, -82 / 14])
    assert made.ids.tolist() == got.seen.ids.tolist() == [5, 9]
    with pytest.raises(NoReplies):
        made.weigh(counted, {}, seen=("id",))


def test_a_round_records_numbers_words_and_a_number_per_client() -> None:
    """What a part of the cohort records belongs to the round, aligned with the part's own ids."""
    all_clients = cohort(Wire(ALL, [[7], [2]]))
    all_clients.gather(counted, {})
    all_clients.record(angle=torch.tensor(12.5), branch="model", ratio=float("inf"))
    part = all_clients.only(torch.tensor([2, 7, 9]))
    part.gather(counted, {})  # client 9 does not answer
    part.record(weights=torch.tensor([0.25, 0.75]))
    weights = {"2": 0.25, "7": 0.75}
    expected = {"angle": 12.5, "branch": "model", "ratio": None, "weights": weights}
    assert all_clients.recorded == part.recorded == expected
    with pytest.raises(ValueError, match=r"shape \(4,\), but the cohort has 3 clients"):
        all_clients.record(weights=torch.zeros(4))
