"""Max pooling without positions has the numbers of torch's own, and is not used for gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.functional import max_pool2d

from isonomy.core import pooling
from isonomy.core.pooling import FastPools, has_pools
from isonomy.core.task import Batch, Task

CASES: list[dict[str, Any]] = [
    {"kernel_size": 2},
    {"kernel_size": 3},
    {"kernel_size": (2, 3)},
    {"kernel_size": 2, "stride": (2, 2)},
    {"kernel_size": 2, "stride": 1},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 2, "dilation": 2},
    {"kernel_size": 2, "ceil_mode": True},
    {"kernel_size": 4},
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("shape", [(3, 2, 6, 6), (3, 2, 7, 9), (2, 5, 5)], ids=str)
def test_the_numbers_are_those_of_torch(case: dict[str, Any], shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).relu()  # with equal numbers
    x[..., 1, 1] = torch.nan
    expected = max_pool2d(x, **case)
    with FastPools():
        found = max_pool2d(x, **case)
    assert torch.equal(found.nan_to_num(-1), expected.nan_to_num(-1))
    assert torch.equal(found.isnan(), expected.isnan())


def test_only_windows_that_do_not_overlap_are_computed_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used: list[bool] = []
    inner = pooling._pooled

    def counted(*args: Any, **given: Any) -> Tensor | None:
        found = inner(*args, **given)
        used.append(found is not None)
        return found

    monkeypatch.setattr(pooling, "_pooled", counted)
    with FastPools():
        for case in CASES:
            max_pool2d(torch.ones(1, 1, 9, 9), **case)
    assert used == [True, True, True, True, False, False, False, False, False]


def test_positions_and_images_that_are_too_small_are_left_to_torch() -> None:
    with FastPools():
        out, at = max_pool2d(torch.tensor([[[[1.0, 2.0], [4.0, 3.0]]]]), 2, return_indices=True)
        with pytest.raises(RuntimeError, match="too small"):
            max_pool2d(torch.ones(1, 1, 1, 4), 2)
    assert (out.item(), at.item()) == (4.0, 2)


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 4)
    )


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """An entry for each pooling that the fast mode saw."""
    seen: list[bool] = []
    inner = pooling._pooled

    def counted(*args: Any, **given: Any) -> Tensor | None:
        seen.append(True)
        return inner(*args, **given)

    monkeypatch.setattr(pooling, "_pooled", counted)
    return seen


def test_a_task_uses_it_for_outputs_and_not_for_gradients(used: list[bool]) -> None:
    task = Task(net, classes=4)
    params = task.init(0)
    x = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    expected = task.net  # with the parameters of seed 0, as `init(0)`
    with torch.no_grad():
        assert torch.equal(task.outputs(params, x), expected(x))
        assert used
        used.clear()
        many = {name: torch.stack([p, 2 * p]) for name, p in params.items()}
        both = vmap(task.outputs, in_dims=(0, None))(many, x)
        assert used
        assert torch.allclose(both[0], expected(x), atol=1e-6)
        used.clear()
        batch = Batch(x, torch.arange(5) % 4, torch.zeros(5, 0), torch.ones(5))
        slopes = grad(task.loss)(params, batch)
    assert not used
    nn.functional.cross_entropy(expected(x), batch.y).backward()
    for name, p in expected.named_parameters():
        assert p.grad is not None
        assert torch.allclose(slopes[name], p.grad, atol=1e-6)


def test_a_network_without_pools_does_without_it() -> None:
    assert has_pools(net())
    assert not has_pools(nn.Linear(2, 2))
    assert not Task(lambda: nn.Linear(2, 2)).pools
