"""Results as frames and figures, against the records that they come from."""

from __future__ import annotations

import html
import math
import subprocess
import sys

import polars
import pyarrow as pa
import pytest

import isonomy
from isonomy.errors import ConfigError
from isonomy.report.figures import all_figures


@pytest.fixture(scope="module")
def records():
    config = isonomy.make_config(
        data={"name": "synthetic", "clients": 4},
        model="linear",
        rounds=4,
        evaluate={"every": 2, "bootstrap": 20},
        front={"rays": 0},
        excess="none",
    )
    methods = [{"name": "fedprox", "mu": 0.1}, "local"]
    return isonomy.compare(config, algorithms=methods, seeds=[0, 5])


def test_one_row_per_run(records):
    found = isonomy.frame(records)
    assert found["label"].tolist() == [one.label for one in records]
    assert found["seed"].tolist() == [0, 5, 0, 5]
    assert found["accuracy"].tolist() == [one.metrics["accuracy"] for one in records]
    assert found["bytes_up"].tolist() == [
        sum(line["bytes_up"] for line in r.rounds) for r in records
    ]
    assert found["config.algorithm.mu"].tolist()[:2] == [0.1, 0.1]
    assert found["config.algorithm.mu"].isna().tolist()[2:] == [True, True]
    assert "config.rounds" not in found.columns  # the same in every run


def test_one_row_per_round(records):
    found = records[0].to_frame()
    assert found["round"].tolist() == [1, 2, 3, 4]
    assert found["loss"].isna().tolist() == [True, False, True, False]
    assert found["loss"].tolist()[-1] == records[0].metrics["loss"]


def test_one_row_per_client_and_evaluation(records):
    found = isonomy.frame(records, "client")
    assert len(found) == 4 * 4 * 2
    first = found[(found.label == records[0].label) & (found.seed == 0)]
    for name, values in records[0].clients.items():
        assert repr(first[name].tolist()) == repr(values)


def test_one_row_per_group(records):
    found = records[1].to_frame("group")
    (attribute,) = set(found["attribute"])
    last = found[found["round"] == 4].set_index("group")
    assert len(last) == 2
    for level, row in last.iterrows():
        for kind in ("accuracy", "positive_rate", "accuracy:low"):
            name, _, end = kind.partition(":")
            metric = f"group.{attribute}.{name}.{level}" + (f":{end}" if end else "")
            right = records[1].metrics[metric]
            assert row[kind] == right or (math.isnan(row[kind]) and math.isnan(right))


def test_kinds_of_frames(records):
    assert isinstance(records[0].to_frame(to="arrow"), pa.Table)
    made = isonomy.frame(records, to="polars")
    assert isinstance(made, polars.DataFrame)
    assert made["accuracy"].to_list() == isonomy.frame(records)["accuracy"].tolist()
    with pytest.raises(ConfigError, match="Did you mean 'client'"):
        isonomy.frame(records, "clients")
    with pytest.raises(ConfigError, match="unknown kind of frame 'numpy'"):
        isonomy.frame(records, to="numpy")


def test_a_missing_package_explains_itself():
    script = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(name, *_):\n"
        "        if name == 'pandas': raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Absent)\n"
        "import isonomy\n"
        "one = isonomy.Record('a', 0, {}, [{'round': 1}], {}, {})\n"
        "assert one.to_frame(to='arrow').num_rows == 1\n"
        "try: one.to_frame()\n"
        "except isonomy.IsonomyError as error: print(error)\n"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.stdout.strip() == (
        "a frame of pandas needs pandas, which is not installed; run `pip install "
        "'isonomy[pandas]'`, or ask for to='polars' or to='arrow'."
    )


def test_figures_are_those_of_the_page(records):
    found = isonomy.figures(records)
    assert found.names == tuple(figure.name for figure in all_figures(records))
    assert "curves" in found.names
    one = found["curves"]
    frame = one._repr_html_()
    page = html.unescape(frame.partition('srcdoc="')[2].partition('" title=')[0])
    assert page == one.html
    assert page.count("<section") == 1
    assert 'class="canvas"' in page
    assert "http" not in page.replace("http-equiv", "")
    assert [part.names for part in found] == [(name,) for name in found.names]
    with pytest.raises(ConfigError, match="Did you mean 'curves'"):
        found["curve"]
    assert records[0].figures().names


def test_figures_are_written_as_a_page(records, tmp_path):
    path = records[0].figures().write(tmp_path / "figures.html")
    assert path.read_text().startswith("<!DOCTYPE html>")
