"""What keeps a participant small: no dynamo, no pandas, no pages of files that are not in use."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from isonomy.federation.light_memory import _file_pages

CODE = """
import json, sys, torch
from pathlib import Path
from isonomy.core.dynamo import without_dynamo
from isonomy.federation import light_memory
from isonomy.data.tables import files

def rss():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

def loss(w):
    return (w ** 3).sum()

without_dynamo()
w = torch.tensor([1.0, 2.0])
per_row = torch.func.vmap(torch.func.grad(loss))(torch.stack([w, 2 * w]))
second = torch.func.grad(lambda v: torch.func.grad(loss)(v).sum())(w)
table = files.read(Path(sys.argv[1]))
out = {"before": rss()}
light_memory.release()
out |= {"after": rss()}
again = torch.func.grad(loss)(w)
out |= {"per_row": per_row.tolist(), "second": second.tolist(), "again": again.tolist()}
out |= {"values": table.columns["a"].values.tolist()}
out |= {"heavy": [m for m in ("torch._dynamo", "sympy", "pandas") if m in sys.modules]}
if len(sys.argv) > 2:
    torch._dynamo.reset()  # as any other use of it
    compiled = torch.compile(lambda x: loss(x) + 1, backend="eager")
    out |= {"compiled": compiled(w).item(), "grad": torch.func.grad(loss)(w).tolist()}
    out |= {"module": type(torch._dynamo).__name__, "dynamo": "torch._dynamo" in sys.modules}
print(json.dumps(out))
"""


def run(tmp_path: Path, *more: str) -> dict:
    (tmp_path / "t.csv").write_text("a,b\n1.5,x\n,y\n")
    command = [sys.executable, "-c", CODE, str(tmp_path / "t.csv"), *more]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    out: dict = json.loads(done.stdout)
    return out


def test_gradients_and_tables_need_neither_dynamo_nor_pandas(tmp_path: Path) -> None:
    out = run(tmp_path)
    assert out["heavy"] == []
    assert out["per_row"] == [[3.0, 12.0], [12.0, 48.0]]
    assert out["second"] == [6.0, 12.0]
    assert out["again"] == [3.0, 12.0]  # with pages that were released before
    assert out["values"][0] == 1.5
    if sys.platform == "linux":
        assert out["after"] < out["before"] - 40


@pytest.mark.slow
def test_dynamo_is_imported_when_something_else_uses_it(tmp_path: Path) -> None:
    out = run(tmp_path, "dynamo")
    assert out["dynamo"]
    assert out["module"] == "module"
    assert out["compiled"] == 10.0
    assert out["grad"] == [3.0, 12.0]


def test_only_files_that_were_not_changed_are_released() -> None:
    def mapping(where: str, mode: str, inode: int, anonymous: int) -> str:
        return (
            f"{where} {mode} 00000000 fe:00 {inode} /lib/x.so\nRss: 8 kB\n"
            f"Anonymous: {anonymous} kB\nVmFlags: rd\n"
        )

    text = (
        mapping("1000-3000", "r-xp", 7, 0)
        + mapping("3000-4000", "r--p", 7, 4)  # addresses were filled in
        + mapping("4000-5000", "rw-p", 7, 0)
        + mapping("5000-6000", "r--p", 0, 0)  # not a file
        + mapping("8000-9000", "r--p", 7, 0)
        + mapping("9000-a000", "r--s", 7, 0)
    )
    assert list(_file_pages(text)) == [(0x1000, 0x2000), (0x8000, 0x1000)]
