"""The state of a run between two rounds: what a checkpoint keeps."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch

from isonomy.core.capabilities import FindsClusters
from isonomy.core.tree import Tree
from isonomy.engines.base import Engine
from isonomy.postprocess import Rule
from isonomy.runs.build import Setting
from isonomy.runs.private import Private
from isonomy.runs.state_store import StateStore


@dataclass
class Progress:
    """The server's state, the engine with the clients' states, and what was counted so far."""

    server: Tree
    engine: Engine
    round: int = 0  # rounds completed
    lost: int = 0  # rounds in which no client answered
    faults: Counter[str] = field(default_factory=Counter)  # exchanges missed, by client
    rule: Rule | None = None  # of decisions, fitted after the last round
    private: Private | None = None  # of differential privacy
    store: StateStore | None = None  # of the checkpoints of many clients' states


def found_clusters(setting: Setting, now: Progress) -> torch.Tensor | None:
    """Each client's cluster, if the algorithm finds clusters."""
    algorithm = setting.algorithm
    return algorithm.clusters(now.server) if isinstance(algorithm, FindsClusters) else None
