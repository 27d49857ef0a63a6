"""The preprocessing of a private run: fitted once with noise, and kept in the run's config.

The config of a run's folder holds what was fitted (`privacy.prepared`), so a resumed run, and all
trials of a decision, use the same preprocessing, and nothing is released twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from isonomy.config.schema import Config
from isonomy.data.federation import Federation
from isonomy.data.tables.preprocessing import Preprocessing
from isonomy.data.tables.private_fit import Known, PrivateFit, given
from isonomy.errors import ConfigError
from isonomy.privacy.noise import Key
from isonomy.privacy.preprocessing import NoisyPreparation, share_of, whole_multiplier

Load = Callable[[Any], Federation]
"""Loads the config's data with a function that fits their preprocessing."""


def with_preparation(config: Config, load: Load, key: Key | None = None) -> Config:
    """The config with the preprocessing fitted with noise; the same config if there is nothing.

    Nothing is fitted without a level, if it is allowed without noise, if it was fitted before, or
    if the data have a fixed preparation.
    """
    options = config.privacy
    if options.level == "none" or "preprocessing" in options.allow or options.prepared:
        return config
    if options.epsilon is None and options.noise is None:
        return config  # refused later, with the reason
    kind = (config.data.name, str(config.data.partition))
    if kind in _fixed:
        return config
    if key is None:
        key = Key.fresh() if options.seed is None else Key.of_seed(options.seed)
    noise = NoisyPreparation(
        level=options.level,
        multiplier=whole_multiplier(options) / share_of(options, "preprocessing") ** 0.5,
        delta=options.delta,
        key=key,
    )
    fit = PrivateFit(noise, Known(options.ranges, options.categories))
    loaded = load(fit)
    if fit.made is None:
        if config.data.name != "memory":  # frames and tensors have the same name
            _fixed.add(kind)
        return config
    record = {
        "level": options.level,
        "reserved": noise.reserved,
        "releases": noise.entries,
        "warnings": list(loaded.warnings),
        "preprocessing": json.loads(fit.made.model_dump_json()),
    }
    changed = options.model_copy(update={"prepared": json.dumps(record)})
    return config.model_copy(update={"privacy": changed})


_fixed: set[tuple[str, str]] = set()  # data sets whose preparation is not fitted to tables


def fit_of(level: str, text: str) -> Any:
    """The fit that the data are loaded with: what was fitted with noise, or None."""
    found = _read(level, text)
    if found is None:
        return None
    return given(Preprocessing.model_validate(found["preprocessing"]), found["warnings"])


def prepared(config: Config) -> dict[str, Any] | None:
    """What was fitted with noise, and what that released; None if nothing was."""
    return _read(config.privacy.level, config.privacy.prepared)


def _read(level: str, text: str) -> dict[str, Any] | None:
    if not text or level == "none":
        return None
    try:
        found = json.loads(text)
        Preprocessing.model_validate(found["preprocessing"])
    except (ValueError, KeyError, TypeError):
        raise ConfigError(
            "privacy.prepared is set by the program and cannot be read; remove it."
        ) from None
    if found["level"] != level:
        raise ConfigError(
            f"privacy.prepared was fitted for level '{found['level']}'; remove it, so that it is "
            "fitted again."
        )
    return dict(found)


def releases(config: Config) -> list[dict[str, Any]]:
    """The ledger's lines of the preprocessing."""
    found = prepared(config)
    return [] if found is None else list(found["releases"])


def reserved(config: Config) -> float:
    """The part of delta that the selection of values used."""
    found = prepared(config)
    return 0.0 if found is None else float(found["reserved"])


def fits(config: Config, federation: Federation) -> bool:
    """Whether a federation's preprocessing is the one that was fitted with noise."""
    found, own = prepared(config), federation.preprocessing
    if found is None or own is None:
        return False
    made = Preprocessing.model_validate(found["preprocessing"])
    plain = made.model_dump(mode="json")
    return bool(own.get("encoders") == plain["encoders"] and own.get("table") == plain["table"])
