"""Gradients without `torch._dynamo`, whose import takes a second or two and about 90 MB."""

from __future__ import annotations

import contextlib
import importlib
import sys
from types import ModuleType
from typing import Any

import torch

_DYNAMO = "torch._dynamo"


def without_dynamo() -> None:
    """Let `torch.func` compute gradients without importing `torch._dynamo`.

    For each gradient, `torch.func` switches off dynamo's compiled autograd, and imports dynamo for
    that. As long as nothing else has imported it, there is nothing to switch off. Any other use of
    `torch._dynamo` imports it as usual.
    """
    if _DYNAMO not in sys.modules:
        torch._dynamo = _NotImported(_DYNAMO)  # replaced by the module once that is imported


class _NotImported(ModuleType):
    """Stands for `torch._dynamo` until it is imported."""

    def __getattr__(self, name: str) -> Any:
        if name == "compiled_autograd" and _DYNAMO not in sys.modules:
            return _NoCompiledAutograd
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(_DYNAMO), name)


class _NoCompiledAutograd:
    """The part of dynamo that `torch.func` uses for a gradient, while dynamo is not imported."""

    @staticmethod
    def _disable() -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()
