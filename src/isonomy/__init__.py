"""Isonomy: fair federated learning. Published methods, each written once and measured alike.

    import isonomy

    config = isonomy.make_config(data="adult", algorithm={"name": "fedprox", "mu": 0.1}, rounds=20)
    result = isonomy.run(config)
    print(result.metrics["accuracy"], result.metrics["group.sex.demographic_parity"])

    results = isonomy.compare(config, algorithms=["fedavg", "local"], seeds=3)
    print(isonomy.table(results))
    isonomy.write_report(results, "report.html")

The public interface is `isonomy.__all__`: functions to run and compare experiments, and what the
author of an algorithm needs (`Algorithm`, `Client`, `Cohort`, `Task`, `Federation`, `phase`,
`descend`). Every algorithm is also available under the name of its class, such as
`isonomy.FedProx(mu=0.1)`. All modules of the package are internal: what they contain may change
without notice, except for the few imports in `docs/adding-an-algorithm.md`.

Importing the package is fast: torch is imported when it is first needed.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from isonomy.api import (
    compare,
    excess,
    export,
    load,
    load_model,
    make_config,
    methods,
    postprocess_run,
    predictor,
    resume,
    run,
    trust,
)
from isonomy.api_data import federation, pack
from isonomy.api_results import figures, frame, table, write_report
from isonomy.api_search import check, decide, suggest, sweep, tune

if TYPE_CHECKING:
    from isonomy.blocks.descent import descend
    from isonomy.config.schema import Config
    from isonomy.core.algorithm import Algorithm
    from isonomy.core.client import Client
    from isonomy.core.cohort import Cohort
    from isonomy.core.phase import phase
    from isonomy.core.task import Task
    from isonomy.data.federation import Federation
    from isonomy.errors import IsonomyError
    from isonomy.estimator import FairFederatedClassifier as FairFederatedClassifier
    from isonomy.runs.listener import Listener
    from isonomy.runs.record import Record

    __version__: str

__all__ = [
    "Algorithm",
    "Client",
    "Cohort",
    "Config",
    "Federation",
    "IsonomyError",
    "Listener",
    "Record",
    "Task",
    "__version__",
    "check",
    "compare",
    "decide",
    "descend",
    "excess",
    "export",
    "federation",
    "figures",
    "frame",
    "load",
    "load_model",
    "make_config",
    "methods",
    "pack",
    "phase",
    "postprocess_run",
    "predictor",
    "resume",
    "run",
    "suggest",
    "sweep",
    "table",
    "trust",
    "tune",
    "write_report",
]

_MODULES = {  # of the names that are imported when they are first used
    "Algorithm": "isonomy.core.algorithm",
    "Client": "isonomy.core.client",
    "Cohort": "isonomy.core.cohort",
    "Config": "isonomy.config.schema",
    "FairFederatedClassifier": "isonomy.estimator",
    "Federation": "isonomy.data.federation",
    "IsonomyError": "isonomy.errors",
    "Listener": "isonomy.runs.listener",
    "Record": "isonomy.runs.record",
    "Task": "isonomy.core.task",
    "descend": "isonomy.blocks.descent",
    "phase": "isonomy.core.phase",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("isonomy")
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    if name[:1].isupper():
        from isonomy import algorithms

        for kind in algorithms.registry().values():
            if kind.__name__ == name:
                return kind
    raise AttributeError(f"module 'isonomy' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*__all__, "FairFederatedClassifier"]  # needs scikit-learn, so `import *` leaves it out


# `federation` is a public function and also the name of a package inside of this one. Python binds
# the name to the package when that is first imported, so the package is made callable then.


class _CallableFederation(ModuleType):
    __call__ = staticmethod(federation)


class _Isonomy(ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        if name == "federation" and isinstance(value, ModuleType):
            value.__class__ = _CallableFederation
        ModuleType.__setattr__(self, name, value)


sys.modules[__name__].__class__ = _Isonomy
