"""Replies that are not finite or wrongly shaped never get through; who sent them is named."""

from __future__ import annotations

import math

import pytest
import torch

from isonomy.core import tree
from isonomy.core.cohort import Ask, Replies
from isonomy.core.work import Work
from isonomy.robust.screen import NOT_FINITE, WRONG_SHAPE, Screen, fault

ASK = Ask(lambda *_: ({}, ()), {}, Work(), 0, 0.1, torch.arange(5))


def reply(k: int, wrong=None):
    out = {"params": {"w": torch.full((3,), float(k)), "b": torch.tensor(float(k))}}
    out["loss"] = torch.tensor(float(k))
    return wrong(out) if wrong else out


def nan(out):
    out["params"]["w"][1] = math.nan
    return out


def infinite(out):
    return {**out, "loss": torch.tensor(math.inf)}


def longer(out):
    out["params"]["w"] = torch.zeros(4)
    return out


def other_type(out):
    out["params"]["w"] = out["params"]["w"].double()
    return out


def missing(out):
    del out["loss"]
    return out


def screened(values, *, together=False, trusted=None, ids=None):
    """The ids that come through and who is rejected."""
    ids = list(range(len(values))) if ids is None else ids
    screen = Screen()

    def exchange(_):
        if together:
            yield Replies(tree.stack(values), torch.tensor(ids), torch.ones(len(ids)))
            return
        for k, value in zip(ids, values, strict=True):
            yield Replies(
                tree.tmap(lambda t: t.unsqueeze(0), value), torch.tensor([k]), torch.ones(1)
            )

    if trusted is not None:

        def honest(_):
            yield Replies(
                tree.tmap(lambda t: t.unsqueeze(0), trusted), torch.tensor([0]), torch.ones(1)
            )

        def attacked(ask):
            list(screen.learn(honest)(ask))
            yield from exchange(ask)

        got = list(screen(attacked)(ASK))
    else:
        got = list(screen(exchange)(ASK))
    for chunk in got:
        assert tree.finite(chunk.value)
        assert all(len(t) == len(chunk.ids) for t in tree.leaves(chunk.value))
        assert chunk.value["loss"].tolist() == chunk.ids.tolist()
    return sorted(k for c in got for k in c.ids.tolist()), screen.rejected


@pytest.mark.parametrize("wrong", [nan, infinite])
@pytest.mark.parametrize("together", [True, False])
def test_not_finite(wrong, together):
    values = [reply(k, wrong if k in (0, 3) else None) for k in range(5)]
    assert screened(values, together=together) == ([1, 2, 4], {0: NOT_FINITE, 3: NOT_FINITE})


@pytest.mark.parametrize("wrong", [longer, other_type, missing])
def test_wrong_shape(wrong):
    """Also where the first replies are the wrong ones: the majority tells."""
    values = [reply(k, wrong if k in (0, 1) else None) for k in range(5)]
    expected = ([2, 3, 4], {0: WRONG_SHAPE, 1: WRONG_SHAPE})
    assert screened(values) == expected
    assert screened(values, trusted=reply(0)) == expected


def test_a_majority_of_wrong_ones_cannot_outvote_an_engine_that_knows():
    values = [reply(k, longer if k < 4 else None) for k in range(5)]
    assert screened(values, trusted=reply(0))[0] == [4]


def test_without_a_majority_the_most_frequent_counts():
    kinds = [longer, None, other_type, None, missing]
    assert screened([reply(k, wrong) for k, wrong in enumerate(kinds)])[0] == [1, 3]
    values = [reply(1, longer), reply(2), reply(3, longer), reply(0)]
    assert screened(values, ids=[1, 2, 3, 0])[0] == [0, 2]  # a tie: that of the lowest client


def test_large_numbers_are_no_fault():
    """Their sum overflows, they do not."""
    big = [reply(k) for k in range(5)]
    for value in big:
        value["params"]["w"][:] = 3e38
    assert screened(big) == ([0, 1, 2, 3, 4], {})
    assert screened(big, together=True) == ([0, 1, 2, 3, 4], {})


def test_nobody_sound():
    assert screened([reply(k, nan) for k in range(5)])[0] == []
    assert screened([])[0] == []


@pytest.mark.parametrize(
    ("sent", "wrong"),
    [
        ({"w": torch.ones(2)}, None),
        ({"w": torch.tensor([3e38, 3e38])}, None),
        ({"w": torch.tensor([1.0, math.nan])}, "['w'] holds numbers that are not finite"),
        ({"w": torch.tensor([1.0, math.inf])}, "not finite"),
        ({"w": torch.ones(3)}, "['w'] has shape [3], not [2]"),
        ({"w": torch.ones(2).double()}, "holds float64, not float32"),
        ({"w": "much"}, "holds str, not float32"),
        ({"v": torch.ones(2)}, "other parts"),
        ({"w": torch.ones(2), "v": torch.ones(2)}, "other parts"),
        ([], "other parts"),
    ],
)
def test_what_is_wrong_with_a_single_reply(sent, wrong):
    said = fault(sent, {"w": torch.zeros(2)})
    assert said is None if wrong is None else wrong in str(said)


def test_a_stack_that_lacks_rows_is_wrong():
    values = tree.stack([reply(k) for k in range(3)])
    values["loss"] = values["loss"][:2]
    screen = Screen()
    chunk = Replies(values, torch.arange(3), torch.ones(3))
    assert list(screen(lambda _: iter([chunk]))(ASK)) == []
    assert set(screen.rejected.values()) == {WRONG_SHAPE}
