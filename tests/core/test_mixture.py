"""Mixtures against the definition, worked with NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from isonomy.core.mixture import mixed
from isonomy.core.task import Task

OUTPUTS = np.random.default_rng(0).normal(scale=3, size=(3, 7, 4))
SHARE = np.array([0.7, 0.25, 0.05])


def task(loss: str, outputs: int = 1, classes: int = 2) -> Task:
    return Task(lambda: nn.Linear(2, outputs), loss_name=loss, classes=classes)  # type: ignore[arg-type]


def tensor(values: np.ndarray) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def test_probabilities_are_mixed_not_logits() -> None:
    p = np.exp(OUTPUTS) / np.exp(OUTPUTS).sum(-1, keepdims=True)
    mixture = np.einsum("m,mno->no", SHARE, p)
    got = mixed(task("cross_entropy", 4, 4), tensor(OUTPUTS), torch.tensor(SHARE))
    np.testing.assert_allclose(got.softmax(-1).numpy(), mixture, rtol=2e-5)
    y = torch.arange(7) % 4
    loss = task("cross_entropy", 4, 4).each_loss(got, y)
    np.testing.assert_allclose(loss.numpy(), -np.log(mixture[np.arange(7), y]), rtol=2e-5)
    logits = np.einsum("m,mno->no", SHARE, OUTPUTS)
    wrong = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    assert np.abs(wrong - mixture).max() > 0.1


def test_logistic_loss_of_the_mixture() -> None:
    margin = OUTPUTS[..., :1]
    p = np.einsum("m,mno->no", SHARE, 1 / (1 + np.exp(-margin)))[:, 0]
    got = mixed(task("logistic"), tensor(margin), torch.tensor(SHARE))
    np.testing.assert_allclose(got.sigmoid().squeeze(-1).numpy(), p, rtol=2e-5)
    y = torch.tensor([0, 1, 0, 1, 1, 0, 1])
    loss = task("logistic").each_loss(got, y).numpy()
    np.testing.assert_allclose(loss, -np.log(np.where(y == 1, p, 1 - p)), rtol=2e-5)


@pytest.mark.parametrize(("loss", "classes"), [("squared", 0), ("hinge", 2)])
def test_numbers_and_margins_are_averaged(loss: str, classes: int) -> None:
    values = OUTPUTS[..., :1]
    got = mixed(task(loss, classes=classes), tensor(values), torch.tensor(SHARE))
    np.testing.assert_allclose(got.numpy(), np.einsum("m,mno->no", SHARE, values), rtol=1e-5)


@pytest.mark.parametrize("loss", ["cross_entropy", "logistic", "squared", "hinge"])
def test_a_share_of_one_is_that_model_whatever_the_others_say(loss: str) -> None:
    outputs = tensor(OUTPUTS if loss == "cross_entropy" else OUTPUTS[..., :1])
    outputs[0] *= 1e4  # probabilities of 0 and 1
    share = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    how = task(loss, outputs.shape[-1], 4 if loss == "cross_entropy" else 2)
    y = torch.arange(7) % (4 if loss == "cross_entropy" else 2)
    got = how.each_loss(mixed(how, outputs, share), y)
    torch.testing.assert_close(got, how.each_loss(outputs[1], y), rtol=1e-5, atol=1e-6)
    assert torch.isfinite(mixed(how, outputs, torch.tensor(SHARE))).all()
