"""A short history in memory: groups, the steps that trained them, and the places of all records."""

import random
from dataclasses import dataclass, field

from headrace.schemas.events import TrajectoryStarted
from headrace.schemas.records.group import TrainingGroup
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.step import BatchRecipe, Step
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.records.weights import Weights
from headrace.trainer.batches.advantages import members_std, reward_std
from headrace.trainer.batches.batch import AdmittedGroup, ResolvedMember, make_batch
from headrace.trainer.batches.recipe import prepare_groups
from tests.trainer.builders import member, segment, training_group, trajectory


@dataclass
class History:
    """The topics' records, by place."""

    run: str = "run"
    trajectories: dict[tuple[int, int], Trajectory] = field(default_factory=dict)
    groups: dict[tuple[int, int], TrainingGroup] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    weights: list[Weights] = field(default_factory=list)
    _serial: int = 0

    def __post_init__(self) -> None:
        self.publish(0, None)

    def publish(self, version: int, parent: int | None) -> None:
        fields = {"kind": "anchor", "manifest_uri": f"file:///{version}", "sha256": "", "size": 1, "step": version}
        self.weights.append(Weights(run=self.run, version=version, parent=parent, **fields))

    def attempt(self, rng: random.Random, **labels: str) -> tuple[Trajectory, Reference]:
        """A trajectory with one or two segments, somewhere in ``trajectories``."""
        self._serial += 1
        texts = ["c" * rng.randint(1, 4) + "S" * rng.randint(1, 5) for _ in range(rng.randint(1, 2))]
        made = trajectory(f"{self.run}/{self._serial}", *map(segment, texts), run=self.run)
        started = TrajectoryStarted(**({"run": self.run, "task_id": "task", "agent": "search"} | labels))
        place = Reference(partition=rng.randint(0, 2), offset=10 * self._serial)
        self.trajectories[place.partition, place.offset] = made = made.model_copy(update={"started": started})
        return made, place

    def group(self, rng: random.Random, size: int = 3, **labels: str) -> tuple[TrainingGroup, Reference]:
        members = []
        for each, place in [self.attempt(rng, **labels) for _ in range(size)]:
            reward = float(rng.randint(0, 4))
            members.append(member(each, advantage=reward - 1.5, reward=reward, at=place))
        self._serial += 1
        record = training_group(f"g{self._serial}", sorted(members, key=lambda one: one.trajectory_id), run=self.run)
        record = record.model_copy(
            update={"task_id": labels.get("task_id", "task"), "scored": size + 1, "reward_std": 2.5}
        )
        place = Reference(partition=rng.randint(0, 1), offset=10 * self._serial)
        self.groups[place.partition, place.offset] = record
        return record, place

    def train(self, rng: random.Random, groups: int = 2, *, recipe: BatchRecipe | None = None, **labels: str) -> Step:
        """Make the next step, on new groups of which some members were not admitted."""
        number = len(self.steps) + 1
        admitted = []
        for record, place in [self.group(rng, rng.randint(1, 4), **labels) for _ in range(groups)]:
            kept = [each for each in record.members if rng.random() < 0.8] or record.members[:1]
            resolved = tuple(
                ResolvedMember(each, self.trajectories[each.trajectory.partition, each.trajectory.offset])
                for each in kept
            )
            admitted.append(AdmittedGroup(record.group_id, place, resolved, reward_std(record), members_std(record)))
        recipe = recipe or BatchRecipe()
        prepared = prepare_groups(admitted, recipe, step=number)
        batch = make_batch(prepared)
        step = Step(
            run=self.run,
            step=number,
            version=number,
            groups=[each.as_trained() for each in prepared],
            config_sha256="",
            data_sha256=batch.sha256(recipe.format),
            recipe=recipe,
            array_sha256=batch.array_sha256(recipe.format),
            metrics={"tokens_trained": float(len(batch.packed.targets))},
        )
        self.steps.append(step)
        self.publish(number, number - 1)
        return step
