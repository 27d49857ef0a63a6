"""The notebooks run from the first cell to the last, and are stored without outputs."""

import json
import shutil
from pathlib import Path

import nbclient
import nbformat
import pytest

DOCS = Path(__file__).parents[2] / "docs"
NOTEBOOKS = DOCS / "notebooks"


def executed(name: str, place: Path) -> list[str]:
    """What the code cells of a notebook printed or returned, in a folder with the tables."""
    shutil.copytree(DOCS / "tutorials" / "clinics", place / "clinics")
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    client = nbclient.NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": str(place)}}
    )
    client.execute()
    return [
        "".join(
            output.get("text", "") or output.get("data", {}).get("text/plain", "")
            for output in cell.outputs
        )
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs(path):
    cells = json.loads(path.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert cells[0]["source"][0].startswith("# ")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the kernel's packages
def test_own_tables(tmp_path):
    said = executed("own-tables", tmp_path)
    assert "complete" in said[1]
    assert float(said[2].split("accuracy")[1].split()[0]) > 0.7
    assert "north: accuracy" in said[3]
    assert "local" in said[4]
    assert said[5] == "True"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_comparing_methods(tmp_path):
    said = executed("comparing-methods", tmp_path)
    assert "±" in said[1]
    assert said[2].startswith("Counter(")
    assert said[3] == "True"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_federation(tmp_path):
    pytest.importorskip("flwr")
    said = executed("federation", tmp_path)
    assert "accuracy" in said[0]
    assert said[1].startswith("(True, [")
    assert "sum" in said[3]
