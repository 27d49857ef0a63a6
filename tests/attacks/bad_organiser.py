"""An organiser that asks for steps of one row in its second round; started like `isonomy`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from isonomy.cli import main
from isonomy.federation.flower import engine

_honest = engine.request


def request(ask: Any, *more: Any) -> dict[str, Any]:
    if ask.round == 1 and not ask.declared.name.startswith("measure:"):
        ask = replace(ask, work=replace(ask.work, steps=1, batch=1))
    return _honest(ask, *more)


if __name__ == "__main__":
    engine.request = request
    main()
