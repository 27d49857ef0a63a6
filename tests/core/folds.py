"""What the tests of folds share: numbers, and a comparison of traced folds with plain ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor
from torch.testing import assert_close

from isonomy.core import random
from isonomy.core.fold import using
from isonomy.engines.batched.program import Programs


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


def numbers(name: str, *shape: int) -> Tensor:
    return random.normal(random.key(5), name, shape)


def both(function: Callable[..., Any], *args: Any, programs: Programs | None = None) -> Programs:
    """Run with plain folds and with programs; fails unless they agree. Returns the programs."""
    programs = programs or Programs()
    with using(None):
        expected = function(*args)
    with using(programs):
        got = function(*args)
    assert_close(got, expected, rtol=1e-6, atol=1e-6)
    return programs
