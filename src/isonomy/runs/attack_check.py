"""Which attacks suit an algorithm and its data."""

from __future__ import annotations

from isonomy.core.algorithm import Algorithm
from isonomy.core.phase import declared
from isonomy.core.task import Task
from isonomy.errors import ConfigError, unknown
from isonomy.robust.attack import Attack


def check_attack(attack: Attack, algorithm: Algorithm, task: Task) -> None:
    """Raise a ConfigError if the attack needs what the algorithm or the data do not have."""
    about = f"attack.name = '{attack.name}'"
    if attack.grouped and not task.levels:
        raise ConfigError(
            f"{about} is about groups, but the data have no protected attribute; name one in "
            "data.protected, or choose another attack."
        )
    if attack.grouped and attack.attribute and attack.attribute not in task.attributes:
        known = dict.fromkeys(task.attributes)
        raise ConfigError(f"attack.attribute: {unknown('attribute', attack.attribute, known)}")
    at = task.attributes.index(attack.attribute) if attack.grouped and attack.attribute else 0
    group = getattr(attack, "group", 0)
    if attack.grouped and group >= task.levels[at]:
        raise ConfigError(
            f"attack.group = {group}, but the attribute has {task.levels[at]} groups; give a "
            f"number from 0 to {task.levels[at] - 1}."
        )
    if attack.binary and task.classes != 2:
        raise ConfigError(
            f"{about} needs two classes, one of them positive; choose other data or another attack."
        )
    if attack.trains and not any(
        part.kind == "model" and part.of
        for one in declared(type(algorithm)).values()
        for part in one.parts.values()
    ):
        raise ConfigError(
            f"{about} trains the model that a client sends, but clients of '{algorithm.name}' send "
            "none; choose another attack or algorithm."
        )
