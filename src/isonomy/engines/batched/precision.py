"""Local steps in bfloat16, where the processor has instructions for it.

Matrix products and convolutions of a step, forward and backward, take operands in bfloat16 (8 bits
of mantissa, the range of float32), by torch's autocast. Parameters, optimiser memory, losses, what
clients send, and everything outside of local steps stay in float32.
"""

from __future__ import annotations

from typing import Literal

import torch

from isonomy.core.fold import Body
from isonomy.core.tree import Tree

Precision = Literal["float32", "bf16"]


def has_bf16() -> bool:
    """Whether this CPU has instructions for bfloat16."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def in_precision(body: Body, precision: Precision) -> Body:
    """The body of a local loop, computed in this precision."""
    if precision == "float32":
        return body

    def half(carry: Tree, x: Tree) -> Tree:
        # no cache: casts of one client's weights must not be used for others
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            return body(carry, x)

    return half
