"""The middleware of a run, on both sides, and the notes that results carry about it.

Client side, around a phase, in the client's own process also in a real federation: simulated
attacks, and in a real federation the clip of differential privacy. Server side, around an exchange,
the innermost first: bytes are counted, clients drop out, the server screens what it receives,
differential privacy clips and noises it, and the defence combines it. Under secure aggregation,
replies are quantised and summed; in a real federation they arrive as a sum, which cannot be
screened.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from isonomy.core.cohort import ClientSide, ServerSide
from isonomy.engines.base import Engine, Meter
from isonomy.engines.base import dropout as drop
from isonomy.errors import TrainingError
from isonomy.privacy.clipping import ClippedReplies
from isonomy.privacy.release import ClientRelease, finite_only
from isonomy.privacy.secure.simulated import Quantised, room_of
from isonomy.privacy.secure.threshold import threshold_of
from isonomy.privacy.shares import ShareRelease
from isonomy.robust.defence import Defence
from isonomy.robust.forging import Apart, Collusion, Count, Forging
from isonomy.robust.screen import NOT_FINITE, Screen
from isonomy.runs.build import Setting, attack_seed, labels_of

_NAMED = 5  # clients that a note names


class Middleware:
    """The middleware of one round, and its entries in the round's line."""

    def __init__(
        self, setting: Setting, release: ClientRelease | ShareRelease | None = None
    ) -> None:
        self.setting = setting
        self.release = release
        self.secure: Quantised | None = None
        if setting.config.secure.enabled:
            everyone = setting.federation.sizes()
            threshold = threshold_of(setting.config, len(everyone))
            shares = release if isinstance(release, ShareRelease) else None
            self.secure = Quantised(setting.config.secure, threshold, room_of(everyone), shares)
        self.meter = Meter(None if self.secure is None else self.secure.nbytes)
        self.screen = Screen()
        self.defence: Defence | None = None
        if setting.defence is not None:
            self.defence = Defence(setting.defence, setting.malicious)
        self.count: Count | None = None
        if setting.attack is not None and len(setting.roles.forge):
            self.count = Count(setting.roles.forge)

    def client_side(self) -> tuple[ClientSide, ...]:
        """What wraps the phases, the innermost first."""
        return client_side(self.setting)

    def server_side(self, *, dropout: bool = False) -> tuple[ServerSide, ...]:
        """What wraps the exchange, the innermost first; with the config's dropout or without."""
        config = self.setting.config
        masked = self.secure is not None and self.setting.remote  # nobody sees single replies
        out: list[ServerSide] = [self.meter] if masked else [self.screen.learn, self.meter]
        attack = self.setting.attack
        if attack is not None and attack.trains and not self.setting.remote:
            out.insert(0, Apart(self.setting.roles.forge))
        if self.count is not None:
            out.append(self.count)
            if attack is not None and not self._alone:
                forging = self.setting.roles.forge
                out.append(Collusion(attack, forging, seed=attack_seed(config)))
        if dropout and config.cohort.dropout:
            out.append(partial(drop, probability=config.cohort.dropout, seed=config.seed))
        if self.release is not None and not masked:
            out.append(finite_only)
        if not masked:
            out.append(self.screen)
        if self.secure is not None:
            out.append(self.secure)
        return (*out, *(() if self.release is None else (self.release,)))

    @property
    def whole(self) -> bool:
        """Whether the middleware of the server side needs the replies of all clients at once."""
        counts = self.release is not None and self.release.adaptive  # all norms within the clip
        return self.secure is not None or counts or (self.count is not None and not self._alone)

    @property
    def _alone(self) -> bool:
        return self.setting.attack is None or self.setting.attack.alone

    def join(self, engine: Engine) -> None:
        """Add what the other processes of the run counted, if there are several."""
        if self.whole:
            return  # then each of them sees all replies
        changed = 0 if self.count is None else self.count.changed
        found = engine.everywhere((self.screen.rejected, changed))
        self.meter.join(engine.everywhere)
        for rejected, _ in found:
            for k, why in rejected.items():
                self.screen.rejected.setdefault(k, why)
        if self.count is not None:
            self.count.changed = sum(more for _, more in found)

    def line(self) -> dict[str, Any]:
        """The entries of the round's line; only those that apply."""
        out: dict[str, Any] = {}
        if self.screen.rejected:
            out["rejected"] = {str(k): why for k, why in sorted(self.screen.rejected.items())}
        if self.secure is not None and self.secure.cut:
            out["cut"] = self.secure.cut
        if self.secure is not None and self.secure.short:
            out["no_sum"] = self.secure.short
        if self.count is not None:
            out["attacked"] = self.count.changed
        if self.defence is not None:
            out["combined"] = self.defence.used
            if self.defence.short:
                out["too_few"] = self.defence.short
            if self.defence.outnumbered:
                out["more_malicious"] = self.defence.outnumbered
        return out

    def check_diverged(self, round: int) -> None:
        """After a round without a usable reply: raise TrainingError if training diverged."""
        bad = set(self.setting.malicious.tolist())
        lost = [k for k, why in self.screen.rejected.items() if why == NOT_FINITE and k not in bad]
        if lost:
            lr = self.setting.config.local.lr
            raise TrainingError(
                f"round {round + 1}: training diverged, every reply holds numbers that are not "
                f"finite; lower local.lr (now {lr:g}) or scale the features, and run again."
            )


def client_side(setting: Setting) -> tuple[ClientSide, ...]:
    """What wraps the phases of clients, the innermost first.

    It is the same in a simulation and in a participant's process of a real federation, where
    replies are clipped too: nothing longer leaves a participant.
    """
    attack, forging, given = setting.attack, setting.roles.forge, setting.config.privacy
    out: tuple[ClientSide, ...] = ()
    hidden = setting.config.secure.enabled  # then clients clip where they add their noise
    if setting.remote and given.level == "client" and given.clip != "adaptive" and not hidden:
        out = (ClippedReplies(given.clip, given.bounds),)
    if attack is None or not attack.alone or not len(forging):
        return out
    config = setting.config
    return (*out, Forging(attack, forging, seed=attack_seed(config), rounds=config.rounds))


def merged(one: Any, other: Any) -> Any:
    """The entries of two exchanges in one round's line."""
    if one is None:
        return other
    return {**one, **other} if isinstance(one, dict) else one + other


# --- notes ----------------------------------------------------------------------------------------


def notes(setting: Setting, lines: list[dict[str, Any]]) -> list[str]:
    """Sentences on attack, defence and rejected replies, for every output."""
    return [
        *_attack(setting, lines),
        *_defence(setting, lines),
        *_rejected(setting, lines),
        *_secure(setting, lines),
    ]


def _secure(setting: Setting, lines: list[dict[str, Any]]) -> list[str]:
    """What was summed securely, or quantised as if it were, and where numbers were cut."""
    given = setting.config.secure
    if not given.enabled:
        return []
    threshold = threshold_of(setting.config, len(setting.federation))
    out = [
        f"Secure aggregation: the organiser learnt sums of at least {threshold} clients' replies "
        "in training, and no single one; each client reports its own preparation and evaluations."
        if setting.remote
        else "Replies were quantised as under secure aggregation, but not masked: this is a "
        "simulation."
    ]
    cut = [line["cut"] for line in lines if "cut" in line]
    if cut:
        out.append(
            f"In {len(cut)} of {len(lines)} rounds, {sum(cut)} numbers of replies were outside of "
            f"their range and were cut to it; raise secure.clip ({given.clip:g}, of models and "
            f"updates) or secure.range ({given.range:g}, of other numbers)."
        )
    none = sum("no_sum" in line for line in lines)
    if none:
        out.append(
            f"In {none} of {len(lines)} rounds, fewer than {threshold} clients answered an "
            "exchange, so that it gave no sum."
        )
    return out


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
    if len(setting.roles.flip):
        what += f", groups of {len(setting.roles.flip)} clients' training examples flipped"
    out = [
        f"Metrics are of the {total - count} benign clients only: {count} of {total} clients were "
        f"malicious ({what}; {_names(setting, who)})."
    ]
    if not count:
        out = [f"attack.fraction = {given.fraction:g}: no client was malicious (attack '{name}')."]
    changed = any(line.get("attacked", 0) for line in lines) or _faulty(setting, lines)
    if len(setting.roles.forge) and not changed:
        out.append(
            "The attack changed no reply: either no malicious client was asked, or "
            f"'{setting.config.algorithm.name}' sends neither models nor updates."
        )
    return out


def _faulty(setting: Setting, lines: list[dict[str, Any]]) -> bool:
    """Whether the engine itself refused a reply of a malicious client."""
    bad = {setting.federation.name(k) for k in setting.malicious.tolist()}
    return any(fault["client"] in bad for line in lines for fault in line.get("faults", ()))


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
    more = sum(1 for line in lines if line.get("more_malicious"))
    if more:
        out.append(
            f"In {more} of {len(lines)} rounds, more of the combined updates were malicious than "
            f"'{rule.name}' expects (defence.expected = {getattr(rule, 'expected', '')})."
        )
    if lines and not any(line.get("combined") for line in lines):
        name = setting.config.algorithm.name
        out.append(f"The defence combined nothing: '{name}' averaged no model and no update.")
    return out


def _rejected(setting: Setting, lines: list[dict[str, Any]]) -> list[str]:
    """Whose replies were rejected, how often, and why."""
    by: dict[str, dict[int, int]] = {}
    for line in lines:
        for k, why in line.get("rejected", {}).items():
            counts = by.setdefault(why, {})
            counts[int(k)] = counts.get(int(k), 0) + 1
    return [
        f"{sum(counts.values())} replies were rejected and not used: "
        f"{_names(setting, sorted(counts))} {why}."
        for why, counts in sorted(by.items())
    ]


def _names(setting: Setting, who: list[int]) -> str:
    named = ", ".join(setting.federation.name(k) for k in who[:_NAMED])
    more = len(who) - _NAMED
    return named + (f" and {more} more" if more > 0 else "")
