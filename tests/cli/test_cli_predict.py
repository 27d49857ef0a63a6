"""`isonomy predict`: rows in, predictions out."""

import csv
import io

import numpy as np
import pytest


@pytest.fixture
def run(place, cli):
    """A run on four tables, the last of which answers the other way round."""
    rng = np.random.default_rng(0)
    (place / "sites").mkdir()
    for k in range(4):
        age = rng.normal(40, 10, 200)
        yes = (age > 40) ^ (k == 3)
        rows = [f"{a:.2f},{'yes' if b else 'no'}" for a, b in zip(age, yes, strict=True)]
        (place / "sites" / f"site-{k}.csv").write_text("\n".join(["age,answer", *rows]) + "\n")
    (place / "own.toml").write_text(
        """
        rounds = 10
        data = { path = "sites", label = "answer", positive = "yes" }
        model = "logistic"
        algorithm = { name = "focus", models = 2 }
        local = { epochs = 3, lr = 0.5 }
        evaluate = { every = 10, bootstrap = 0 }
        excess = { clusters = "none" }
        """
    )
    cli("run", "own.toml", "--to", "run", "--no-report")
    (place / "new.csv").write_text("age\n10\n70\n")
    labelled = "\n".join(f"{a},{'no' if a > 40 else 'yes'}" for a in range(80))
    (place / "mine.csv").write_text(f"age,answer\n{labelled}\n")
    return place


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_for_a_client_of_the_run(run, cli):
    got = rows(cli("predict", "run", "new.csv", "--client", "site-0").stdout)
    assert [row["prediction"] for row in got] == ["no", "yes"]
    for row in got:
        assert float(row["p(no)"]) + float(row["p(yes)"]) == pytest.approx(1, abs=1e-4)
    got = rows(cli("predict", "run", "new.csv", "--client", "site-3").stdout)
    assert [row["prediction"] for row in got] == ["yes", "no"]


def test_for_a_new_client_into_a_file(run, cli):
    result = cli("predict", "run", "new.csv", "--own", "mine.csv", "--to", "out/made.csv")
    assert "predictions: out/made.csv" in result.stderr
    got = rows((run / "out" / "made.csv").read_text())
    assert [row["prediction"] for row in got] == ["yes", "no"]


def test_what_is_refused(run, cli, refused):
    both = ("--client", "site-0", "--own", "mine.csv")
    assert "give one of them" in refused("predict", "run", "new.csv", *both)
    assert "examples" in refused("predict", "run", "new.csv")
    assert "Did you mean 'site-0'" in refused("predict", "run", "new.csv", "--client", "site0")
    who = ("--client", "site-0")
    assert "'none.csv'" in refused("predict", "run", "none.csv", *who)
    cli("run", "tiny.toml", "--to", "plain", "--no-report")
    assert "'x1'" in refused("predict", "plain", "new.csv")
