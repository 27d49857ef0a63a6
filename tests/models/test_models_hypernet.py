"""Hypernets: the head they make, and where it goes in a network."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import vmap

from isonomy.core.task import Task
from isonomy.errors import ConfigError
from isonomy.models import hypernet as nets
from isonomy.models.mlp import mlp

TASK = Task(lambda: mlp((3,), 2, hidden=(4, 4)), classes=2, levels=(2,))


def test_head_by_hand() -> None:
    """In numpy: embedding, W1, b1, W2, and W2 (W1 h + b1) on latent features."""
    flat = nets.initial(TASK, TASK.init(1), 2)
    assert len(flat) == 4 * 2 + 4 + 4 * 4 + 4 + (16 + 4 + 8) * 4 + 28
    lam, at = np.array([0.3, 0.7]), flat.double().numpy()
    sizes = [8, 4, 16, 4, 112, 28]
    parts = np.split(at, np.cumsum(sizes)[:-1])
    hidden = np.maximum(parts[0].reshape(4, 2) @ lam + parts[1], 0)
    embedded = parts[2].reshape(4, 4) @ hidden + parts[3]
    out = parts[4].reshape(28, 4) @ embedded + parts[5]
    first, bias, second = out[:16].reshape(4, 4), out[16:20], out[20:].reshape(2, 4)
    h = np.array([0.5, -1.0, 2.0, 0.25])
    weight, constant = nets.make_head(flat, torch.tensor([0.3, 0.7]), nets.head_of(TASK))
    got = weight.double().numpy() @ h + constant.double().numpy()
    assert got == pytest.approx(second @ (first @ h + bias), rel=1e-4)


def test_many_preferences_at_once_are_each_of_them() -> None:
    flat, rays = nets.initial(TASK, TASK.init(2), 2), torch.rand(5, 2)
    where = nets.head_of(TASK)
    weight, bias = nets.make_head(flat, rays, where)
    each = vmap(lambda r: nets.make_head(flat, r, where))(rays)
    assert weight.shape == (5, 2, 4)
    assert torch.allclose(weight, each[0], atol=1e-6)
    assert torch.allclose(bias, each[1], atol=1e-6)


def test_body_and_head_are_the_network() -> None:
    params, x = TASK.init(0), torch.randn(6, 3)
    head, body = nets.split(TASK, params)
    assert sorted(head) == ["linear3.bias", "linear3.weight"]
    latent = nets.features(TASK, body, x)
    assert latent.shape == (6, 4)
    assert bool((latent >= 0).all())  # after the activation
    whole = latent @ head["linear3.weight"].T + head["linear3.bias"]
    assert torch.allclose(whole, TASK.outputs(params, x), atol=1e-6)
    made = nets.make_params(TASK, body, nets.initial(TASK, params, 2), torch.tensor([0.5, 0.5]))
    assert {k: v.shape for k, v in made.items()} == {k: v.shape for k, v in params.items()}


def test_features_with_and_without_a_shortcut() -> None:
    """A sequence of layers is cut before its head; another network has an identity as its head."""

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp((3,), 2, hidden=(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.net(x)
            return out

    wrapped = Task(Wrapped, classes=2, levels=(2,))
    params, x = TASK.init(0), torch.randn(6, 3)
    inside = {f"net.{name}": value for name, value in params.items()}
    found = nets.features(TASK, params, x)
    assert torch.allclose(found, nets.features(wrapped, inside, x), atol=1e-6)
    only = Task(lambda: nn.Sequential(nn.Linear(3, 2)), classes=2, levels=(2,))
    assert torch.equal(nets.features(only, only.init(0), x), x)


def test_seeds_differ_with_the_model() -> None:
    a, b = (nets.initial(TASK, TASK.init(seed), 2) for seed in (0, 1))
    assert not torch.equal(a, b)
    assert torch.equal(a, nets.initial(TASK, TASK.init(0), 2))


class Late(nn.Module):
    """Something comes after the last linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.last(x))


def test_networks_without_such_a_head_are_refused() -> None:
    none = Task(lambda: nn.Conv2d(1, 2, 1), classes=2)
    with pytest.raises(ConfigError, match="does not end in a linear layer"):
        nets.head_of(none)
    late = Task(Late, classes=2)
    with pytest.raises(ConfigError, match="does not end with its last linear layer"):
        nets.check_head(late, late.init(0))
    nets.check_head(TASK, TASK.init(0), torch.randn(4, 3))
    nets.check_head(TASK, TASK.init(0))  # flattening comes first and has no parameters
