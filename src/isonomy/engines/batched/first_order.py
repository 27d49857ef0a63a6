"""Gradients that are not differentiated again.

`torch.func.grad` prepares for gradients of gradients. Where nothing takes them, that only costs
time and precision: the backward pass of group norm, for example, is then a dozen operations instead
of torch's own kernel, and that of SiLU and Mish several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class FirstOrder(TorchFunctionMode):
    """Inside it, the backward pass of the outermost derivative is not recorded.

    `outermost` tells whether a tensor is the result of a function whose derivative is not inside
    that of another. Use it only where no autograd is active around it.
    """

    def __init__(self, outermost: Callable[[Tensor], bool]) -> None:
        super().__init__()
        self.outermost = outermost

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """As without it, except for `torch.autograd.grad`, which `torch.func.grad` calls."""
        given = dict(kwargs or {})
        if func is torch.autograd.grad and all(map(self.outermost, args[0])):
            given["create_graph"] = False
        return func(*args, **given)
