"""Whether numbers look uniformly distributed: small p-values say that they do not."""

from __future__ import annotations

import torch
from scipy import stats
from torch import Tensor


def p_values(vectors: list[Tensor]) -> list[float]:
    """Of tests of the bytes' frequencies, of the bits', and of neighbouring numbers' order."""
    whole = torch.cat([v.contiguous().view(torch.uint8) for v in vectors]).long()
    counts = torch.bincount(whole, minlength=256).double()
    bits = torch.tensor([[b >> i & 1 for i in range(8)] for b in range(256)]).double()
    ones, number = (counts @ bits).sum(), whole.numel() * 8
    numbers = torch.cat(vectors).double()
    rank = stats.spearmanr(numbers[:-1].numpy(), numbers[1:].numpy())
    return [
        float(stats.chisquare(counts.numpy()).pvalue),
        float(stats.binomtest(int(ones), number).pvalue),
        float(rank.pvalue),
    ]


def two_samples(one: list[Tensor], other: list[Tensor]) -> float:
    """Of a test that both samples have the same distribution."""
    pair = [torch.cat(vectors).double().numpy() for vectors in (one, other)]
    return float(stats.ks_2samp(*pair).pvalue)
