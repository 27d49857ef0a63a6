"""What stands around a round's exchanges: counting, the attack, the screen, the defence.

From the clients outwards: bytes are counted, malicious clients change what they send, clients fall
silent, the server screens what it gets, and the defence combines it.
"""

from __future__ import annotations

from typing import Any

from isonomy.engines.base import Meter
from isonomy.errors import TrainingError
from isonomy.robust.attacks import Attacker
from isonomy.robust.defence import Defence
from isonomy.robust.screen import NOT_FINITE, Screen
from isonomy.runs.build import Setting, attack_seed, labels_of

_NAMED = 5


class Around:
    """The wrappers of one round, and what they have to tell of it."""

    def __init__(self, setting: Setting, cohort: int) -> None:
        self.setting = setting
        self.meter = Meter()
        self.screen = Screen()
        self.defence = None if setting.defence is None else Defence(setting.defence)
        self.attacker: Attacker | None = None
        if setting.attack is not None and len(setting.malicious):
            seed = attack_seed(setting.config)
            self.attacker = Attacker(setting.attack, setting.malicious, seed=seed, cohort=cohort)

    def wrap(self) -> list[Any]:
        """The wrappers, the innermost first; the screen is the last."""
        attack = [] if self.attacker is None else [self.attacker]
        return [self.screen.learn, self.meter, *attack, self.screen]

    def line(self) -> dict[str, Any]:
        """What goes into the round's line, where there is anything to say."""
        out: dict[str, Any] = {}
        if self.screen.rejected:
            out["rejected"] = {str(k): why for k, why in sorted(self.screen.rejected.items())}
        if self.attacker is not None and self.attacker.attack.forges:
            out["attacked"] = self.attacker.changed
        if self.defence is not None:
            out["combined"] = self.defence.used
            if self.defence.short:
                out["too_few"] = self.defence.short
        return out

    def check_diverged(self, round: int) -> None:
        """Nobody's reply was of use: say so if it was because training diverged."""
        bad = set(self.setting.malicious.tolist())
        lost = [k for k, why in self.screen.rejected.items() if why == NOT_FINITE and k not in bad]
        if lost:
            lr = self.setting.config.local.lr
            raise TrainingError(
                f"round {round + 1}: training diverged, every reply holds numbers that are not "
                f"finite; lower local.lr (now {lr:g}) or scale the features, and run again."
            )


def merged(one: Any, other: Any) -> Any:
    """What two exchanges tell, together."""
    if one is None:
        return other
    return {**one, **other} if isinstance(one, dict) else one + other


# --- what a result says of it ---------------------------------------------------------------------


def notes(setting: Setting, lines: list[dict[str, Any]]) -> list[str]:
    """Sentences on attack, defence and rejected replies, for every output."""
    return [*_attack(setting, lines), *_defence(setting, lines), *_rejected(setting, lines)]


def _attack(setting: Setting, lines: list[dict[str, Any]]) -> list[str]:
    if setting.attack is None:
        return []
    given, who = setting.config.attack, setting.malicious.tolist()
    count, total = len(who), len(setting.federation)
    name = setting.attack.name
    labels = labels_of(setting.config)
    what = f"attack '{name}'"
    if labels != "none":
        what += f", training labels poisoned ({labels})"
    out = [
        f"Metrics are of the {total - count} benign clients only: {count} of {total} clients were "
        f"malicious ({what}; {_names(setting, who)})."
    ]
    if not count:
        out = [f"attack.fraction = {given.fraction:g}: no client was malicious (attack '{name}')."]
    changed = sum(line.get("attacked", 0) for line in lines)
    if count and setting.attack.forges and not changed:
        out.append(
            f"The attack changed no reply: either no malicious client was asked, or "
            f"'{setting.config.algorithm.name}' sends neither models nor updates."
        )
    return out


def _defence(setting: Setting, lines: list[dict[str, Any]]) -> list[str]:
    rule = setting.defence
    if rule is None:
        return []
    out = [f"Defence '{rule.name}': the server saw every client's update, not only their mean."]
    short = sum(1 for line in lines if line.get("too_few"))
    if short:
        out.append(
            f"In {short} of {len(lines)} rounds there were too few updates for what '{rule.name}' "
            f"promises; it needs {rule.needs}."
        )
    if lines and not any(line.get("combined") for line in lines):
        name = setting.config.algorithm.name
        out.append(f"The defence combined nothing: '{name}' averaged no model and no update.")
    return out


def _rejected(setting: Setting, lines: list[dict[str, Any]]) -> list[str]:
    """Who was rejected how often, and why."""
    by: dict[str, dict[int, int]] = {}
    for line in lines:
        for k, why in line.get("rejected", {}).items():
            counts = by.setdefault(why, {})
            counts[int(k)] = counts.get(int(k), 0) + 1
    return [
        f"{sum(counts.values())} replies were rejected and counted as silence: "
        f"{_names(setting, sorted(counts))} {why}."
        for why, counts in sorted(by.items())
    ]


def _names(setting: Setting, who: list[int]) -> str:
    named = ", ".join(setting.federation.name(k) for k in who[:_NAMED])
    more = len(who) - _NAMED
    return named + (f" and {more} more" if more > 0 else "")
