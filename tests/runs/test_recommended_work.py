"""The local work that a method recommends, where the config leaves it open."""

from __future__ import annotations

import isonomy
from isonomy import algorithms
from isonomy.config.schema import parse
from isonomy.core.work import Work
from isonomy.runs.build import with_recommended_work
from isonomy.studies.compare import methods

DATA = {"name": "synthetic", "clients": 3}


def test_what_the_config_sets_comes_first() -> None:
    open_ = parse({"algorithm": {"name": "propfair", "M": 3.0}, "local": {"batch": 8}})
    made = with_recommended_work(open_).local
    assert (made.lr, made.batch, made.unset) == (3.0 * Work().lr, 8, frozenset())
    assert with_recommended_work(open_).excess.lr == Work().lr  # not that of the method
    given = parse({"algorithm": "propfair", "local": {"lr": 0.1}})
    assert with_recommended_work(given).local.lr == 0.1


def test_other_methods_keep_the_defaults() -> None:
    assert with_recommended_work(parse({"algorithm": "fedavg"})).local == Work()


def test_each_method_of_a_comparison_has_its_own() -> None:
    config = parse(
        {
            "data": DATA,
            "compare": {"methods": [{"algorithm": "fedavg"}, {"algorithm": "q_fedsgd"}]},
        }
    )
    rates = {m.label: with_recommended_work(m.config).local.lr for m in methods(config)}
    assert list(rates.values()) == [Work().lr, algorithms.make("q_fedsgd").recommended_work()["lr"]]


def test_recommended_keys_are_keys_of_the_local_work() -> None:
    for name, kind in algorithms.registry().items():
        wanted = kind().recommended_work()
        assert Work.of_table({}).filled(wanted) == Work.of_table(wanted), name


def test_a_run_holds_and_notes_it(tmp_path) -> None:
    config = isonomy.make_config(
        data=DATA, algorithm="afl", rounds=1, excess="none", evaluate={"bootstrap": 0}
    )
    record = isonomy.run(config, tmp_path / "run")
    assert record.config["local"]["lr"] == 1.0
    assert any("Local work as 'afl' recommends it: lr = 1.0" in note for note in record.notes)
    assert isonomy.load(tmp_path / "run")[0].config["local"]["batch"] == Work().batch
