"""Search spaces are what they say, and a search is a function of its seed and what it was told."""

from __future__ import annotations

import math
import random
from typing import Any

import optuna
import pytest

from isonomy.algorithms import make, registry
from isonomy.config.schema import Config, parse
from isonomy.core.options import Option, option, options_of
from isonomy.core.search_space import Grid, Range
from isonomy.core.work import Work
from isonomy.errors import ConfigError, RunError
from isonomy.studies.optuna_study import JOURNAL, distribution
from isonomy.studies.pruning import STARTUP, Pruned
from isonomy.studies.search import Search, check_fixed, label_of, space_of

LOCAL_ONLY = {"blend", "fedavg", "local", "mapper"}  # their options are not tuned


def drawn(kind: type, draw: random.Random) -> dict[str, Any]:
    """One value for each option of the class that has a search space."""
    found = {}
    for name, one in options_of(kind).items():
        if isinstance(one.search, Grid):
            found[name] = draw.choice(one.search.values)
        elif one.search is not None:
            low, high = one.search.low, one.search.high
            if one.annotation is int:
                found[name] = draw.randint(int(low), int(high))
            elif one.search.log:
                found[name] = min(high, max(low, low * (high / low) ** draw.random()))
            else:
                found[name] = draw.uniform(low, high)
    return found


@pytest.mark.parametrize("name", registry())
def test_every_value_of_a_search_space_is_allowed(name):
    kind, draw = registry()[name], random.Random(0)
    spaces = {key: one.search for key, one in options_of(kind).items() if one.search}
    assert bool(spaces) == (name not in LOCAL_ONLY)
    for key, space in spaces.items():
        for end in space.ends:
            make(name, {key: end})
    for _ in range(20):
        make(name, drawn(kind, draw))


@pytest.mark.parametrize("name", registry())
def test_defaults_are_in_the_search_space(name):
    """Otherwise the sampler could not learn from the first trial."""
    for key, one in options_of(registry()[name]).items():
        assert one.search is None or one.search.contains(one.default), key


def test_local_training_is_tuned_for_every_method():
    for one in options_of(Work).values():
        assert one.search is None or one.search.contains(one.default)
    for name in registry():
        keys = space_of(parse({"algorithm": name}))
        assert {"local.lr", "local.optimiser"} <= keys.keys()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Range(1, 1),
        lambda: Range(0, math.inf),
        lambda: Range(0, 1, log=True),
        lambda: Grid((1,)),
        lambda: Grid((1, 1)),
    ],
)
def test_a_search_space_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match="give"):
        wrong()


def test_the_type_of_a_range_is_that_of_its_option():
    space = Range(1, 9)
    whole, real = (distribution(Option(one, "", search=space), space) for one in (3, 3.0))
    assert isinstance(whole, optuna.distributions.IntDistribution)
    assert isinstance(real, optuna.distributions.FloatDistribution)
    assert option(3, "", search=space).metadata["search"] is space
    assert not Grid((0, 1)).contains(False)
    assert not Range(0, 1).contains(None)


# --- asking and telling --------------------------------------------------------------------------

FEDPROX = parse({"rounds": 4, "algorithm": {"name": "fedprox", "mu": 1.0}})


def value(config: Config) -> float:
    """Best at lr = 0.01."""
    return -((math.log10(config.local.lr) + 2) ** 2)


def tell(search: Search, asked: Config) -> None:
    if asked.local.lr > 0.7:
        search.tell(asked, failed="diverged")
    else:
        search.tell(asked, {"accuracy": value(asked)}, curve={2: value(asked) - 1})


def test_the_first_trial_is_the_default_and_later_ones_are_drawn():
    search = Search(FEDPROX, ["accuracy"])
    first, second = search.ask(), search.ask()
    assert first.algorithm.options == {"mu": 1.0}
    assert (first.local, first.rounds, first.evaluate.split) == (Work(), 4, "validation")
    assert (first.label, second.label) == ("fedprox, trial 0", "fedprox, trial 1")
    assert first.series == second.series == "fedprox"
    assert second.local != first.local
    assert space_of(FEDPROX).keys() == search.trials[1].parameters.keys()


def test_a_search_is_the_same_however_often_it_is_interrupted(tmp_path):
    whole = Search(FEDPROX, ["accuracy"], seed=3)
    for _ in range(8):
        tell(whole, whole.ask())
    for _ in range(8):
        Search(FEDPROX, ["accuracy"], 3, tmp_path).ask()  # ends before it is told anything
        again = Search(FEDPROX, ["accuracy"], 3, tmp_path)
        tell(again, again.ask())
    with open(tmp_path / JOURNAL, "ab") as file:
        file.write(b'{"op_code": 4, "study')  # killed while it wrote a line
    found = Search(FEDPROX, ["accuracy"], 3, tmp_path)
    assert [t.plain() for t in found.trials] == [t.plain() for t in whole.trials]
    assert [t.config for t in found.trials] == [t.config for t in whole.trials]
    found.ask()
    assert len(Search(FEDPROX, ["accuracy"], 3, tmp_path).trials) == 9


def test_another_seed_draws_other_trials():
    def parameters(seed):
        search = Search(FEDPROX, ["accuracy"], seed)
        return [search.ask().local.lr for _ in range(3)]

    assert parameters(0) == parameters(0)
    assert parameters(0)[0] == parameters(1)[0]
    assert parameters(0)[1:] != parameters(1)[1:]


def test_it_learns_from_what_it_was_told():
    late: list[float] = []
    for seed in range(3):
        search = Search(FEDPROX, ["accuracy"], seed)
        for _ in range(15):
            tell(search, search.ask())
        (best,) = search.best()
        told = [t.values["accuracy"] for t in search.trials if t.values]
        assert value(best.config) == max(told)
        late += [abs(math.log10(t.config.local.lr) + 2) for t in search.trials[7:]]
    assert sum(late) / len(late) < 0.65  # at random, from 0.001 to 1, it would be 0.83


def test_a_failed_trial_counts_as_the_worst_for_the_sampler():
    search = Search(FEDPROX, ["accuracy", "loss"])
    for told in ([0.5, 1.0], [0.4, 2.0], None):
        search.tell(search.ask(), told, failed=None if told else "diverged")
    assert [t.values for t in search._history()] == [[0.5, 1.0], [0.4, 2.0], [0.4, 2.0]]


def test_failed_and_undefined_trials_are_kept_and_not_best():
    search = Search(FEDPROX, ["accuracy"])
    search.tell(search.ask(), failed="training diverged")
    search.tell(search.ask(), {"accuracy": math.nan})
    search.tell(search.ask(), {"loss": 1.0})
    search.tell(search.ask(), [0.5])
    assert [t.state for t in search.trials] == ["failed", "failed", "failed", "complete"]
    assert search.trials[0].why == "training diverged"
    assert "accuracy is not defined" in search.trials[1].why
    assert [t.number for t in search.best()] == [3]
    with pytest.raises(ConfigError, match="neither values nor a reason"):
        search.tell(search.ask())
    with pytest.raises(ConfigError, match="not a trial that was asked"):
        search.tell(FEDPROX, [0.5])


def test_several_objectives_have_a_front():
    search = Search(FEDPROX, ["accuracy", "group.sex.demographic_parity"])
    for values in ([0.8, 0.3], [0.7, 0.1], [0.7, 0.2], [0.9, 0.4]):
        search.tell(search.ask(), values)
    assert [t.number for t in search.best()] == [0, 1, 3]
    for _ in range(STARTUP):
        search.tell(search.ask(), [0.5, 0.5])
    search.pruning().round(1, 4, {"accuracy": 0.0})


def test_a_value_outside_the_space_is_the_first_trial_all_the_same():
    config = parse({"algorithm": {"name": "fedprox", "mu": 50.0}, "local": {"lr": 7.0}})
    search = Search(config, ["accuracy"])
    first = search.ask()
    assert (first.algorithm.options["mu"], first.local.lr) == (50.0, 7.0)
    assert search.trials[0].parameters["algorithm.mu"] == 50.0
    search.tell(first, [0.5])
    assert search.ask().local.lr <= 1


def test_keys_can_be_fixed():
    search = Search(FEDPROX, ["accuracy"], fixed=["local.optimiser", "algorithm.mu"])
    found = [search.ask() for _ in range(6)]
    assert {(c.local.optimiser, c.algorithm.options["mu"]) for c in found} == {("sgd", 1.0)}
    check_fixed([FEDPROX], ["algorithm.mu"])
    with pytest.raises(ConfigError, match=r"unknown key to fix 'algorithm\.nu'"):
        check_fixed([FEDPROX], ["algorithm.nu"])


def test_options_that_refuse_the_space_are_a_sentence():
    minmax = {"name": "pffl", "constraint": "minmax", "beta": 0.0, "B": 1.0, "zeta": 0.0}
    search = Search(parse({"algorithm": minmax}), ["accuracy"])
    search.ask()
    with pytest.raises(ConfigError, match=r"minmax.*--fix"):
        search.ask()
    fixed = ["algorithm.B", "algorithm.zeta"]
    other = Search(parse({"algorithm": minmax}), ["accuracy"], fixed=fixed)
    assert [other.ask().algorithm.options for _ in range(2)][1] == minmax_options(minmax)


def minmax_options(table):
    return {key: value for key, value in table.items() if key != "name"}


def test_draws_that_an_algorithm_refuses_are_drawn_again():
    config = parse({"algorithm": {"name": "fair_fate", "most": 0.3, "lambda0": 0.2}})
    search = Search(config, ["accuracy"], fixed=["algorithm.most"])
    for _ in range(8):
        search.tell(search.ask(), [0.5])
    assert {t.parameters["algorithm.lambda0"] for t in search.trials[1:]} == {0.1}


def test_a_folder_of_another_search_is_refused(tmp_path):
    Search(FEDPROX, ["accuracy"], 0, tmp_path)
    longer = FEDPROX.model_copy(update={"rounds": 9})
    for config, objectives, seed, what in [
        (longer, ["accuracy"], 0, "config"),
        (FEDPROX, ["loss"], 0, "objectives"),
        (FEDPROX, ["accuracy"], 1, "seed"),
    ]:
        with pytest.raises(RunError, match=f"another {what}.*--overwrite"):
            Search(config, objectives, seed, tmp_path)
    (tmp_path / JOURNAL).write_text("nothing\nof a journal\n")
    with pytest.raises(RunError, match=r"trials\.journal' cannot be read"):
        Search(FEDPROX, ["accuracy"], 0, tmp_path)


@pytest.mark.parametrize(
    ("objectives", "words"),
    [
        ([], "no objective"),
        (["accurracy"], "Did you mean 'accuracy'"),
        (["size"], "neither more nor less"),
        (["seconds"], "is a cost of a run"),
        (["accuracy", "accuracy"], "given twice"),
    ],
)
def test_objectives_are_checked(objectives, words):
    with pytest.raises(ConfigError, match=words):
        Search(FEDPROX, objectives)


def test_labels_leave_out_hyper_parameters():
    assert label_of(FEDPROX) == "fedprox"
    assert label_of(FEDPROX.model_copy(update={"label": "fedprox (mu=1.0)"})) == "fedprox"
    assert label_of(FEDPROX.model_copy(update={"label": "Prox"})) == "Prox"


@pytest.mark.parametrize("higher", [True, False])
def test_pruning_is_optunas_median_rule(higher):
    objective, sign = ("accuracy", 1.0) if higher else ("loss", -1.0)
    search = Search(FEDPROX, [objective])
    for i in range(STARTUP):
        assert search.pruning().earlier == () or len(search.pruning().earlier) < STARTUP
        search.pruning().round(2, 4, {objective: -sign * 99})  # too early to prune
        search.tell(search.ask(), [sign * i], curve={2: sign * i})
    median = sign * 2
    search.pruning().round(2, 4, {objective: median})
    search.pruning().round(4, 4, {objective: median - sign})
    search.pruning().round(2, 4, None)
    with pytest.raises(Pruned, match=r"2, 4") as ended:
        search.pruning().round(2, 4, {objective: median - sign * 0.1})
    assert ended.value.why == "worse than the median of earlier trials after round 2 of 4"
    asked = search.ask()
    search.tell(asked, pruned=ended.value.why, curve={2: median - sign * 0.1})
    assert search.trials[-1].state == "pruned"
    assert search.trials[-1].number not in [t.number for t in search.best()]
    tell_again = search.ask()  # the sampler reads pruned trials too
    search.tell(tell_again, pruned="early", curve={})
    assert search.trials[-1].state == "pruned"


def test_optuna_logs_nothing(capsys):
    level = optuna.logging.get_verbosity()
    Search(FEDPROX, ["accuracy"]).ask()
    assert optuna.logging.get_verbosity() == level
    assert capsys.readouterr().err == ""
