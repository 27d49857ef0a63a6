"""pyarrow, the largest package of all, is an extra: everything but tables in memory works."""

import json
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq

SCRIPT = """
import sys

class Absent:
    def find_spec(name, *_):
        if name.partition(".")[0] in ("pyarrow", "pandas", "polars"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent)
import isonomy

found = {}
for kind in ("csv", "parquet"):
    config = isonomy.make_config(
        data={"name": "tables", "path": f"{kind} files", "label": "ill", "protected": ["sex"]},
        model="linear", rounds=2, excess="none",
    )
    made = isonomy.run(config, f"runs/{kind}")
    again = isonomy.load(f"runs/{kind}")[0]
    found[kind] = [made.metrics["accuracy"], again.clients["accuracy"]]
    some = {"age": [40, 60], "job": ["x", "y"]}
    for rows in ("csv files/a.csv", "parquet files/b.parquet", some):
        predicted = isonomy.predictor(f"runs/{kind}").predict_rows(rows)
        predicted.parquet()
        found[kind].append(predicted.values)
try:
    isonomy.federation(object(), label="ill")
except isonomy.IsonomyError as error:
    found["memory"] = str(error)
import json
print(json.dumps(found))
"""


def people(seed):
    return {
        "age": [20 + (7 * i + seed) % 60 for i in range(60)],
        "job": [("x", "y", None)[(i + seed) % 3] for i in range(60)],
        "sex": ["FM"[i % 2] for i in range(60)],
        "ill": ["no" if (7 * i + seed) % 60 < 30 else "yes" for i in range(60)],
    }


def test_files_are_read_trained_on_and_predicted_without_it(tmp_path):
    for name, seed in (("a", 0), ("b", 5)):
        columns = people(seed)
        for kind in ("csv", "parquet"):
            (tmp_path / f"{kind} files").mkdir(exist_ok=True)
        rows = zip(*columns.values(), strict=True)
        lines = [",".join("" if v is None else str(v) for v in row) for row in rows]
        text = "\n".join([",".join(columns), *lines])
        (tmp_path / f"csv files/{name}.csv").write_text(text)
        pq.write_table(pa.table(columns), tmp_path / f"parquet files/{name}.parquet")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["csv"] == found["parquet"]
    assert len(found["csv"][2]) == 60
    assert "pip install 'isonomy[arrow]'" in found["memory"]
