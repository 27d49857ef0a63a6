"""Isonomy: fair federated learning; published methods written once, measured alike.

    import isonomy

    config = isonomy.make_config(data="adult", algorithm={"name": "fedprox", "mu": 0.1}, rounds=20)
    result = isonomy.run(config)
    print(result.metrics["accuracy"], result.metrics["group.sex.demographic_parity"])

    results = isonomy.compare(config, algorithms=["fedavg", "local"], seeds=3)
    print(isonomy.table(results))
    isonomy.write_report(results, "report.html")

Importing the package is cheap: torch and the rest come with the first thing that needs them. Every
algorithm is here under its class's name too, such as `isonomy.FedProx(mu=0.1)`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from isonomy.api import (
    compare,
    export,
    load,
    load_model,
    make_config,
    methods,
    predictor,
    run,
    suggest,
    table,
    write_report,
)

if TYPE_CHECKING:
    from isonomy.config.schema import Config
    from isonomy.core.algorithm import Algorithm
    from isonomy.errors import IsonomyError
    from isonomy.runs.listener import Listener
    from isonomy.runs.record import Record

    __version__: str

__all__ = [
    "Algorithm",
    "Config",
    "IsonomyError",
    "Listener",
    "Record",
    "__version__",
    "compare",
    "export",
    "load",
    "load_model",
    "make_config",
    "methods",
    "predictor",
    "run",
    "suggest",
    "table",
    "write_report",
]

_HOMES = {
    "Algorithm": "isonomy.core.algorithm",
    "Config": "isonomy.config.schema",
    "IsonomyError": "isonomy.errors",
    "Listener": "isonomy.runs.listener",
    "Record": "isonomy.runs.record",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("isonomy")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name[:1].isupper():
        from isonomy import algorithms

        for kind in algorithms.registry().values():
            if kind.__name__ == name:
                return kind
    raise AttributeError(f"module 'isonomy' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
