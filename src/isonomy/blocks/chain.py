"""Networks that are chains of layers: reorder, select and add hidden units.

The layers are those with a weight and a bias, first to last. A layer's weight is seen as blocks
[units, units of the layer before, numbers]: one number in a dense layer, a kernel in a
convolution, a map of pixels where channels are flattened into a dense layer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from isonomy.core.client import Client
from isonomy.core.task import Params, Task
from isonomy.errors import ConfigError

# modules that act on each unit separately
EACH_UNIT = (nn.Flatten, nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.ELU)
POOLS = (nn.MaxPool2d, nn.AvgPool2d)


def layers(params: Params) -> tuple[str, ...]:
    """The layers' names, first to last."""
    return tuple(name[: -len(".weight")] for name in params if name.endswith(".weight"))


def check_chain(task: Task, algorithm: str, *, convolutions: bool) -> None:
    """Raise a ConfigError for a network that is not a plain chain of layers with hidden units."""
    kinds = (nn.Linear, nn.Conv2d) if convolutions else (nn.Linear,)
    models = "'mlp' or 'cnn'" if convolutions else "'mlp' (or algorithm 'fedma' for 'cnn')"
    plain = isinstance(task.net, nn.Sequential)
    found = [m for m in task.net.children() if isinstance(m, kinds)]
    for module in task.net.children():
        pool = convolutions and isinstance(module, POOLS)
        if isinstance(module, kinds):
            plain = plain and module.bias is not None and getattr(module, "groups", 1) == 1
        elif not isinstance(module, EACH_UNIT) and not pool:
            plain = False
    if not plain or len(found) < 2:
        raise ConfigError(
            f"algorithm '{algorithm}' matches the hidden units of a plain chain of layers, which "
            f"this model is not; use model {models}, with at least one hidden layer."
        )


def subnetwork(params: Params, assigned: dict[str, Tensor]) -> Params:
    """The network with only the hidden units in `assigned` of each layer, in that order."""
    out, before = {}, None
    for name in layers(params):
        weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
        rows = assigned.get(name)
        if before is not None:
            units, columns = before
            kept = weight.reshape(len(weight), units, -1)[:, columns]
            weight = _shaped(kept, weight)
        before = (len(bias), rows)
        out[f"{name}.weight"] = weight if rows is None else weight[rows]
        out[f"{name}.bias"] = bias if rows is None else bias[rows]
    return out


def widened(weight: Tensor, at: Tensor, width: int) -> Tensor:
    """A layer's weight for `width` inputs: the given ones at positions `at`, 0 elsewhere."""
    place = (at.unsqueeze(-1) == torch.arange(width)).to(weight.dtype)
    blocks = weight.reshape(weight.shape[0], at.shape[-1], -1)
    return _shaped(torch.einsum("oub,uw->owb", blocks, place), weight)


def random_like(params: Params, client: Client) -> Params:
    """Normal weights drawn by the client, with the same root mean square in every tensor."""
    return {
        name: client.normal(f"start {name}", tuple(t.shape)) * t.square().mean().sqrt()
        for name, t in params.items()
    }


def _shaped(blocks: Tensor, like: Tensor) -> Tensor:
    """Blocks as a weight of the same kind of layer as `like`."""
    if like.dim() == 2:
        return blocks.reshape(blocks.shape[0], -1)
    return blocks.reshape(blocks.shape[0], blocks.shape[1], *like.shape[2:])


def all_units(params: Params, clients: int) -> dict[str, Tensor]:
    """All hidden units, in order, for every client: [clients, units] for each hidden layer."""
    return {
        name: torch.arange(len(params[f"{name}.bias"])).repeat(clients, 1)
        for name in layers(params)[:-1]
    }


def reassigned(old: dict[str, Tensor], ids: Tensor, new: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every client's units after clients `ids` were matched to the units in `new`.

    The other clients were not matched; they get the units that most clients have.
    """
    out = {}
    for name, at in new.items():
        clients, units = old[name].shape
        popular = torch.bincount(at.flatten()).argsort(descending=True, stable=True)[:units]
        out[name] = popular.sort().values.repeat(clients, 1).index_copy(0, ids, at)
    return out
