"""The table `privacy`: differential privacy, and the limits of participants."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from isonomy.config.section import Section


class PrivacyConfig(Section):
    """Differential privacy of simulations; `rows`, `cell`, `rounding` and `repeats` are what
    participants of a real federation insist on, and have no effect in a simulation.
    """

    level: Literal["none", "client", "example"] = Field(
        "none", description="what differential privacy protects: nothing, clients, or examples"
    )
    epsilon: float | None = Field(
        None, gt=0, description="privacy budget; the noise is found for it, and never exceeds it"
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="probability that epsilon does not hold")
    noise: float | None = Field(
        None,
        gt=0,
        description="noise multiplier, relative to the clip (found from epsilon if unset)",
    )
    clip: Annotated[float, Field(gt=0)] | Literal["adaptive"] = Field(
        "adaptive",
        description="largest norm of a model's update or a gradient; adaptive: follows the "
        "clients' median norm (level 'client' only)",
    )
    bounds: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default_factory=dict,
        description="largest norm of each statistic that a method collects, by its name, e.g. "
        "{loss = 3.0}",
    )
    weights: Literal["equal", "size"] = Field(
        "equal",
        description="weights of clients where a method weights by size, at level 'client'",
    )
    largest: int | None = Field(
        None, ge=1, description="with weights = 'size': size above which a client counts no more"
    )
    colluding: int = Field(
        1,
        ge=0,
        description="at level 'client' with secure aggregation: clients in a sum whose share of "
        "the noise is not counted, because they may tell it to the organiser",
    )
    batches: Literal["poisson", "passes"] = Field(
        "poisson",
        description="batches at level 'example': each example independently of the others, or "
        "shuffled passes, which are counted without sampling",
    )
    accountant: Literal["pld", "rdp"] = Field("pld", description="how epsilon is bounded")
    allow: list[str] = Field(
        default_factory=list,
        description="what may leave clients without noise, and is then listed as not covered: "
        "preprocessing, evaluation, validation, excess, description, verdict",
    )
    ranges: dict[str, Annotated[list[float], Field(min_length=2, max_length=2)]] = Field(
        default_factory=dict,
        description="known ranges of columns of numbers, e.g. {age = [17, 90]}: they are scaled by "
        "them, and nothing is released; other columns get noisy ranges, means and variances",
    )
    categories: dict[str, list[str]] = Field(
        default_factory=dict,
        description="known values of columns of categories, of the label and of protected columns, "
        "e.g. {sex = ['Female', 'Male']}; of others, values with large noisy counts are used",
    )
    evaluate: Literal["last", "every", "never"] = Field(
        "last",
        description="when metrics are measured with noise, unless 'evaluation' is allowed without: "
        "after the last round, at every evaluation, or never",
    )
    counted: int = Field(
        50,
        ge=1,
        description="validation and test examples of a client that noisy metrics use at most, at "
        "level 'client'; the noise is in proportion to it",
    )
    shares: dict[str, Annotated[float, Field(gt=0, lt=1)]] = Field(
        default_factory=dict,
        description="parts of the budget, as shares of 1 / noise^2: preprocessing (0.1), "
        "evaluation (0.1) and, in a decision, validation (0.1) and test (0.1); training has the "
        "rest",
    )
    prepared: str = Field(
        "", description="the preprocessing that was fitted with noise; set by the program"
    )
    seed: int | None = Field(
        None,
        ge=0,
        description="seed of the noise, for experiments that must be repeatable; whoever knows it "
        "can remove the noise (a secret key if unset)",
    )
    rows: int = Field(
        32, ge=1, description="training rows that a client's reply is computed from, at least"
    )
    cell: int = Field(
        10,
        ge=1,
        description="rows of a group, label or category of a client that are counted, at least; "
        "also the option `least` of algorithms that have it",
    )
    rounding: bool = Field(
        True,
        description="whether models, gradients and losses are rounded to what one row adds to them",
    )
    repeats: int = Field(
        10,
        ge=0,
        description="rounds that a participant answers again to other messages, after the server "
        "has restarted, at most",
    )
