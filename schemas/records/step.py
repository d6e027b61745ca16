"""The trainer's steps: what each was trained on, and how much may be sampled for the next."""

from typing import ClassVar

from pydantic import NonNegativeInt, PositiveInt

from headrace.schemas.model import Part, Record
from headrace.schemas.records.reference import Reference


class TrainedGroup(Part):
    """A group in a step, with where everything stands."""

    group_id: str
    """The group."""
    group: Reference
    """Where it stands in ``training``."""
    trajectory_ids: list[str]
    """Members trained."""
    trajectories: list[Reference]
    """Where they stand in ``trajectories``, same order."""


class BatchRecipe(Part):
    """What was done with a step's groups to make its batch: with their places, enough to make it again."""

    format: PositiveInt = 1
    """How a batch is laid out; another number may give the same tokens another hash."""
    advantage_scale: str = "none"
    """What advantages were divided by: ``none`` or ``group_std``."""
    shuffle_seed: int | None = None
    """Seed by which advantages were dealt out anew inside each group (the control); ``None``: they were not."""


class Step(Record):
    """An optimiser step, and exactly what it was trained on."""

    TYPE: ClassVar[str] = "headrace.step.trained.v1"

    run: str
    """Training run."""
    step: PositiveInt
    """1 for the first."""
    version: PositiveInt
    """Policy version that the step made."""
    groups: list[TrainedGroup]
    """What it was trained on, in the batch's order."""
    config_sha256: str
    """Hash of the trainer's settings."""
    data_sha256: str
    """Hash of the packed batch: tokens, masks, log-probs, advantages."""
    recipe: BatchRecipe | None = None
    """How the batch was made of its groups; ``None`` in steps from before this was kept."""
    array_sha256: dict[str, str] = {}
    """Hash of each of the batch's arrays, by name: tells which one differs where a rebuilt batch does."""
    metrics: dict[str, float]
    """Loss, importance ratios, KL, entropy, grad norm, staleness, tokens, seconds …"""


class Budget(Record):
    """How much may be under way: samplers of the run begin new work only while they are below it.

    AReaL's admission rule: with B groups a step, group number N begins only while ⌊(N − 1) / B⌋ ≤ i + η, i being the
    policy version. That version was made of i · B groups: so at most (η + 1) · B groups are under way. The newest
    record of a run holds; a run without one is not bounded.
    """

    TYPE: ClassVar[str] = "headrace.budget.granted.v1"

    run: str
    """Training run."""
    version: NonNegativeInt
    """Policy version from which on it holds: i."""
    groups_per_step: PositiveInt
    """Groups that a step is trained on: B."""
    max_steps_ahead: NonNegativeInt
    """Steps' worth of groups that may be under way beyond those of the next step: η."""
    max_groups: NonNegativeInt
    """Most groups under way, over all samplers of the run: begun, and neither trained nor rejected. 0 where the trainer
    has trained its last step."""
