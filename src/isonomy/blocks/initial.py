"""Initial models, for methods that train several."""

from __future__ import annotations

import zlib

from isonomy.core import tree
from isonomy.core.task import Params, Task
from isonomy.core.tree import Tree
from isonomy.errors import ConfigError


def independent_models(task: Task, params: Params, count: int) -> Tree:
    """Independent initial models [count, ...]: the given one, and others drawn in the same way.

    Their seeds are derived from the given parameters, so a run always draws the same models.
    Raises a ConfigError if the model does not draw its initial parameters at random.
    """
    seed = zlib.crc32(b"".join(leaf.numpy().tobytes() for leaf in tree.leaves(params)))
    models = [params, *(task.init(seed + m) for m in range(1, count))]
    if count > 1 and float(tree.sq_norm(tree.sub(models[0], models[1]))) == 0:
        raise ConfigError(
            "several models cannot start from different parameters, because this model draws none "
            "of its initial parameters at random; choose another model, or another start."
        )
    return tree.stack(models)
