"""The server never sees a row: in other processes, by size, by content and by its source."""

import ast
import inspect
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from isonomy.data.tables import Roles, agreement, own, phases, quantiles
from isonomy.data.tables import fit as fitting
from isonomy.data.tables.agreement import agree
from isonomy.data.tables.files import find
from isonomy.data.tables.fit import fit
from isonomy.data.tables.local_clients import LocalClients
from isonomy.data.tables.sources import Files

from .client import digest
from .making import folder, people, take

FRACTIONS = (0.6, 0.2, 0.2)


def study(sizes=(40, 300, 75), seed=0):
    """Clients that differ in size, offset and in what they lack; a file each."""
    out = {}
    for k, rows in enumerate(sizes):
        rng = np.random.default_rng((seed, k))
        table = people(rows, seed=int(rng.integers(1 << 30)))
        table["wage"] = (1e9 + 50 * k + rng.normal(size=rows)).tolist()
        table["score"] = [None if rng.random() < 0.2 else v for v in table["score"]]
        table["ill"] = [None if rng.random() < 0.05 else v for v in table["ill"]]
        table["rest"] = [None] * rows if k == 1 else rng.normal(size=rows).tolist()
        out[f"hospital {k}.{'csv' if k % 2 else 'parquet'}"] = table
    return out


ROLES = Roles(
    label="ill",
    protected=("sex", "age", "sex*age"),
    bins={"age": 4},
    impute="median",
    indicate=True,
    rare=3,
)


class Recording(LocalClients):
    """Clients of a simulation, and all that they replied."""

    def __init__(self, source):
        super().__init__(source)
        self.replies = []

    def __call__(self, phase, message):
        out = super().__call__(phase, message)
        self.replies += [(phase.__name__, json.dumps(reply)) for reply in out]
        return out


def recorded(place, roles, **files):
    """What `fit` makes of a folder, and the replies it got."""
    ask = Recording(Files(find(place)[0]))
    names = [path.stem for path in find(place)[0]]
    return fit(ask, names, roles, seed=3, fractions=FRACTIONS), ask.replies


# --- in other processes --------------------------------------------------------------------------


class Elsewhere:
    """Asks clients that are processes, each with one file in a folder of its own."""

    def __init__(self, paths, place):
        self.processes = []
        for number, path in enumerate(paths):
            home = place / f"home {number}"
            home.mkdir()
            shutil.move(path, home / path.name)
            script = Path(__file__).with_name("client.py")
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, str(script), str(home / path.name), str(number)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    cwd=home,
                )
            )

    def __call__(self, phase, message):
        return self.send(phase.__name__, message)

    def send(self, name, message):
        line = json.dumps({"phase": name, "message": message}, allow_nan=False) + "\n"
        for process in self.processes:
            process.stdin.write(line)
            process.stdin.flush()
        return [json.loads(process.stdout.readline()) for process in self.processes]

    def close(self):
        for process in self.processes:
            process.stdin.close()
            process.stdout.close()
            assert process.wait(timeout=30) == 0


def test_clients_in_other_processes_give_the_same_federation(tmp_path):
    place = folder(tmp_path / "study", study())
    here = own(str(place), ROLES, seed=3, fractions=FRACTIONS)
    paths, _ = find(place)
    ask = Elsewhere(paths, tmp_path)
    assert not list(place.iterdir())  # this process has nothing left to look at
    names = [path.stem for path in paths]
    there = fit(ask, names, ROLES, seed=3, fractions=FRACTIONS)
    assert there.preprocessing.model_dump(mode="json") == here.preprocessing
    assert (
        there.sizes
        == np.stack([here.sizes(s).numpy() for s in ("train", "validation", "test")], 1).tolist()
    )
    assert tuple(there.warnings) == here.warnings
    digests = ask.send("prepare", here.preprocessing)
    ask.close()
    for k, found in enumerate(digests):
        at = slice(int(here.ranges[k, 0, 0]), int(here.ranges[k, -1, 1]))
        for part in ("x", "y", "groups"):
            assert found[part] == digest(getattr(here, part)[at].numpy()), (k, part)


# --- by size -------------------------------------------------------------------------------------


def grown(place, roles, sizes, seed=0):
    """All replies with some rows, and with ten times as many of the same kind."""
    out = []
    for times in (1, 10):
        target = folder(place / str(times), study([rows * times for rows in sizes], seed))
        out.append([json.loads(text) for _, text in recorded(target, roles)[1]])
    return out


def leaves(reply):
    """How many numbers and texts a reply holds."""
    if isinstance(reply, dict | list):
        return sum(map(leaves, reply.values() if isinstance(reply, dict) else reply))
    return 1


def insist_on_size(before, after):
    """As many numbers, about (ranks share marks by chance); the counts have a digit more."""
    numbers = [sum(map(leaves, replies)) for replies in (before, after)]
    assert numbers[1] < 1.1 * numbers[0], f"replies grew from {numbers[0]} to {numbers[1]} values"
    assert len(json.dumps(after)) < 1.25 * len(json.dumps(before))


@pytest.mark.parametrize(
    "roles",
    [
        ROLES,
        Roles(label="ill", protected=("sex",)),
        Roles(label="wage", protected=("age*job",), bins={"age": (30, 60)}),
        Roles(label="wage", task="regression", protected=("score",), bins={"score": 3}),
    ],
    ids=["classes", "plain", "regression", "protected reals"],
)
def test_replies_do_not_grow_with_rows(tmp_path, roles):
    insist_on_size(*grown(tmp_path, roles, (60, 300)))


def test_a_reply_with_rows_in_it_is_caught_by_its_size(tmp_path, monkeypatch):
    honest = phases.survey

    def survey(message, client):
        reply, kept = honest(message, client)
        ages = client.table.columns["age"].values
        return reply | {"extra": ages[kept == 0].tolist()}, kept

    monkeypatch.setattr(phases, "survey", survey)
    before, after = grown(tmp_path, Roles(label="ill", protected=("sex",)), (60, 300))
    with pytest.raises(AssertionError, match="replies grew"):
        insist_on_size(before, after)


@pytest.mark.parametrize("leak", ["array", "table", "nan"])
def test_a_reply_that_is_no_json_does_not_pass(tmp_path, monkeypatch, leak):
    place = folder(tmp_path, study())

    def survey(message, client):
        values = client.table.columns["age"].values
        return {"array": {"a": values}, "table": {"a": client.table}, "nan": {"a": float("nan")}}[
            leak
        ], None

    monkeypatch.setattr(phases, "survey", survey)
    with pytest.raises((TypeError, ValueError), match="JSON"):
        recorded(place, ROLES)


# --- by content ----------------------------------------------------------------------------------


def test_what_is_left_out_is_in_no_reply(tmp_path):
    """Identifiers, free texts, dates, what is dropped: not one value of them."""
    rng = np.random.default_rng(5)
    secrets, files = [], {}
    for k, rows in enumerate((30, 45, 60)):
        marks = [f"secret-{k}-{i}-{rng.integers(1 << 40):x}" for i in range(rows)]
        ids = rng.integers(10**8, 10**9, rows).tolist()
        table = people(rows, seed=k)
        table |= {
            "patient_id": ids,
            "name": marks,
            "notes": [f"She said {mark}, and left." for mark in marks],
            "ward": [f"ward {mark}" if i % 2 else "ward" for i, mark in enumerate(marks)],
            "born": [f"19{i % 90 + 10}-01-{k + 10}" for i in range(rows)],
        }
        secrets += [*marks, *map(str, ids), *table["born"]]
        files[f"{k}.csv"] = table
    roles = Roles(label="ill", protected=("sex",), drop=("ward",))
    fitted, replies = recorded(folder(tmp_path, files), roles)
    assert list(fitted.preprocessing.table.features) == ["age", "score", "job"]
    assert len(fitted.warnings) == 4
    said = "\n".join(text for _, text in replies)
    assert "clerk" in said  # a category that is a feature is reported
    assert not [secret for secret in secrets if secret in said]
    assert not [secret for secret in secrets if secret in "".join(fitted.warnings)]


def test_protected_values_and_labels_are_told_once_and_counted(tmp_path):
    """What groups and classes there are has to be known; who is in which is not."""
    files = study()
    for table in files.values():
        table["sex"] = [{"F": "zeta", "M": "theta"}[s] for s in table["sex"]]
        table["ill"] = [None if v is None else ("omega", "sigma")[v] for v in table["ill"]]
    roles = Roles(label="ill", protected=("sex",), positive="sigma")
    _, replies = recorded(folder(tmp_path, files), roles)
    for phase, reply in replies:
        words = [word for word in ("zeta", "theta", "omega", "sigma") if word in reply]
        if phase != "values":
            assert words == []
            continue
        told = json.loads(reply)
        assert set(told) == {"ill", "sex"}
        for one in told.values():
            assert set(one) <= {"missing", "values"}
            assert all(isinstance(n, int) for n in one["values"].values())
            assert len(one["values"]) == 2
    assert [phase for phase, _ in replies].count("values") == len(files)


def test_no_label_of_a_regression_and_no_cut_protected_number_is_told(tmp_path):
    """But for the smallest and largest of what is cut into equally large groups."""
    files = study((25, 40))
    rng = np.random.default_rng(0)
    cost, born = [], []
    for table in files.values():
        rows = len(table["ill"])
        table["cost"] = rng.uniform(1000, 9000, rows).round(4).tolist()
        table["born"] = rng.uniform(1920, 2000, rows).round(4).tolist()
        cost, born = cost + table["cost"], born + table["born"]
    place = folder(tmp_path, files)
    for cut, ends in (((1950, 1970), set()), (3, {min(born), max(born)})):
        roles = Roles(label="cost", protected=("born",), bins={"born": cut}, drop=("ill",))
        _, replies = recorded(place, roles)
        said = "\n".join(text for _, text in replies)
        assert not [value for value in cost if repr(value) in said]
        found = {value for value in born if repr(value) in said}
        spans = {reply for phase, reply in replies if phase == "span"}
        assert found == {v for text in spans for v in json.loads(text).values() if v in born}
        assert ends <= found
        assert len(found) <= 2 * len(files)


# --- by source -----------------------------------------------------------------------------------


def names_in(node):
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} | {
        n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)
    }


@pytest.mark.parametrize("module", [fitting, agreement, quantiles])
def test_the_servers_modules_cannot_open_a_table(module):
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    imports = [n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
    found = {getattr(n, "module", None) or n.names[0].name: n.names for n in imports}
    assert set(found) <= {
        "__future__",
        "collections.abc",
        "dataclasses",
        "difflib",
        "math",
        "numpy",
        "struct",
        "typing",
        "isonomy.data.tables",
        "isonomy.data.tables.agreement",
        "isonomy.data.tables.columns",
        "isonomy.data.tables.phases",
        "isonomy.data.tables.preprocessing",
        "isonomy.data.tables.quantiles",
        "isonomy.data.tables.roles",
        "isonomy.errors",
    }
    assert [n.name for n in found["isonomy.data.tables"]] == ["phases"]
    if "isonomy.data.tables.columns" in found:
        assert [n.name for n in found["isonomy.data.tables.columns"]] == ["numbers_first"]
    for node in tree.body:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            used = names_in(node) & {"Source", "LocalClients", "Client", "open", "kept", "client"}
            assert not used, (ast.unparse(node)[:60], used)


def test_the_server_is_given_a_way_to_ask_and_names():
    given = inspect.signature(fit).parameters
    assert list(given) == ["ask", "names", "roles", "seed", "fractions", "schema", "least"]
    assert list(inspect.signature(agree).parameters) == ["ask", "names", "roles"]
    called = []

    def ask(phase, message):
        called.append((phase, json.loads(json.dumps(message, allow_nan=False))))
        raise KeyError("nobody answers")

    with pytest.raises(KeyError, match="nobody answers"):
        fit(ask, ["a", "b"], ROLES, seed=0, fractions=FRACTIONS)
    assert called == [(phases.look, {})]


def test_a_message_holds_no_client_and_a_phase_changes_nothing(tmp_path):
    """The same message to all; asked again, a client says the same."""
    files = study((30, 50))
    place = folder(tmp_path, files)
    source = Files(find(place)[0])
    before = {k: take_all(source.open(k)) for k in range(2)}
    first, one = recorded(place, ROLES)
    second, other = recorded(place, ROLES)
    assert one == other
    assert first.preprocessing == second.preprocessing
    for k in range(2):
        assert take_all(source.open(k)) == before[k]


def take_all(table):
    return {
        name: (c.kind, getattr(c, "values", getattr(c, "codes", np.zeros(0))).tobytes())
        for name, c in table.columns.items()
    }


def test_the_order_of_rows_is_in_no_reply(tmp_path):
    """With a split that the table tells, shuffled rows give the same replies to the byte."""
    files = study((80, 60))
    shuffled = {}
    for name, table in files.items():
        rows = len(table["ill"])
        table["part"] = [("train", "test", "train")[i % 3] for i in range(rows)]
        table["wage"] = [round(w - 1e9) for w in table["wage"]]  # sums of whole numbers are exact
        table["score"] = [None if s is None else round(4 * s) for s in table["score"]]
        table["rest"] = [None if s is None else round(4 * s) for s in table["rest"]]
        shuffled[name] = take(table, np.random.default_rng(1).permutation(rows))
    roles = Roles(label="ill", protected=("sex",), split="part", impute="median", rare=2)
    _, one = recorded(folder(tmp_path / "one", files), roles)
    _, other = recorded(folder(tmp_path / "other", shuffled), roles)
    close = [
        same_numbers(json.loads(a), json.loads(b))
        for (_, a), (_, b) in zip(one, other, strict=True)
    ]
    assert all(close)


def same_numbers(a, b):
    """Equal, but for the rounding of a sum in another order."""
    if isinstance(a, dict):
        return set(a) == set(b) and all(same_numbers(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same_numbers, a, b))
    return a == b if not isinstance(a, float) else a == pytest.approx(b, rel=1e-12)
