"""Rules: chances and decisions by hand, draws, expected counts, and the same after a round trip."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from histograms import drawn, histogram
from torch.func import vmap

from isonomy.core.task import Task
from isonomy.errors import ConfigError, DataError
from isonomy.postprocess import fit, read_rule
from isonomy.postprocess.rule import About, Gains, Mixing, Rule, Thresholds, draws

ABOUT = About("thresholds", "sex", 0, ("F", "M"), 2, "dp", 0.05)
LOGISTIC = Task(lambda: torch.nn.Linear(1, 1), "logistic")


def logit(scores: list[float]) -> torch.Tensor:
    return torch.tensor(scores, dtype=torch.float64).logit().unsqueeze(-1)


def real(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


THRESHOLDS = Thresholds(
    ABOUT,
    {
        "edge": torch.tensor([[[500, 1000], [300, 700]]]),
        "weight": real([[[1.0, 0.0], [0.25, 0.75]]]),
    },
)
MIXING = Mixing(ABOUT, {"keep": real([[1.0, 0.5]]), "give": real([[[0, 0], [0.1, 0.4]]])})
# group M: class 1 gains 2 for a label 1, so it is chosen from 2p > 1 - p, a third
GAINS = Gains(
    ABOUT,
    {
        "gain": real([[[[1, 0], [0, 1]], [[1, 0], [0, 2]]]]),
        "sharpness": real([1000.0]),
    },
)


def test_chances_are_those_of_the_definitions() -> None:
    outputs, level = logit([0.4, 0.6, 0.2, 0.4, 0.8]), torch.tensor([0, 0, 1, 1, 1])

    def yes(rule: Rule) -> list[float]:
        chances = rule.chances(rule.row(), LOGISTIC, outputs, level)
        torch.testing.assert_close(chances.sum(-1), torch.ones(5, dtype=torch.float64))
        return [round(v, 6) for v in chances[:, 1].tolist()]

    assert yes(THRESHOLDS) == [0, 1, 0, 0.25, 1]
    assert yes(MIXING) == [0, 1, 0.4, 0.4, 0.9]
    assert yes(GAINS) == [0, 1, 0, 1, 1]


@pytest.mark.parametrize("rule", [THRESHOLDS, MIXING, GAINS])
def test_expected_counts_are_the_chances_of_the_bins(rule: Rule) -> None:
    at = [0.1, 0.35, 0.45, 0.65, 0.9]
    scores = histogram([{a: [(s, i % 2) for i, s in enumerate(at)] for a in (0, 1)}])
    middle = logit([s + 0.0005 for s in at])
    found = rule.counts(scores)
    assert found.shape == (1, 3, 2, 2)
    np.testing.assert_allclose(found[:, 0], found[:, 1:].sum(1))
    for a in (0, 1):
        level = torch.full((5,), a)
        chances = rule.chances(rule.row(), LOGISTIC, middle, level)[:, 1].numpy()
        np.testing.assert_allclose(found[0, 1 + a, 0, 1], chances[0::2].sum(), atol=1e-12)
        np.testing.assert_allclose(found[0, 1 + a, 1, 1], chances[1::2].sum(), atol=1e-12)


def test_an_unknown_group_is_decided_by_the_model_alone() -> None:
    x, outputs = torch.randn(2, 3), logit([0.45, 0.55])
    unknown = torch.tensor([-1, 7])
    decided = MIXING.decide(MIXING.row(), LOGISTIC, outputs, x, unknown)
    assert decided.tolist() == [0, 1]
    scores = histogram([{0: [(0.45, 1), (0.55, 1)], 1: []}])
    counts = scores.counts.copy()
    counts[:, 1:] = 0  # nobody's group is known
    found = MIXING.counts(type(scores)(counts, scores.attributes))
    assert found[0, 0].tolist() == [[0, 0], [1, 1]]


def test_a_draw_depends_on_the_row_and_the_seed_only() -> None:
    x = torch.randn(4, 3)
    same = torch.stack([x[2], x[0], torch.zeros(3), -torch.zeros(3)])
    first, second = draws(x, 5), draws(same, 5)
    assert first[2] == second[0]
    assert first[0] == second[1]
    assert second[2] == second[3]  # 0 and -0 are the same number
    assert draws(x, 6)[0] != first[0]
    swapped = x[:, [1, 0, 2]]
    assert draws(swapped, 5)[0] != first[0]


def test_draws_are_uniform_and_independent() -> None:
    """Rows that differ little: the mean, the variance and the correlation of neighbours."""
    x = torch.stack([torch.arange(40_000.0) / 7, torch.ones(40_000)], 1)
    u = draws(x, 0).numpy()
    assert abs(u.mean() - 0.5) < 4 * (1 / 12 / len(u)) ** 0.5
    assert abs(u.var() - 1 / 12) < 0.002
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 4 / len(u) ** 0.5


def test_decisions_have_the_stated_chances() -> None:
    x, level = torch.randn(20_000, 2), torch.ones(20_000, dtype=torch.int64)
    outputs = logit([0.4]).expand(20_000, 1)
    for rule, chance in ((THRESHOLDS, 0.25), (MIXING, 0.4)):
        share = rule.decide(rule.row(), LOGISTIC, outputs, x, level).double().mean()
        assert abs(float(share) - chance) < 4 * (chance * (1 - chance) / 20_000) ** 0.5


@pytest.mark.parametrize("name", ["logofair", "fedfact", "fair_lp", "thresholds"])
def test_a_rule_decides_alike_alone_batched_and_read_again(name: str) -> None:
    scores = drawn(0, [(300, 200), (100, 400)])
    rule = fit(name, scores, budget=0.02, notion="dp")
    again = read_rule(json.loads(json.dumps(rule.plain())))
    assert again.about == rule.about
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 50, 3, generator=generator)
    outputs = torch.randn(2, 50, 1, generator=generator, dtype=torch.float64)
    level = (x[..., 0] > 0).long()

    def of(own: dict[str, torch.Tensor], o: torch.Tensor, v: torch.Tensor, g: torch.Tensor):
        return rule.decide(own, LOGISTIC, o, v, g)

    together = vmap(of)(rule.stacked(2), outputs, x, level)
    for k in range(2):
        for one in (rule, again, again.only(k)):
            own = one.row(k)
            alone = one.decide(own, LOGISTIC, outputs[k], x[k], level[k])
            assert alone.tolist() == together[k].tolist()


def test_a_rule_of_other_clients_is_refused() -> None:
    rule = fit("logofair", drawn(0, [(300, 200), (100, 400)]))
    other = drawn(1, [(30, 20)])
    with pytest.raises(DataError, match="a rule of 2 clients and histograms of 1"):
        rule.counts(other)
    assert rule.only().counts(other).shape == (1, 3, 2, 2)  # that of a new client


def test_unknown_names_are_refused() -> None:
    scores = drawn(0, [(30, 20)])
    with pytest.raises(ConfigError, match="unknown post-processing method 'logofare'"):
        fit("logofare", scores)
    with pytest.raises(ConfigError, match=r"postprocess\.budgett"):
        fit("logofair", scores, budgett=0.1)
    with pytest.raises(ConfigError, match=r"postprocess\.budget = 2.0 is not allowed"):
        fit("logofair", scores, budget=2.0)
    with pytest.raises(ConfigError, match="unknown protected attribute 'race'"):
        fit("logofair", scores, attribute="race")
    with pytest.raises(ConfigError, match="no protected attribute"):
        fit("thresholds", type(scores)(scores.counts[:, :1]))
