"""What a config's differential privacy covers, and what it refuses.

Everything that leaves clients is noised and charged to the ledger, or refused, or left out, or, if
`privacy.allow` names it, left as it is and listed under "not covered".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from isonomy.config.schema import Config
from isonomy.core.algorithm import Algorithm
from isonomy.core.capabilities import GivesVerdict, LearnsFront
from isonomy.core.task import Task
from isonomy.data.federation import Federation
from isonomy.engines.base import sample
from isonomy.errors import ConfigError, unknown
from isonomy.privacy.example_plan import example_terms, rehearse_examples
from isonomy.privacy.ledger import Terms
from isonomy.privacy.plan import Other, client_terms
from isonomy.privacy.preprocessing import SHARES, share_of, whole_multiplier
from isonomy.privacy.rehearsal import rehearse
from isonomy.privacy.shares import check_shares
from isonomy.runs import preparation

ALLOWED = {
    "preprocessing": "the preparation of the data was fitted without noise: means, ranges, "
    "categories or words of the clients' data",
    "evaluation": "metrics, and the table of clients, were measured without noise",
    "validation": "choices were made on validation examples without noise: thresholds, rules of "
    "decisions, points of fronts",
    "excess": "excess risk and FAA were measured without noise",
    "description": "the description of the data, with sizes and groups of clients, is exact",
    "verdict": "the method's verdict was measured without noise",
}
"""What `privacy.allow` may name, and what the ledger then says."""


def private_config(config: Config) -> Config:
    """The config without what privacy leaves out: excess risk, unless it is allowed."""
    if config.privacy.level == "none" or "excess" in config.privacy.allow:
        return config
    return config.model_copy(
        update={"excess": config.excess.model_copy(update={"clusters": "none"})}
    )


def terms_of(
    config: Config, algorithm: Algorithm, task: Task, federation: Federation, *, remote: bool
) -> Terms | None:
    """The terms of the config's differential privacy; None without any.

    Raises ConfigError for what cannot be private.
    """
    options = config.privacy
    if options.level == "none":
        _refuse_unused(config)
        return None
    check(config, remote=remote)
    _check_coverage(config, algorithm, federation)
    other = beside_training(config)
    clients = len(federation)
    count, how = config.cohort.size or clients, config.cohort.sampling

    def sampled(round: int) -> Tensor:
        return sample(federation, count, seed=config.seed, round=round, how=how)

    if options.level == "example":
        training = rehearse_examples(algorithm, task, federation, config.local, options.batches)
        return example_terms(
            options,
            training,
            federation,
            config.local,
            rounds=config.rounds,
            sampled=sampled,
            other=other,
        )
    if config.secure.enabled:  # sums of discrete noise have a bound by RDP only
        options = options.model_copy(update={"accountant": "rdp"})
    return client_terms(
        options,
        algorithm,
        rehearse(algorithm, task, federation, config.local),
        clients=clients,
        rounds=config.rounds,
        cohort=count,
        poisson=how == "poisson",
        sampled=sampled,
        other=other,
    )


def evaluations(config: Config) -> int:
    """How many noisy evaluations a private run makes."""
    options, rounds, every = config.privacy, config.rounds, config.evaluate.every
    if options.level == "none" or "evaluation" in options.allow or options.evaluate == "never":
        return 0
    return 1 if options.evaluate == "last" else -(-rounds // every)


def counts_few(config: Config) -> bool:
    """Whether only some validation and test examples of each client are used for metrics."""
    return config.privacy.level == "client" and "evaluation" not in config.privacy.allow


def beside_training(config: Config) -> Other:
    """What a private run releases beside training: its preprocessing and its evaluations.

    At level 'example' an evaluation on other examples than those of training does not add to
    what training releases about an example, so it may use the whole budget.
    """
    options, number = config.privacy, evaluations(config)
    prepared = tuple(float(one["multiplier"]) for one in preparation.releases(config))
    reserved = preparation.reserved(config)
    if not number:
        return Other(prepared, reserved=reserved)
    apart = options.level == "example" and config.evaluate.split != "train"
    share = 1.0 if apart else share_of(options, "evaluation")
    each = whole_multiplier(options) * (number / share) ** 0.5
    return Other(prepared, () if apart else (each,) * number, each, reserved)


def _refuse_unused(config: Config) -> None:
    """Raise ConfigError if a key is set that has no effect without a level."""
    given = config.privacy
    unused = ("epsilon", "noise", "bounds", "largest", "allow", "seed", "ranges", "categories")
    for name in (*unused, "shares", "prepared"):
        if getattr(given, name):
            raise ConfigError(
                f"privacy.{name} is set, but privacy.level is 'none'; set privacy.level = 'client' "
                "or 'example', or remove it."
            )


def check(config: Config, *, remote: bool) -> None:
    """Raise ConfigError for options that do not go together, or not with a real federation."""
    if config.privacy.level == "none":
        return
    given, about = config.privacy, f"privacy.level = '{config.privacy.level}'"
    strange = [name for name in given.allow if name not in ALLOWED]
    if strange:
        raise ConfigError(f"privacy.allow: {unknown('name', strange[0], ALLOWED)}")
    strange = [name for name in given.shares if name not in SHARES]
    if strange:
        raise ConfigError(f"privacy.shares: {unknown('name', strange[0], SHARES)}")
    if sum(share_of(given, name) for name in SHARES) >= 1:
        raise ConfigError(
            "privacy.shares add up to 1 or more, so nothing is left for training; lower them."
        )
    if remote:
        _check_remote(config, about)
    check_shares(config, None)
    if config.engine.device != "cpu":
        raise ConfigError(f"{about} works on the CPU only; set engine.device = 'cpu'.")
    if config.defence.name != "none":
        raise ConfigError(
            f"defence '{config.defence.name}' replaces the mean by another function of the "
            f"replies, for which {about} has no noise; remove one of them."
        )
    if (given.weights == "size") != (given.largest is not None):
        raise ConfigError(
            "privacy.weights = 'size' and privacy.largest belong together: a client of `largest` "
            "examples or more has the weight 1; set both, or neither."
        )
    if given.level == "client":
        _check_cohorts(config, about)


def _check_remote(config: Config, about: str) -> None:
    """Raise ConfigError for what a real federation cannot do privately."""
    if config.privacy.level == "example":
        if config.privacy.noise is None:
            raise ConfigError(
                f"{about} in a real federation needs privacy.noise, which all participants add; "
                "find it with `isonomy run` for privacy.epsilon, and set both."
            )
        if config.privacy.seed is not None:
            raise ConfigError(
                f"privacy.seed: at {about}, participants of a real federation draw noise from "
                "secret keys of their own; remove it."
            )
    elif config.secure.enabled:
        _check_remote_shares(config, about)
    if config.privacy.clip == "adaptive":
        raise ConfigError(
            f"{about} in a real federation needs a fixed clip, because participants clip their "
            "replies before they send them; give a number, e.g. privacy.clip = 0.3."
        )
    if config.cohort.sampling == "poisson":
        raise ConfigError(
            "cohort.sampling = 'poisson' is counted as if nobody knew who takes part in a round, "
            "but the traffic of a real federation shows it; set cohort.sampling = 'uniform'."
        )


def _check_remote_shares(config: Config, about: str) -> None:
    """Raise ConfigError unless participants can add and count their noise by themselves."""
    if config.privacy.noise is None:
        raise ConfigError(
            f"{about} with secure = true in a real federation needs privacy.noise, of which every "
            "participant adds a share; find it with `isonomy run` for privacy.epsilon, and set "
            "both."
        )
    if config.privacy.seed is not None:
        raise ConfigError(
            f"privacy.seed: at {about} with secure = true, participants of a real federation draw "
            "noise from secret keys of their own; remove it."
        )


def _check_cohorts(config: Config, about: str) -> None:
    """Raise ConfigError for cohorts that depend on data, or whose size would tell of them."""
    cohort = config.cohort
    if cohort.sampling == "size":
        raise ConfigError(
            f"cohort.sampling = 'size' tells the clients' sizes, which {about} protects; set "
            "cohort.sampling = 'poisson' or 'uniform'."
        )
    if cohort.dropout:
        raise ConfigError(
            f"cohort.dropout = {cohort.dropout:g} with {about}: who drops out is not counted; "
            "remove it, and lower cohort.size instead."
        )
    if cohort.max_weight < 1:
        raise ConfigError(
            f"cohort.max_weight = {cohort.max_weight:g} depends on the sizes of all clients, which "
            f"{about} protects; remove it: privacy.largest limits weights."
        )


def _check_coverage(config: Config, algorithm: Algorithm, federation: Federation) -> None:
    """Raise ConfigError for what would leave clients without noise and is not allowed."""
    allow = config.privacy.allow
    known = preparation.fits(config, federation)
    if "preprocessing" not in allow and not known and fitted(federation.preprocessing):
        raise ConfigError(
            f"the preparation of '{federation.source}' was fitted to the clients' data without "
            "noise; use data that are already scaled, or accept it with privacy.allow = "
            "['preprocessing'], which lists it as not covered."
        )
    for name in ("ranges", "categories"):
        if getattr(config.privacy, name) and not known:
            raise ConfigError(
                f"privacy.{name} is for tables whose preprocessing is fitted with noise; remove it."
            )
    if evaluations(config) and not federation.classes:
        raise ConfigError(
            f"privacy.level = '{config.privacy.level}': the errors of a regression have no bound, "
            "so they cannot be measured with noise; set privacy.evaluate = 'never', or accept "
            "metrics without noise with privacy.allow = ['evaluation']."
        )
    why = _validation(config, algorithm)
    if why and "validation" not in allow:
        raise ConfigError(
            f"{why} on validation examples without noise; choose without it, or accept it with "
            "privacy.allow = ['validation'], which lists it as not covered."
        )


def _validation(config: Config, algorithm: Algorithm) -> str:
    if config.postprocess.name != "none":
        return f"postprocess.name = '{config.postprocess.name}' is fitted"
    if isinstance(config.evaluate.threshold, str):
        return f"evaluate.threshold = '{config.evaluate.threshold}' is fitted"
    chooses = isinstance(algorithm, LearnsFront) and not tuple(getattr(algorithm, "preference", ()))
    if chooses and ("evaluation" in config.privacy.allow or evaluations(config)):
        return f"the points of the front of '{algorithm.name}' are chosen"
    return ""


def fitted(preprocessing: Mapping[str, Any] | None) -> bool:
    """Whether a preparation holds numbers or words that came from the clients' data."""
    if preprocessing is None:
        return False
    if preprocessing.get("kind") == "pixels":
        return bool(preprocessing.get("scale"))
    if preprocessing.get("kind") == "sentences":  # a public encoder
        return False
    encoders = preprocessing.get("encoders")
    if encoders is None:
        return True
    return any(
        one.get("kind") != "number"
        or one.get("fill") is not None
        or (one.get("shift"), one.get("scale")) != (0.0, 1.0)
        for one in encoders
    )


def not_covered(config: Config, algorithm: Algorithm, federation: Federation) -> dict[str, str]:
    """What was released without noise, because the config allows it; by name."""
    used = {"evaluation": True, "excess": config.excess.clusters != "none", "description": True}
    exact = fitted(federation.preprocessing) and not preparation.fits(config, federation)
    used["preprocessing"] = exact
    used["validation"] = bool(_validation(config, algorithm))
    used["verdict"] = isinstance(algorithm, GivesVerdict)
    allow = config.privacy.allow
    out = {name: text for name, text in ALLOWED.items() if name in allow and used[name]}
    if config.privacy.seed is not None:
        out["seed"] = (
            "the noise comes from privacy.seed: whoever knows the seed can remove the noise"
        )
    return out


def left_out(config: Config, algorithm: Algorithm) -> list[str]:
    """What is not measured, because it has no noise and is not allowed."""
    allow, out = config.privacy.allow, []
    if "evaluation" not in allow and config.privacy.evaluate == "never":
        out.append("all metrics (privacy.evaluate = 'never')")
    elif "evaluation" not in allow:
        out.append("losses, and metrics of scores such as AUC")
        if config.privacy.level == "client":
            out.append("metrics of single clients and differences between clients")
    if "excess" not in allow:
        out.append("excess risk and FAA")
    if "description" not in allow:
        out.append("the description of the data")
    if "verdict" not in allow and isinstance(algorithm, GivesVerdict):
        out.append("the method's verdict")
    return out
