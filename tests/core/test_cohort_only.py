"""A question to some of a cohort's clients: who is asked, who counts, who is out afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from isonomy.core.cohort import Ask, Cohort, NoReplies, Replies
from isonomy.core.phase import phase
from isonomy.core.work import Work


def cohort(quiet: set[int], asked: list[list[int]]) -> Cohort:
    """Clients 2, 5, 7, 9 of sizes 10 times their number reply with it; some never answer."""

    def exchange(ask: Ask) -> Iterator[Replies]:
        asked.append(ask.ids.tolist())
        if ask.each is not None:
            assert ask.each["own"].tolist() == ask.ids.tolist()
        ids = torch.tensor([k for k in ask.ids.tolist() if k not in quiet], dtype=torch.int64)
        if len(ids):
            yield Replies({"v": ids.to(torch.float32)}, ids, 10 * ids)

    ids = torch.tensor([9, 2, 7, 5])
    return Cohort(exchange, ids, 10 * ids, work=Work(), round=3, rate=0.1, clients=12)


@phase("gather", "mean", "sum", v="statistic")
def number(task, message, client):
    raise AssertionError("never called here")


def ids(*numbers: int) -> Tensor:
    return torch.tensor(numbers)


def test_only_those_are_asked_in_the_cohorts_order() -> None:
    asked: list[list[int]] = []
    whole = cohort(set(), asked)
    some = whole.only(ids(5, 9, 11))  # 11 is not in the cohort
    got = some.gather(number, {}, each={"own": ids(9, 5)})
    assert asked == [[9, 5]]
    assert got.ids.tolist() == got.value["v"].tolist() == [9, 5]
    assert got.sizes.tolist() == [90, 50]
    assert whole.ids.tolist() == [9, 2, 7, 5]


def test_means_and_sums_are_over_them() -> None:
    whole = cohort(set(), [])
    assert float(whole.only(ids(5, 9)).mean(number, {})["v"]) == pytest.approx((25 + 81) / 14)
    weight = torch.tensor([3.0, 1.0])  # of 9 and 5
    mean = whole.only(ids(5, 9)).mean(number, {}, weight=weight)
    assert float(mean["v"]) == pytest.approx((27 + 5) / 4)
    assert float(whole.only(ids(2, 7)).sum(number, {})["v"]) == 9.0


def test_who_falls_silent_is_out_of_the_whole_cohort() -> None:
    asked: list[list[int]] = []
    whole = cohort({5}, asked)
    some = whole.only(ids(5, 9))
    some.gather(number, {})
    assert some.ids.tolist() == [9]
    assert whole.ids.tolist() == [9, 2, 7]
    assert whole.sizes.tolist() == [90, 20, 70]
    assert whole.only(ids(5, 7)).ids.tolist() == [7]
    whole.gather(number, {})
    assert asked == [[9, 5], [9, 2, 7]]


def test_a_part_of_a_part() -> None:
    whole = cohort({7}, [])
    part = whole.only(ids(2, 7, 9))
    part.only(ids(7, 9)).gather(number, {})
    assert part.ids.tolist() == [9, 2]
    assert whole.ids.tolist() == [9, 2, 5]


def test_when_nobody_of_them_answers_the_rest_is_still_there() -> None:
    whole = cohort({5, 9}, [])
    with pytest.raises(NoReplies, match="round 3"):
        whole.only(ids(5, 9)).mean(number, {})
    assert whole.ids.tolist() == [2, 7]
    with pytest.raises(NoReplies, match="round 3"):
        whole.only(ids(5)).mean(number, {})  # nobody is left to ask


def test_nobody_to_ask_is_not_asked() -> None:
    asked: list[list[int]] = []
    whole = cohort(set(), asked)
    with pytest.raises(NoReplies, match="no client was left to ask"):
        whole.only(ids(1, 3)).gather(number, {})
    assert asked == []
    assert whole.ids.tolist() == [9, 2, 7, 5]
