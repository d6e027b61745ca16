"""The trainer's steps, with their training data, and the budget for sampling."""

from typing import ClassVar

from pydantic import NonNegativeInt, PositiveInt

from headrace.schemas.model import Part, Record
from headrace.schemas.records.reference import Reference


class TrainedGroup(Part):
    """A group of a step, with references to its records."""

    group_id: str
    """The group."""
    group: Reference
    """Position of its record in ``training``."""
    trajectory_ids: list[str]
    """Trained members."""
    trajectories: list[Reference]
    """Positions of their records in ``trajectories``, in the same order."""


class BatchRecipe(Part):
    """How a step's batch was built from its groups. Together with the references it suffices to rebuild the batch."""

    format: PositiveInt = 1
    """Layout of the batch. The same tokens may have different hashes in different formats."""
    advantage_scale: str = "none"
    """Divisor of the advantages: ``none`` or ``group_std``."""
    shuffle_seed: int | None = None
    """Seed for shuffling the advantages within each group (the control experiment); ``None``: not shuffled."""
    max_hinted_turns: NonNegativeInt = 0
    """Most hinted turns in the batch; 0: the groups' hints are not used."""


class Step(Record):
    """An optimiser step, and exactly what it was trained on."""

    TYPE: ClassVar[str] = "headrace.step.trained.v1"

    run: str
    """Training run."""
    step: PositiveInt
    """1 for the first."""
    version: PositiveInt
    """Policy version that the step produced."""
    groups: list[TrainedGroup]
    """Groups it was trained on, in the order of the batch."""
    config_sha256: str
    """Hash of the trainer's settings."""
    data_sha256: str
    """Hash of the packed batch: tokens, masks, log-probs, advantages."""
    recipe: BatchRecipe | None = None
    """How the batch was built from its groups; ``None`` in records of older releases."""
    array_sha256: dict[str, str] = {}
    """Hash of each array of the batch, by name; identifies the array in which a rebuilt batch differs."""
    metrics: dict[str, float]
    """Loss, importance ratios, KL, entropy, grad norm, staleness, tokens, seconds …"""


class Budget(Record):
    """The number of groups that the samplers of a run may have in progress; they begin new groups only below it.

    AReaL's admission rule: with B groups per step, group number N begins only while ⌊(N − 1) / B⌋ ≤ i + η, where i is
    the policy version. That version was trained on i · B groups, so at most (η + 1) · B groups are in progress. The
    newest record of a run applies; a run without one has no bound.
    """

    TYPE: ClassVar[str] = "headrace.budget.granted.v1"

    run: str
    """Training run."""
    version: NonNegativeInt
    """Policy version from which the budget applies: i."""
    groups_per_step: PositiveInt
    """Groups per step: B."""
    max_steps_ahead: NonNegativeInt
    """Number of steps beyond the next one whose groups may be in progress: η."""
    max_groups: NonNegativeInt
    """Largest number of groups in progress (begun, and neither trained nor rejected) over all samplers of the run. 0
    after the trainer's last step."""
