import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from isonomy.core.examples import Attribute
from isonomy.data.federation import Federation, build

torch.set_num_threads(1)

Make = Callable[..., Federation]


@pytest.fixture
def data() -> Make:
    def make(shape=(5,), classes=2, rows=8, source="toy", attributes=()) -> Federation:
        draw = torch.Generator().manual_seed(7)
        half = rows // 2
        y = torch.randint(classes, (rows,), generator=draw) if classes else torch.arange(rows) / 3.0
        return build(
            torch.randn(rows, *shape, generator=draw),
            y,
            torch.zeros(rows, len(attributes), dtype=torch.int64),
            {"train": [torch.arange(half), torch.arange(half, rows)]},
            classes=classes,
            attributes=tuple(Attribute(name, levels) for name, levels in attributes),
            source=source,
        )

    return make


@pytest.fixture
def nets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Write `nets.py` in a fresh current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("ISONOMY_TRUST", "nets,nosuch,nosuchpackage,mypackage")
    sys.modules.pop("nets", None)  # that of another test

    def write(text: str) -> None:
        (tmp_path / "nets.py").write_text(f"import torch\nfrom torch import nn\n{text}")

    yield write
    sys.modules.pop("nets", None)
