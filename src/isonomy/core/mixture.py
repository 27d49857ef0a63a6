"""Mixtures: the outputs of several models, combined into one."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, logsigmoid

from isonomy.core import tree
from isonomy.core.task import Params, Task


class Mixture(NamedTuple):
    """Models whose predictions are mixed: stacked parameters [m, ...], shares [m] that sum to 1."""

    models: Params
    share: Tensor


def outputs(task: Task, model: Params | Mixture, x: Tensor) -> Tensor:
    """The outputs [n, o] of a model, or of a mixture of models."""
    if not isinstance(model, Mixture):
        return task.outputs(model, x)
    several = range(model.share.shape[-1])
    each = [task.outputs(tree.take(model.models, m), x) for m in several]
    return mixed(task, torch.stack(each), model.share)


def mixed(task: Task, outputs: Tensor, share: Tensor) -> Tensor:
    """The mixture of `outputs` [models, n, o] with shares [models] that sum to 1.

    Probabilities are mixed, not logits: under cross-entropy the result is the logarithm of
    sum_m share_m softmax(outputs_m), under the logistic loss the logit of the mixed probability,
    so that the task's loss of the result is the negative log-likelihood of the mixture. Numbers
    (squared loss) and margins (hinge loss) are averaged.
    """
    log_share = share.log().to(outputs.dtype).reshape(-1, 1, 1)
    if task.loss_name == "cross_entropy":
        return torch.logsumexp(log_share + log_softmax(outputs, -1), 0)
    if task.loss_name == "logistic":
        yes = torch.logsumexp(log_share + logsigmoid(outputs), 0)
        return yes - torch.logsumexp(log_share + logsigmoid(-outputs), 0)
    return (share.to(outputs.dtype).reshape(-1, 1, 1) * outputs).sum(0)
