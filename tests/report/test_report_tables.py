from __future__ import annotations

import csv
import io
import math
import re

import pytest
from report_records import plain, record, study
from rich.console import Console

from isonomy.errors import ConfigError, RunError
from isonomy.report import Cell, Column, Table, comparison, everything, reproduction
from isonomy.report.runs import methods, stat
from isonomy.report.tables import parts, shown

SMALL = Table(
    "A & B",
    (
        Column("method", "method", text=True),
        Column("accuracy", "accuracy", better="higher"),
        Column("group.sex.max_loss", "worst group loss (sex)", better="lower", digits=2),
    ),
    (
        (
            Cell("Fed_Avg"),
            Cell(0.8125, spread=0.0125, n=3, of=3, best=True),
            Cell(1.25, low=1.0, high=1.5, n=1, of=1),
        ),
        (Cell("100 % | #1"), Cell(math.nan, n=0, of=3), Cell(None, of=1)),
        (Cell("x"), Cell(0.5, spread=0.1, n=2, of=3), Cell(math.inf, n=1, of=1)),
    ),
    ("loss: 5 % of $x_1.",),
)


BEST = "{} marks the best value, and values that are equal to it as shown."


def test_text():
    assert SMALL.text() == (
        "A & B\n"
        "                                      worst group loss\n"
        "method                    accuracy               (sex)\n"
        "------------------------------------------------------\n"
        "Fed_Avg              0.812 ± 0.013*  1.25 [1.00, 1.50]\n"
        "100 % | #1               undefined                   –\n"
        "x           0.500 ± 0.100 (2 of 3)                   ∞\n"
        "\n"
        f"{BEST.format('A star')}\n"
        "loss: 5 % of $x_1.\n"
    )


def test_markdown():
    assert SMALL.markdown() == (
        "**A & B**\n"
        "\n"
        "| method | accuracy | worst group loss (sex) |\n"
        "| --- | ---: | ---: |\n"
        "| Fed\\_Avg | **0.812** ± 0.013 | 1.25 \\[1.00, 1.50\\] |\n"
        "| 100 % \\| \\#1 | undefined | – |\n"
        "| x | 0.500 ± 0.100 (2 of 3) | ∞ |\n"
        "\n"
        f"- {BEST.format('Bold')}\n"
        "- loss: 5 % of $x\\_1.\n"
    )


def test_latex():
    assert SMALL.latex() == (
        "\\begin{table}\n"
        "\\centering\n"
        "\\caption{A \\& B}\n"
        "\\begin{tabular}{lrr}\n"
        "\\toprule\n"
        "method & accuracy & worst group loss (sex) \\\\\n"
        "\\midrule\n"
        "Fed\\_Avg & \\textbf{0.812} $\\pm$ 0.013 & 1.25 {[}1.00, 1.50] \\\\\n"
        "100 \\% | \\#1 & undefined & -- \\\\\n"
        "x & 0.500 $\\pm$ 0.100 (2 of 3) & $\\infty$ \\\\\n"
        "\\bottomrule\n"
        "\\end{tabular}\n"
        "\n"
        "\\medskip\n"
        "\\begin{minipage}{\\linewidth}\\footnotesize\n"
        f"{BEST.format('Bold')} \\\\\n"
        "loss: 5 \\% of \\$x\\_1.\n"
        "\\end{minipage}\n"
        "\\end{table}\n"
    )


def test_latex_escapes_every_special_letter():
    table = Table("", (Column("m", "m", text=True),), ((Cell(r"\a{b}~^<c>&%$#_"),),))
    assert (
        r"\textbackslash{}a\{b\}\textasciitilde{}\textasciicircum{}\textless{}c\textgreater{}"
        r"\&\%\$\#\_ \\"
    ) in table.latex()


def test_csv_is_in_full_precision_with_spread_columns():
    assert SMALL.csv() == (
        "method,accuracy,accuracy std,accuracy n,"
        "group.sex.max_loss,group.sex.max_loss low,group.sex.max_loss high,group.sex.max_loss n\n"
        "Fed_Avg,0.8125,0.0125,3,1.25,1.0,1.5,1\n"
        "100 % | #1,nan,,0,,,,0\n"
        "x,0.5,0.1,2,inf,,,1\n"
    )
    third = comparison([plain(accuracy=1 / 3), plain(seed=1, accuracy=2 / 3)]).csv()
    rows = list(csv.DictReader(io.StringIO(third)))
    assert float(rows[0]["accuracy"]) == 0.5
    assert float(rows[0]["accuracy std"]) == pytest.approx(math.sqrt(1 / 18), abs=1e-15)


@pytest.mark.parametrize(("width", "as_rows"), [(200, True), (60, False)])
def test_rich_swaps_rows_and_columns_on_a_narrow_terminal(width, as_rows):
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(comparison(study()).rich())
    text = console.export_text()
    assert "0.824 ±" in text
    assert "…" not in text
    line = next(line for line in text.splitlines() if line.split()[:1] == ["method"])
    assert ("FedAvg" not in line) is as_rows


def test_rich_takes_names_literally():
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(comparison([plain("[red]x[/red]\x1b[31m", accuracy=0.5)]).rich())
    text = console.export_text()
    assert "[red]x[/red] [31m" in text
    assert "\x1b" not in text


def test_mean_and_sample_standard_deviation_over_seeds():
    records = [plain(seed=s, accuracy=a) for s, a in enumerate((0.7, 0.8, 0.9))]
    cell = comparison(records).rows[0][1]
    assert cell.value == pytest.approx(0.8)
    assert cell.spread == pytest.approx(0.1)
    assert (cell.n, cell.of) == (3, 3)


def test_best_follows_the_direction_and_equal_methods_are_both_marked():
    values = {"a": (0.8, 0.3), "b": (0.8, 0.2), "c": (0.7, 0.9)}
    records = [
        plain(label, seed, accuracy=accuracy + seed / 100, loss=loss + seed / 100)
        for label, (accuracy, loss) in values.items()
        for seed in range(3)
    ]
    table = comparison(records, ["accuracy", "loss"])
    assert [row[-2].best for row in table.rows] == [True, True, False]
    assert [row[-1].best for row in table.rows] == [False, True, False]


def test_one_method_alone_is_not_the_best():
    assert not any(cell.best for row in comparison([plain(accuracy=0.5)]).rows for cell in row)


def test_a_metric_without_direction_has_no_best():
    records = [plain("a", accuracy=0.5, odd=1.0), plain("b", accuracy=0.5, odd=2.0)]
    assert not any(row[1].best for row in comparison(records, ["odd"]).rows)


def test_nan_in_a_seed_is_noted_and_never_best():
    records = [
        plain(label, seed, accuracy=at)
        for label, each in {
            "a": (0.9, math.nan, 0.9),
            "b": (0.5, 0.7, 0.6),
            "c": (0.2, 0.4, 0.3),
        }.items()
        for seed, at in enumerate(each)
    ]
    table = comparison(records)
    assert [shown(row[1], table.columns[1]) for row in table.rows] == [
        "0.900 ± 0.000 (2 of 3)",
        "0.600 ± 0.100",
        "0.300 ± 0.100",
    ]
    assert [row[1].best for row in table.rows] == [False, True, False]
    assert any(note.startswith("(n of m)") for note in table.footnotes)


def test_nan_absent_and_null_are_distinguished():
    records = [plain("a", accuracy=math.nan, loss=1.0), plain("b", loss=2.0)]
    records.append(plain("c", accuracy=None, loss=3.0))  # as null comes back from JSON
    table = comparison(records, ["accuracy", "loss"])
    assert [shown(row[1], table.columns[1]) for row in table.rows] == [
        "undefined",
        "–",
        "undefined",
    ]


def test_a_diverged_seed_shows_as_infinite():
    found = stat([1.0, math.inf])
    assert (found.mean, found.spread, found.n) == (math.inf, None, 2)


def test_with_one_seed_the_interval_is_shown():
    run = plain(accuracy=0.8, **{"accuracy:low": 0.75, "accuracy:high": 0.85})
    table = comparison([run])
    assert parts(table.rows[0][1], table.columns[1]) == ("0.800", " [0.750, 0.850]")
    assert [c.name for c in table.columns] == ["method", "accuracy"]
    assert any("95% bootstrap interval over clients" in note for note in table.footnotes)


def test_groups_called_low_and_high_are_not_an_interval():
    run = plain(**{"accuracy": 0.8, "group.pay.loss.low": 0.1, "group.pay.loss.high": 0.2})
    assert [row[0].value for row in everything([run]).rows] == [
        "accuracy",
        "group.pay.loss.low",
        "group.pay.loss.high",
    ]


def test_default_columns():
    table = comparison(study())
    assert [column.name for column in table.columns] == [
        "method",
        "remark",
        "accuracy",
        "client.accuracy.worst10",
        "client.accuracy.std",
        "group.sex.demographic_parity",
        "group.sex.equal_opportunity",
        "group.sex.max_loss",
        "faa",
        "seconds",
        "bytes",
    ]
    assert [row[0].value for row in table.rows] == ["FedAvg", "q-FFL", "FairFed"]
    # 20 rounds of 420 kB down and 400 kB up
    assert shown(table.rows[0][-1], table.columns[-1]) == "16.40 ± 0.00"
    assert table.columns[-1].title == "traffic (MB)"


def test_regression_falls_back_to_loss():
    run = plain(**{"loss": 1.5, "client.loss.std": 0.2, "client.loss.worst10": 2.0})
    names = [column.name for column in comparison([run]).columns]
    assert names == ["method", "loss", "client.loss.worst10", "client.loss.std"]


def test_footnotes_define_each_metric_and_name_the_seeds():
    notes = "\n".join(comparison(study()).footnotes)
    assert "demographic-parity gap (sex): Over all clients' examples together" in notes
    assert "between the groups of sex" in notes
    assert "Means over 3 seeds (0, 1, 2)." in notes
    assert "± is the sample standard deviation over seeds" in notes


def test_clients_left_out_are_named():
    run = record(names=["A", "B", "C"])
    run.clients["size"][:] = [0 if name == "B" else 5 for name in run.clients["name"]]
    notes = comparison([run]).footnotes
    assert notes[-1].startswith("Left out of the metrics over clients")
    assert notes[-1].endswith(": B.")
    counted = comparison([plain(**{"accuracy": 0.5, "client.left_out": 2.0})]).footnotes
    assert counted[-1].endswith(": 2 clients.")


def test_unknown_column():
    with pytest.raises(ConfigError, match=r"unknown metric 'acuracy'.*Did you mean 'accuracy'"):
        comparison([plain(accuracy=0.5)], ["acuracy"])


def test_no_run():
    with pytest.raises(RunError, match="no run to report on"):
        comparison([])


def test_other_settings_under_one_label_are_other_methods():
    records = [
        record("q-FFL", 0, config={"seed": 0, "method": {"name": "qffl", "q": 1}}),
        record("q-FFL", 1, config={"seed": 1, "method": {"name": "qffl", "q": 1}}),
        record("q-FFL", 0, config={"seed": 0, "method": {"name": "qffl", "q": 5}}),
    ]
    assert [(m.label, len(m.runs)) for m in methods(records)] == [
        ("q-FFL (q=1)", 2),
        ("q-FFL (q=5)", 1),
    ]


def test_different_data_get_a_column_and_are_not_compared():
    records = [
        record("FedAvg", 0),
        record("q-FFL", 0),
        record("FedAvg", 0, source="compas", attribute="race"),
    ]
    table = comparison(records)
    assert [row[1].value for row in table.rows] == ["adult", "adult", "compas"]
    assert [row[0].value for row in table.rows] == ["FedAvg", "q-FFL", "FedAvg"]
    assert not any(cell.best for cell in table.rows[2])
    names = [column.name for column in table.columns]
    at = names.index("group.*.max_loss")
    assert [row[at].note for row in table.rows] == ["sex", "sex", "race"]
    assert any("on the same data" in note for note in table.footnotes)


def test_unfinished_runs():
    records = [
        record("FedAvg", 0),
        record("FedAvg", 1, rounds=3, complete=False),
        record("q-FFL", 0, rounds=5, complete=False),
        record("FairFed", 0),
    ]
    table = comparison(records)
    assert [row[0].value for row in table.rows] == ["FedAvg", "q-FFL", "FairFed"]
    assert str(table.rows[0][1].value).startswith("seed 1: 3 of 20 rounds")
    assert str(table.rows[1][1].value).startswith("5 of 20 rounds")
    assert not any(cell.best for cell in table.rows[1])
    assert table.rows[0][2].of == 1
    notes = "\n".join(table.footnotes)
    assert "FedAvg: seed 1 did not finish" in notes
    assert re.search("q-FFL: unfinished.* up to round 5", notes)
    assert "The number of rounds differs: FedAvg 20; q-FFL 5; FairFed 20." in notes


def test_a_seed_run_twice_counts_once():
    records = [plain(accuracy=0.1), plain(accuracy=0.5)]
    table = comparison(records)
    assert (table.rows[0][1].value, table.rows[0][1].of) == (0.5, 1)
    assert any("FedAvg: seed 0 was run again" in note for note in table.footnotes)


def test_everything_has_all_metrics():
    names = [row[0].value for row in everything(study()).rows]
    assert set(study()[0].metrics) | {"seconds", "bytes"} == set(names)


def test_reproduction():
    base = {"preset": "focus", "method": "FedAvg", "setting": "rotated", "metric": "accuracy"}
    rows = [
        base | {"paper": 0.819, "ours": 0.8072, "spread": 0.004, "seeds": 3},
        base | {"paper": None, "ours": 0.7, "spread": None, "seeds": [0]},
        base | {"paper": 78.87, "ours": 79.0, "spread": 0.5, "seeds": 5},
        base | {"paper": 0.5, "ours": None, "spread": None, "seeds": 0},
    ]
    assert (
        reproduction(rows)
        .text()
        .startswith(
            "Published numbers and ours\n"
            "preset  method  setting  metric    paper           ours  difference  seeds\n"
            "--------------------------------------------------------------------------\n"
            "focus   FedAvg  rotated  accuracy  0.819  0.807 ± 0.004      -0.012      3\n"
            "focus   FedAvg  rotated  accuracy      –          0.700           –      1\n"
            "focus   FedAvg  rotated  accuracy  78.87   79.00 ± 0.50       +0.13      5\n"
            "focus   FedAvg  rotated  accuracy   0.50              –           –      0\n"
            "\n"
        )
    )
    notes = reproduction(rows).footnotes
    assert [note.partition(":")[0] for note in notes if "–" in note] == [
        "– in column paper",
        "– in column ours",
    ]
    with pytest.raises(ConfigError, match="ours, spread, seeds"):
        reproduction([base | {"paper": 1}])
