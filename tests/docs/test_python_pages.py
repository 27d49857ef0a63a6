"""The Python code on some pages of the docs, run as it is."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["memory.md", "frames.md", "scikit-learn.md"])
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)
    assert blocks
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    assert "accuracy" in capsys.readouterr().out


def test_the_tracker_table_of_the_page_is_a_config():
    from isonomy.config.schema import parse

    (block,) = re.findall(r"```toml\n(.*?)```", (DOCS / "trackers.md").read_text(), flags=re.DOTALL)
    import tomllib

    assert parse(tomllib.loads(block)).track[0].to == "sqlite:///mlflow.db"
