import subprocess
import sys

import pyarrow as pa

from isonomy.runs.arrow_columns import table_of

COLUMNS = {
    "whole": [3, -1, 2**63 - 1],
    "real": [0.5, float("nan"), -0.0],
    "text": ["é", "", "a\nb"],
    "gaps": [None, 1.5, None],
    "truth": [True, False, True],
    "mixed": [1, 0.5, 2],
}


def test_same_table_as_arrows_own():
    got, expected = table_of(COLUMNS), pa.table(COLUMNS)
    assert got.schema == expected.schema
    assert repr(got.to_pydict()) == repr(expected.to_pydict())
    assert table_of({"none": []}).equals(pa.table({"none": []}))


def test_a_table_of_clients_does_not_import_pandas():
    code = (
        "import sys; from isonomy.runs.arrow_columns import table_of;"
        "table_of({'a': [1], 'b': [0.5], 'c': ['x']}); print('pandas' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout == "False\n"
