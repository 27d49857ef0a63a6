"""Earlier decisions in the same folder: they are kept, and their uses of the test examples counted.

Another request in a folder that holds a decision uses its trials again. The earlier answer, with
its page and its model, is moved to `earlier/1`, `earlier/2` and so on. If both were measured on the
test examples, the stated confidence is that of each answer alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isonomy.errors import RunError

EARLIER = "earlier"


def set_aside(place: Path, facts: Mapping[str, Any], files: Sequence[str]) -> list[dict[str, Any]]:
    """Move the folder's decision to `earlier`, unless it is that of the same request and model.

    `facts` are the new ones and `files` what a decision writes, decision.json first. Returns the
    earlier decisions that used the test examples, the oldest first.
    """
    root = place / EARLIER
    before = _read(place / files[0])
    if before is not None and _request(before) != _request(facts):
        root.mkdir(exist_ok=True)
        target = root / str(1 + max((int(p.name) for p in _kept(root)), default=0))
        target.mkdir()
        for name in files[::-1]:  # decision.json last: until then the folder holds a decision
            if (place / name).exists():
                (place / name).rename(target / name)
    found = [_read(path / files[0]) for path in _kept(root)]
    return [
        {
            "requirements": one["asked"]["requirements"],
            "outcome": one["outcome"],
            "chosen": one["chosen"]["name"],
        }
        for one in found
        if one is not None and one["answers"]
    ]


def line(earlier: Sequence[Mapping[str, Any]], level: float) -> str:
    """What earlier uses of the test examples mean, as a sentence."""
    number = len(earlier)
    times = "once" if number == 1 else f"{number} times"
    return (
        f"The test examples were used {times} before in this folder, for other requirements or "
        f"models ({EARLIER}/). The confidence of {level:.0%} is that of each answer alone; the "
        "best of several answers is less certain."
    )


def _request(facts: Mapping[str, Any]) -> Any:
    """What was asked of which data, and the model: if equal, a new answer replaces the old one."""
    config = {key: value for key, value in facts["config"].items() if key != "decide"}
    return json.loads(json.dumps([facts["asked"], config, facts["chosen"]]))


def _kept(root: Path) -> list[Path]:
    if not root.exists():
        return []
    return sorted((p for p in root.iterdir() if p.name.isdigit()), key=lambda p: int(p.name))


def _read(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(
            f"'{path}' cannot be read ({error}); move it away, or choose another folder with --to."
        ) from error
    return found if isinstance(found, dict) else None
