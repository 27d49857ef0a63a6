"""`isonomy`, started with something changed about its secure aggregation; the first word says what.

keep: an organiser that stores every masked reply as it arrives, in the folder SECURE_KEEP
die:  a participant that is killed when the masks of the exchange SECURE_SLOT are to be removed
bare: either of them, with masks of zeros: a planted fault
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from isonomy.cli import main
from isonomy.federation.flower import codec, engine, secure_client
from isonomy.privacy.secure import primitives


def keep() -> None:
    unpacked = engine.Flower.unpacked
    folder = Path(os.environ["SECURE_KEEP"])

    def keeping(self: Any, content: Any, like: Any) -> Any:
        if isinstance(content, bytes) and isinstance(like, dict) and set(like) == {"masked"}:
            head = codec.header(content)
            assert head.get("ok") is True, head
            (folder / f"{len(list(folder.iterdir())):04d}").write_bytes(content)
        return unpacked(self, content, like)

    engine.Flower.unpacked = keeping  # type: ignore[method-assign]


def die() -> None:
    unmask = secure_client.SecureClient._unmask

    def dying(self: Any, epoch: str, slot: int, answered: list[int]) -> bytes:
        if slot == int(os.environ["SECURE_SLOT"]):
            os.kill(os.getpid(), signal.SIGKILL)
        return unmask(self, epoch, slot, answered)

    secure_client.SecureClient._unmask = dying  # type: ignore[method-assign]


def bare() -> None:
    primitives.mask = lambda key, length, dtype: torch.zeros(length, dtype=dtype)


if __name__ == "__main__":
    for change in sys.argv.pop(1).split("+"):
        {"keep": keep, "die": die, "bare": bare}[change]()
    main()
