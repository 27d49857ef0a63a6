"""Objectives of a preference: what is trained, by hand; what is measured, against metrics."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from isonomy.blocks import objectives
from isonomy.blocks.objectives import Aim
from isonomy.core.examples import Attribute
from isonomy.core.notions import NOTIONS
from isonomy.core.task import Batch, Task
from isonomy.errors import ConfigError
from isonomy.metrics.front import coordinates, points

RNG = np.random.default_rng(3)
LEVELS = (2, 3)
AIMS = objectives.aims(("error", "dp", "dp.race", "eo.race"), ("sex", "race"))


def batch(n: int = 30, padding: int = 5) -> Batch:
    """Random rows; the last ones are padding with large numbers."""
    real = torch.tensor([1.0] * n + [0.0] * padding)
    groups = torch.tensor(np.stack([RNG.integers(0, k, n + padding) for k in LEVELS], 1))
    x = torch.tensor(RNG.normal(size=(n + padding, 4)), dtype=torch.float32)
    x = torch.where(real.unsqueeze(-1) > 0, x, 1e4)
    return Batch(x, torch.tensor(RNG.integers(0, 2, n + padding)), groups, real)


def test_losses_by_hand() -> None:
    """In numpy: the cross-entropy, and mean ((a - mean a) (o - mean o))^2 summed over outputs."""
    at = batch()
    out = torch.tensor(RNG.normal(size=(35, 2)), dtype=torch.float32)
    made = objectives.examples(at.x, at, AIMS, LEVELS, "one-hot")
    widths = [objectives.columns(aim, LEVELS, "one-hot") for aim in AIMS[1:]]
    assert widths == [1, 3, 3]
    got = {how: objectives.losses(out, made, widths, how) for how in ("squared", "covariance")}  # type: ignore[arg-type]
    o, y, g = out.numpy()[:30], at.y.numpy()[:30], at.groups.numpy()[:30]
    p = np.exp(o) / np.exp(o).sum(1, keepdims=True)
    error = -np.log(p[np.arange(30), y]).mean()

    def unfair(columns: list[np.ndarray], keep: np.ndarray, how: str) -> float:
        total, value = 0.0, o if how == "squared" else p
        for a in columns:
            a, v = a[keep].astype(float), value[keep]
            product = (a - a.mean())[:, None] * (v - v.mean(0))
            total += (
                (product**2).mean(0).sum() if how == "squared" else abs(product.mean(0)).sum() / 2
            )
        return total

    everyone, positive = np.ones(30, bool), y == 1
    race = [g[:, 1] == k for k in range(3)]
    for how, found in got.items():
        expected = [error, unfair([g[:, 0]], everyone, how), unfair(race, everyone, how)]
        expected.append(unfair(race, positive, how))
        assert found.numpy() == pytest.approx(expected, rel=1e-4), how


def test_gap_by_hand() -> None:
    """In numpy: the largest distance of a group's mean of steep probabilities to everyone's."""
    at = batch()
    out = torch.tensor(RNG.normal(size=(2, 35, 2)), dtype=torch.float32)
    made = objectives.examples(at.x, at, AIMS, LEVELS, "one-hot")
    widths = [objectives.columns(aim, LEVELS, "one-hot") for aim in AIMS[1:]]
    got = objectives.losses(out, made, widths, "gap")
    y, g = at.y.numpy()[:30], at.groups.numpy()[:30]
    for found, o in zip(got.numpy(), out.numpy()[:, :30].astype(float), strict=True):
        s = 1 / (1 + np.exp(-objectives.SHARP * (o[:, 1] - o[:, 0])))

        def gap(group: np.ndarray, keep: np.ndarray, s: np.ndarray = s) -> float:
            whole = s[keep].mean()
            return max(abs(s[keep & (group == k)].mean() - whole) for k in set(group[keep]))

        everyone, positive = np.ones(30, bool), y == 1
        expected = [gap(g[:, 0], everyone), gap(g[:, 1], everyone), gap(g[:, 1], positive)]
        assert found[1:] == pytest.approx(expected, rel=1e-4)
    near = objectives.losses(
        1e3 * out, made, widths, "gap"
    )  # confident outputs: equal to what is measured
    task = Task(lambda: torch.nn.Linear(4, 2), classes=2, levels=LEVELS)
    for v in range(2):
        measured = objectives.measures(task, out[v], at, AIMS)
        assert near[v, 1:].numpy() == pytest.approx(measured[1:].numpy(), abs=1e-4)


def test_gap_without_one_of_the_groups() -> None:
    """Without a group to compare with, the gap is 0 and its gradient finite."""
    at = batch()._replace(groups=torch.zeros(35, 2, dtype=torch.int64))
    made = objectives.examples(at.x, at, AIMS, LEVELS, "one-hot")
    out = torch.tensor(RNG.normal(size=(35, 2)), dtype=torch.float32, requires_grad=True)
    got = objectives.losses(out, made, [1, 3, 3], "gap")
    got.sum().backward()
    assert got[1:].detach().numpy() == pytest.approx(0, abs=1e-6)
    assert out.grad is not None
    assert bool(torch.isfinite(out.grad).all())


def test_the_numbering_of_groups_does_not_matter() -> None:
    """With one-hot codes another numbering gives the same loss; with numbers it does not."""
    at = batch()
    other = at._replace(groups=torch.stack([at.groups[:, 0], (at.groups[:, 1] + 1) % 3], 1))
    out = torch.tensor(RNG.normal(size=(35, 2)), dtype=torch.float32)
    aims = AIMS[:1] + AIMS[2:3]

    def loss(rows: Batch, code: objectives.Code) -> float:
        widths = [objectives.columns(aims[1], LEVELS, code)]
        made = objectives.examples(rows.x, rows, aims, LEVELS, code)
        return float(objectives.losses(out, made, widths)[1])

    assert loss(at, "one-hot") == pytest.approx(loss(other, "one-hot"), rel=1e-4)
    assert loss(at, "number") != pytest.approx(loss(other, "number"), rel=1e-2)


def test_measures_are_those_of_the_metrics() -> None:
    """The error, and the largest distance between a group's rate and everyone's."""
    task = Task(lambda: torch.nn.Linear(4, 2), classes=2, levels=LEVELS)
    at = batch()
    out = torch.tensor(RNG.normal(size=(35, 2)), dtype=torch.float32)
    got = objectives.measures(task, out, at, AIMS).numpy()
    h, y, g = out.argmax(1).numpy()[:30], at.y.numpy()[:30], at.groups.numpy()[:30]

    def gap(column: int, keep: np.ndarray) -> float:
        rates = [h[keep & (g[:, column] == k)].mean() for k in range(LEVELS[column])]
        return max(abs(r - h[keep].mean()) for r in rates)

    everyone = np.ones(30, bool)
    expected = [(h != y).mean(), gap(0, everyone), gap(1, everyone), gap(1, y == 1)]
    assert got == pytest.approx(expected, abs=1e-6)

    attributes = (Attribute("sex", ("f", "m")), Attribute("race", ("a", "b", "c")))
    counts = np.zeros((6, 2, 2), np.int64)
    for i in range(30):
        for row in (0, 1 + g[i, 0], 3 + g[i, 1]):
            counts[row, y[i], h[i]] += 1
    names = coordinates(("error", "dp", "dp.race", "eo.race"), attributes)
    assert points(counts, attributes, names) == pytest.approx(expected, abs=1e-6)


def test_what_is_refused() -> None:
    for wrong in (["dp"], ["error"], ["dp", "error"], ["error", "dp", "dp"], ["error", "odds"]):
        with pytest.raises(ValueError, match="objective"):
            objectives.check_names(wrong)
    with pytest.raises(ConfigError, match="no protected attribute"):
        objectives.aims(("error", "dp"), ())
    with pytest.raises(ConfigError, match="sex"):
        objectives.aims(("error", "dp.sexx"), ("sex",))
    assert objectives.aims(("error", "eo"), ("a", "b")) == (Aim(None, -1), Aim(NOTIONS["eo"], 0))


def test_measures_of_several_fronts_and_classes() -> None:
    """Stacked outputs, booleans for two classes, and three classes, each against numpy."""
    for classes in (2, 3):
        task = Task(lambda k=classes: torch.nn.Linear(4, k), classes=classes, levels=LEVELS)
        at = batch()
        at = at._replace(y=torch.tensor(RNG.integers(0, classes, 35)))
        out = torch.tensor(RNG.normal(size=(4, 35, classes)), dtype=torch.float32)
        got = objectives.measures(task, out, at, AIMS[:2])
        for one, found in zip(out, got, strict=True):
            h, y, g = one.argmax(1).numpy()[:30], at.y.numpy()[:30], at.groups.numpy()[:30, 0]
            gaps = [
                abs((h[g == k] == c).mean() - (h == c).mean())
                for k in range(2)
                for c in range(classes)
            ]
            assert found.numpy() == pytest.approx([(h != y).mean(), max(gaps)], abs=1e-6)
            assert torch.equal(objectives.measures(task, one, at, AIMS[:2]), found)
        if classes == 2:
            chosen = out[..., 1] > out[..., 0]
            assert torch.equal(objectives.measures_of_decisions(task, chosen, at, AIMS[:2]), got)
