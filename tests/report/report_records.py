"""Made-up runs in the shape real ones have: three methods, three seeds, ten clients."""

from __future__ import annotations

import math
import random
from typing import Any

from isonomy.runs.record import Record

NAMES = [f"hospital {letter}" for letter in "ABCDEFGHIJ"]
METHODS = {
    "FedAvg": (0.83, 0.07, 0.14),
    "q-FFL": (0.82, 0.045, 0.12),
    "FairFed": (0.81, 0.06, 0.05),
}


def plain(label: str = "FedAvg", seed: int = 0, **metrics: float) -> Record:
    """A run with nothing but its metrics."""
    return Record(label, seed, {"method": label, "seed": seed}, [], {}, metrics)


def record(
    label: str = "FedAvg",
    seed: int = 0,
    *,
    rounds: int = 20,
    names: list[str] | None = None,
    attribute: str = "sex",
    levels: tuple[str, ...] = ("female", "male"),
    source: str = "adult",
    **changes: Any,
) -> Record:
    """A realistic run."""
    names = NAMES if names is None else names
    top, width, gap = METHODS.get(label, (0.8, 0.06, 0.1))
    draw = random.Random(f"{label} {seed}")
    sizes = [int(80 * 1.35**k) for k in range(len(names))]
    wobble = [draw.gauss(0, 1) for _ in names]
    clients: dict[str, list[Any]] = {
        key: []
        for key in ("round", "client", "name", "split", "size", "accuracy", "loss",
                    f"group.{attribute}.demographic_parity")
    }  # fmt: skip
    pages = []
    for t in range(1, rounds + 1):
        done = 1 - math.exp(-t / 5)
        each = [min(0.99, 0.5 + (top - 0.5) * done + width * z * done) for z in wobble]
        losses = [1.1 - a + draw.gauss(0, 0.01) for a in each]
        gaps = [abs(gap * done + draw.gauss(0, 0.03)) for _ in each]
        mean = sum(each) / len(each)
        std = (sum((a - mean) ** 2 for a in each) / len(each)) ** 0.5
        pooled = sum(a * s for a, s in zip(each, sizes, strict=True)) / sum(sizes)
        metrics = {
            "client.number": float(len(names)),
            "client.left_out": 0.0,
            "accuracy": pooled,
            "loss": 1.1 - pooled,
            f"group.{attribute}.demographic_parity": gap * done + draw.gauss(0, 0.008),
            f"group.{attribute}.equal_opportunity": gap * 0.8 * done + draw.gauss(0, 0.01),
            f"group.{attribute}.equalised_odds": gap * done + abs(draw.gauss(0, 0.01)),
            f"group.{attribute}.max_loss": 1.1 - pooled + gap / 3,
            f"group.{attribute}.min_accuracy": pooled - gap / 4,
            "client.accuracy.mean": mean,
            "client.accuracy.std": std,
            "client.accuracy.worst10": min(each),
            "client.loss.mean": sum(losses) / len(losses),
            "client.loss.worst10": max(losses),
            "faa": max(losses) - min(losses),
        }
        for k, level in enumerate(levels):
            side = k / max(1, len(levels) - 1) - 0.5
            metrics[f"group.{attribute}.accuracy.{level}"] = pooled + side * gap / 2
            metrics[f"group.{attribute}.loss.{level}"] = 1.1 - pooled - side * gap / 1.5
        pages.append(
            {
                "round": t,
                "metrics": metrics,
                "traffic": {"down": 4.2e5, "up": 4.0e5},
                "seconds": 0.6,
            }
        )
        for k, name in enumerate(names):
            row = (t, k, name, "test", sizes[k], each[k], losses[k], gaps[k])
            for key, at in zip(clients, row, strict=True):
                clients[key].append(at)
    config = {
        "seed": seed,
        "rounds": 20,
        "method": {"name": label, "lr": 0.05},
        "data": {"name": source, "partition": "dirichlet", "alpha": 0.5},
        "model": {"name": "mlp", "hidden": [64, 32]},
    }
    share = [0.2 + 0.6 * k / max(1, len(names) - 1) for k in range(len(names))]
    facts = {
        "data": {
            "source": source,
            "names": names,
            "sizes": sizes,
            "labels": ["<=50K", ">50K"],
            "label_shares": [[1 - s, s] for s in share],
            "groups": {
                attribute: {
                    "levels": list(levels),
                    "shares": [[1 / len(levels)] * len(levels) for _ in names],
                }
            },
        },
        "versions": {"isonomy": "0.1.0", "torch": "2.13.0", "python": "3.11.9"},
    }
    given: dict[str, Any] = {
        "config": config,
        "rounds": pages,
        "clients": clients,
        "metrics": pages[-1]["metrics"],
        "seconds": 11.0 + draw.random() * 3 + (6 if label == "FairFed" else 0),
        "facts": facts,
    }
    return Record(label, seed, **(given | changes))


def study() -> list[Record]:
    """Three methods with three seeds each."""
    return [record(label, seed) for label in METHODS for seed in range(3)]
