"""Weighted sums of replies are computed piece by piece, with the bits of whole tensors."""

import pytest
import torch

from isonomy.core import sums
from isonomy.core.sums import added, divided


@pytest.mark.parametrize("shape", [(), (7,), (3, 5, 11), (0,)])
def test_pieces_have_the_bits_of_the_whole(shape, monkeypatch):
    torch.manual_seed(0)
    replies = [{"w": torch.randn(1, *shape)} for _ in range(3)]
    weights = [torch.tensor([w], dtype=torch.float64) for w in (1.0, 1 / 3, 17.3)]

    def mean():
        found = None
        for reply, weight in zip(replies, weights, strict=True):
            found = added(found, reply, weight)
        return found.mean()["w"]

    whole = mean()
    monkeypatch.setattr(sums, "PIECE", 4)
    parts = mean()
    assert parts.shape == shape
    assert parts.dtype == torch.float32
    assert torch.equal(parts, whole)
    shares = torch.cat(weights) / sum(weights)
    stacked = torch.cat([reply["w"] for reply in replies]).double()
    torch.testing.assert_close(whole, torch.tensordot(shares, stacked, dims=1).float())


def test_a_reply_whose_numbers_are_not_in_order_in_memory(monkeypatch):
    monkeypatch.setattr(sums, "PIECE", 4)
    reply = torch.arange(12.0).reshape(1, 3, 4).transpose(1, 2)
    found = added(None, {"w": reply}, torch.tensor([2.0], dtype=torch.float64))
    assert torch.equal(found.folded["w"], 2 * reply[0].double())
    assert torch.equal(divided(found.folded["w"].t(), 2.0), reply[0].t())
