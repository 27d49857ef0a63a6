"""Where training starts, for methods that train several models."""

from __future__ import annotations

import zlib

from isonomy.core import tree
from isonomy.core.task import Params, Task
from isonomy.core.tree import Tree
from isonomy.errors import ConfigError


def independent(task: Task, params: Params, count: int) -> Tree:
    """Models [count, ...] that start each by itself: the given one, and others drawn like it.

    Their seeds are made of the given parameters, so the same run draws the same models.
    """
    seed = zlib.crc32(b"".join(leaf.numpy().tobytes() for leaf in tree.leaves(params)))
    models = [params, *(task.init(seed + m) for m in range(1, count))]
    if count > 1 and float(tree.sq_norm(tree.sub(models[0], models[1]))) == 0:
        raise ConfigError(
            "several models cannot start apart: this model draws none of its initial parameters; "
            "choose another model, or another start."
        )
    return tree.stack(models)
