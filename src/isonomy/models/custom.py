"""A user's own network, by import path: "mypackage.nets:Net".

The part before the colon is a module, which is searched for in the current folder and then among
the installed packages. The part after it is a subclass of `torch.nn.Module`, or a function that
returns a module.

It is called with the user's options as keyword arguments. Three parameters of the constructor are
filled from the data unless the options give them: `inputs`, the number of values in a row; `shape`,
the row's shape as a tuple; `outputs`, the number of outputs that the loss needs.

BatchNorm and Dropout are refused: BatchNorm has statistics that are not parameters and mixes the
rows of a batch; Dropout draws random numbers inside the model, so engines could not agree. With
`convert` they are replaced:

- BatchNorm becomes GroupNorm over the same channels, with its eps, weights and biases. Over
  images (2d, 3d, Sync) the number of groups is the largest divisor of the channels that is at
  most 32 and leaves two or more channels in a group; over rows (1d) it is 1, because a small group
  of a row without height and width has almost no variance to divide by.
- Dropout, also inside attention and recurrent layers, gets p = 0.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.lazy import LazyModuleMixin

from isonomy.core.importing import from_path, reason
from isonomy.core.options import unknown_option
from isonomy.errors import ConfigError
from isonomy.models.entry import Shape


def find(path: str) -> Callable[..., Any]:
    """The class or function that an import path names."""
    attribute = path.partition(":")[2]
    found = from_path("model", path)
    if isinstance(found, nn.Module):
        raise ConfigError(
            f"model '{path}': '{attribute}' is a network that is already built; name its class or "
            "a function that builds it, so that each seed starts with new parameters."
        )
    if not callable(found) or (inspect.isclass(found) and not issubclass(found, nn.Module)):
        raise ConfigError(
            f"model '{path}': '{attribute}' is not a torch.nn.Module; name a subclass of it or a "
            "function that returns one."
        )
    return found  # type: ignore[no-any-return]


def arguments(
    path: str, make: Callable[..., Any], shape: Shape, outputs: int, given: Mapping[str, Any]
) -> dict[str, Any]:
    """The keyword arguments of the constructor: the user's options, and those from the data."""
    try:
        parameters = dict(inspect.signature(make).parameters)
    except (TypeError, ValueError):  # not written in Python: it has no signature
        return dict(given)
    named = {
        name: parameter
        for name, parameter in parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    free = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for name in given:
        if name not in named and not free:
            raise unknown_option("model", path, name, named)
    data = {"inputs": math.prod(shape), "shape": tuple(shape), "outputs": outputs}
    filled = {name: value for name, value in data.items() if name in named} | dict(given)
    missing = [
        name
        for name, parameter in named.items()
        if parameter.default is parameter.empty and name not in filled
    ]
    if missing:
        raise ConfigError(
            f"model '{path}': its constructor needs {', '.join(missing)}; add "
            f"{'it' if len(missing) == 1 else 'them'} to the model's options (only inputs, shape "
            "and outputs are filled from the data)."
        )
    return filled


def construct(
    path: str, make: Callable[..., Any], filled: Mapping[str, Any], *, convert: bool = False
) -> nn.Module:
    """A new instance of the user's network, checked and, with `convert`, converted."""
    called = ", ".join(f"{name}={value!r}" for name, value in filled.items()) or "no arguments"
    try:
        net = make(**filled)
    except Exception as error:
        raise ConfigError(
            f"model '{path}': its constructor failed with {reason(error)} when it was called with "
            f"{called}; correct the options or the class."
        ) from error
    if not isinstance(net, nn.Module):
        raise ConfigError(
            f"model '{path}' returned {type(net).__name__}, not a torch.nn.Module; return the "
            "network."
        )
    _check_not_lazy(path, net)
    if convert:
        return converted(net, path)
    _check_layers(path, net)
    _check_parameters(path, net)
    return net


def _where(name: str) -> str:
    return f" at '{name}'" if name else ""


def _check_not_lazy(path: str, net: nn.Module) -> None:
    for name, module in net.named_modules():
        if isinstance(module, LazyModuleMixin):
            advice = (
                "use GroupNorm"
                if isinstance(module, _BatchNorm)
                else "give its sizes in the constructor (parameters named inputs, shape and "
                "outputs are filled from the data)"
            )
            raise ConfigError(
                f"model '{path}' has {type(module).__name__}{_where(name)}, whose size is unknown "
                f"before the first batch; {advice}."
            )


def _check_layers(path: str, net: nn.Module) -> None:
    for name, module in net.named_modules():
        if isinstance(module, _BatchNorm):
            raise ConfigError(
                f"model '{path}' has {type(module).__name__}{_where(name)}, whose running "
                "statistics cannot be averaged over clients; use GroupNorm, or set convert = true "
                "to replace it."
            )
        probability = _dropout(module)
        if probability > 0:
            raise ConfigError(
                f"model '{path}' has {type(module).__name__} with p = {probability:g}"
                f"{_where(name)}, whose random draws an engine cannot repeat; remove it, or set "
                "convert = true to make p = 0."
            )


def _check_parameters(path: str, net: nn.Module) -> None:
    if not any(True for _ in net.parameters()):
        raise ConfigError(
            f"model '{path}' has no parameters, so there is nothing to train; register its layers "
            "as attributes, nn.ModuleList or nn.Parameter."
        )
    for name, parameter in net.named_parameters():
        if not parameter.requires_grad:
            raise ConfigError(
                f"model '{path}' has the frozen parameter '{name}', which training would change; "
                "register it as a buffer (register_buffer)."
            )


def _dropout(module: nn.Module) -> float:
    if isinstance(module, _DropoutNd):
        return float(module.p)
    if isinstance(module, nn.MultiheadAttention | nn.RNNBase):
        return float(module.dropout)
    return 0.0


def groups(channels: int, *, rows: bool = False) -> int:
    """The groups of the GroupNorm that replaces a BatchNorm.

    >>> [groups(channels) for channels in (64, 48, 32, 7, 1)]
    [32, 24, 16, 1, 1]
    >>> groups(64, rows=True)
    1
    """
    if rows:
        return 1
    return max(g for g in range(1, 33) if channels % g == 0 and (g == 1 or channels // g >= 2))


def converted(net: nn.Module, path: str = "") -> nn.Module:
    """The network with BatchNorm replaced by GroupNorm and Dropout at p = 0."""
    made: dict[nn.Module, nn.Module] = {}  # a module that is used twice stays one module
    for name, module in list(net.named_modules()):
        if isinstance(module, _BatchNorm):
            made[module] = _group_norm(module, path, name)
        elif isinstance(module, _DropoutNd):
            module.p = 0.0
        elif isinstance(module, nn.MultiheadAttention | nn.RNNBase):
            module.dropout = 0.0
    for module in list(net.modules()):
        for child_name, child in module._modules.items():
            if child in made:
                module._modules[child_name] = made[child]
    net = made.get(net, net)
    _check_parameters(path, net)
    return net


def _group_norm(norm: _BatchNorm, path: str, name: str) -> nn.GroupNorm:
    rows = isinstance(norm, nn.BatchNorm1d)
    if rows and norm.num_features == 1:
        raise ConfigError(
            f"model '{path}' has {type(norm).__name__}{_where(name)} over one feature, which a "
            "GroupNorm cannot replace; remove it."
        )
    new = nn.GroupNorm(
        groups(norm.num_features, rows=rows), norm.num_features, norm.eps, affine=norm.affine
    )
    if norm.affine:
        new.weight = norm.weight
        new.bias = norm.bias
    return new
