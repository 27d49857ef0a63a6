"""Suggests a value for an option that is hard to choose: FMTL's lam, or PFFL's zeta."""

from __future__ import annotations

from typing import Literal, get_args

from isonomy import algorithms
from isonomy.algorithms.group_fair.pffl import PFFL
from isonomy.algorithms.personal.fmtl import FMTL
from isonomy.config.schema import Config
from isonomy.errors import ConfigError, unknown
from isonomy.studies.plain_training import plain_setting
from isonomy.studies.suggest_lam import LamSuggestion, suggest_lam
from isonomy.studies.suggest_zeta import ZetaSuggestion, suggest_zeta

Option = Literal["lam", "zeta"]
OPTIONS: tuple[Option, ...] = get_args(Option)
_OF: dict[str, Option] = {"fmtl": "lam", "pffl": "zeta"}


def suggest(config: Config, option: str | None = None) -> LamSuggestion | ZetaSuggestion:
    """A value for `lam` or `zeta`; by default for the option of the config's algorithm."""
    name = config.algorithm.name
    wanted = _OF.get(name) if option is None else option
    if wanted is None:
        raise ConfigError(
            f"algorithm '{name}' has no option that can be suggested; choose one with --for lam "
            "(of fmtl) or --for zeta (of pffl), or name one of these algorithms in the config."
        )
    if wanted not in OPTIONS:
        raise ConfigError(unknown("option to suggest", wanted, OPTIONS))
    if wanted == "zeta":
        return _zeta(config)
    if config.attack.name != "none":
        raise ConfigError(NO_ATTACK)
    return suggest_lam(plain_setting(config), _fmtl(config))


NO_ATTACK = (
    "lam cannot be suggested under an attack; set algorithm.lams, so that each client chooses lam "
    "by its validation examples (data.fractions, or data.validation for images), or compare "
    "values with `isonomy sweep`."
)


def _fmtl(config: Config) -> FMTL:
    """The config's FMTL, for its other options."""
    if config.algorithm.name != FMTL.name:
        return FMTL()
    made = algorithms.make(config.algorithm.name, config.algorithm.options)
    assert isinstance(made, FMTL)
    return made


def _zeta(config: Config) -> ZetaSuggestion:
    if config.algorithm.name == "local_bgl":
        raise ConfigError(
            "the zeta of 'local_bgl' bounds groups within each client, but the suggestion is for "
            "groups over all clients; use algorithm 'pffl'."
        )
    pffl = PFFL()
    if config.algorithm.name == PFFL.name:
        made = algorithms.make(config.algorithm.name, config.algorithm.options)
        assert isinstance(made, PFFL)
        pffl = made
    return suggest_zeta(plain_setting(config), pffl)
