"""Check that a model fits the data, with a trial run on two rows as in an engine.

The network is called directly, and then, with its gradient, by `functional_call` under
`torch.func.vmap` with two copies of its parameters. Every failure becomes one sentence.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from isonomy.core.examples import DataShape
from isonomy.core.importing import reason
from isonomy.core.task import Batch, Task
from isonomy.data.federation import Federation
from isonomy.errors import ConfigError, DataError

CAUSES: dict[str, str] = {
    "random operation": "it draws random numbers in forward; remove the draw",
    "rrelu": "RReLU draws random numbers; use LeakyReLU",
    ".item()": "it turns a tensor into a Python number (.item(), float() or int()); keep it a "
    "tensor",
    "control flow": "it branches on a tensor's value; use torch.where",
    "dynamic shape": "it creates a tensor whose size depends on values (a boolean mask or "
    "nonzero); use torch.where",
    "data pointer": "it takes values out of a tensor (.numpy() or .tolist()); stay in torch",
    "broadcast shape": "it writes in place into an existing tensor (a buffer or "
    "torch.zeros); create new tensors with torch.stack, torch.cat or torch.where",
    "out-of-place": "it writes in place into an existing tensor (a buffer or "
    "torch.zeros); create new tensors with torch.stack, torch.cat or torch.where",
    "aten::lstm": "torch cannot batch its recurrent layers over clients; write the recurrence with "
    "nn.LSTMCell",
    "aten::gru": "torch cannot batch its recurrent layers over clients; write the recurrence with "
    "nn.GRUCell",
    "aten::rnn": "torch cannot batch its recurrent layers over clients; write the recurrence with "
    "nn.RNNCell",
}
"""Parts of vmap's messages, and what they mean."""


def source(shape: DataShape) -> str:
    """The data's name, quoted, for a message."""
    return f"'{shape.source}'" if shape.source else "the data"


def two_rows(data: Federation | DataShape) -> Batch:
    """Two rows to try a model on: the first and the last, or made-up ones where there are none.

    They differ, so that a model that mixes the rows of a batch shows it.
    """
    if isinstance(data, DataShape):
        x = torch.stack([torch.zeros(data.inputs), torch.ones(data.inputs)])
        y = torch.zeros(2, dtype=torch.int64 if data.classes else torch.float32)
        groups = torch.zeros(2, len(data.attributes), dtype=torch.int64)
        return Batch(x, y, groups, torch.ones(2))
    at = torch.tensor([0, data.x.shape[0] - 1])
    return Batch(data.x[at], data.y[at], data.groups[at], torch.ones(2))


def cause(error: BaseException) -> str:
    """Why a network that runs by itself fails under vmap, and what to do."""
    text = str(error)
    for sign, meaning in CAUSES.items():
        if sign in text:
            return meaning
    return f"torch reports {reason(error)}; write forward with other operations"


def check(model: str, task: Task, shape: DataShape, rows: Batch, outputs: int) -> None:
    """Raise an error if the model does not fit the data or cannot be batched over clients.

    `rows` are two rows of the data, and `outputs` is the number of outputs that the loss needs.
    """
    params = {name: p.detach() for name, p in task.net.named_parameters()}
    buffers = {name: b.clone() for name, b in task.net.named_buffers()}
    with torch.random.fork_rng(devices=[]):
        alone = _alone(model, task, shape, rows.x, params)
        _check_outputs(model, task, shape, alone, outputs)
        for name, buffer in task.net.named_buffers():
            if not torch.equal(buffer, buffers[name]):
                raise ConfigError(
                    f"model '{model}' changes its buffer '{name}' in forward, so its outputs "
                    "depend on earlier calls; keep forward a pure function of the row."
                )
        _check_batched(model, task, rows, params, alone)
        _check_rows(model, task, rows.x, params, alone)


def _alone(
    model: str, task: Task, shape: DataShape, x: Tensor, params: dict[str, Tensor]
) -> Tensor:
    try:
        with torch.no_grad():
            out = functional_call(task.net, params, (x,))
    except Exception as error:
        raise DataError(
            f"model '{model}' cannot run on two rows of {source(shape)}, of shape "
            f"{list(x.shape[1:])} each: {reason(error)}; make it fit (constructor parameters "
            "named inputs and shape receive those of the data), or use mlp."
        ) from error
    if not isinstance(out, Tensor):
        raise ConfigError(
            f"model '{model}' returns {type(out).__name__} from forward; return one tensor "
            "[rows, outputs]."
        )
    return out


def _check_outputs(model: str, task: Task, shape: DataShape, out: Tensor, outputs: int) -> None:
    if list(out.shape) != [2, outputs]:
        found = (
            f"returns {out.shape[1]} output{'s' * (out.shape[1] != 1)} for a row"
            if out.dim() == 2 and out.shape[0] == 2
            else f"returns outputs of shape {list(out.shape)} for two rows"
        )
        needs = (
            f"loss '{task.loss_name}' on {source(shape)} ({shape.classes} classes) needs {outputs}"
            if task.classes
            else f"loss '{task.loss_name}' on {source(shape)} needs {outputs}"
        )
        other = ""
        if outputs == 2 and list(out.shape) == [2, 1]:
            other = ", or set loss = 'logistic'"
        raise DataError(
            f"model '{model}' {found} but {needs}: [rows, {outputs}]; change its last layer "
            f"(a constructor parameter named outputs receives the number){other}."
        )
    if not out.is_floating_point():
        raise ConfigError(
            f"model '{model}' returns outputs of type {out.dtype}, which have no gradient; return "
            "the raw outputs of the last layer."
        )
    if not bool(torch.isfinite(out).all()):
        raise DataError(
            f"model '{model}' returns outputs that are not finite on rows of {source(shape)}; "
            "scale the features, or look for a log or a division in forward."
        )
    if outputs > 1 and bool((out >= 0).all()) and torch.allclose(out.sum(-1), torch.ones(2)):
        raise ConfigError(
            f"model '{model}' ends in a softmax, which the loss already applies; return the raw "
            "outputs of the last layer."
        )


def _close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-3, atol=1e-4 * (1 + float(b.abs().max())))


def _check_rows(
    model: str, task: Task, x: Tensor, params: dict[str, Tensor], alone: Tensor
) -> None:
    try:
        with torch.no_grad():
            one = task.outputs(params, x[:1])
    except Exception as error:
        raise ConfigError(
            f"model '{model}' runs on two rows but not on one: {reason(error)}; keep forward a "
            "pure function of each row, without batch statistics."
        ) from error
    if one.shape != alone[:1].shape:
        raise ConfigError(
            f"model '{model}' returns outputs of shape {list(one.shape)} for a batch of one row; "
            "always return [rows, outputs] (squeeze() without a dimension drops the rows)."
        )
    if not _close(one, alone[:1]):
        raise ConfigError(
            f"model '{model}' returns different outputs for a row if another row is in the batch, "
            "or if it is called again; keep forward a pure function of each row, without batch "
            "statistics or random draws."
        )


def _check_batched(
    model: str, task: Task, rows: Batch, params: dict[str, Tensor], alone: Tensor
) -> None:
    stacked = {name: torch.stack([p, p]) for name, p in params.items()}
    cohort = Batch(*(torch.stack([part, part]) for part in rows))
    try:
        out = vmap(task.outputs)(stacked, cohort.x)
        slopes = vmap(grad(task.loss))(stacked, cohort)
    except Exception as error:
        raise ConfigError(
            f"model '{model}' runs for one client but not for several at once "
            f"(torch.func.vmap): {cause(error)}."
        ) from error
    if not all(_close(copy, alone) for copy in out):
        raise ConfigError(
            f"model '{model}' returns different outputs for several clients at once than for one; "
            "keep forward a pure function of the row and the parameters."
        )
    if not all(bool(torch.isfinite(slope).all()) for slope in slopes.values()):
        raise DataError(
            f"model '{model}' has a gradient that is not finite at its initial parameters; scale "
            "the features, or look for a root, a log or a division in forward."
        )
