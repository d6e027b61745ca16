"""What a partition of ``rewards`` must remember, as values and as records of the topic ``headrace-group-state``.

    ["group", "g7"]            {"kind":"group","group_id":"g7","run":"r","task_id":"t","spec":"search@1","size":8, …}
    ["member", "g7", "t-31"]   {"kind":"member","group_id":"g7","member":{"trajectory_id":"t-31","total":0.5, …}}
    ["running", "r", "s@1", "eu"]  {"kind":"running","cohort":["r","s@1","eu"],"total":3.1,"weight":7.0,"count":7}
    ["rollouts", "r"]          {"kind":"rollouts","run":"r","scored":16,"reward_sum":8.5,"groups":2, …}
    ["clock"]                  {"kind":"clock", …}

Members are records of their own, so that a group of a thousand is not written a thousand times; when a group closes,
its own record keeps their ids and theirs are forgotten. The topic is compacted: the latest record of a key counts, an
empty one forgets it.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Self, TypeAlias

import msgspec

from headrace.schemas.ids import derived_id
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.trajectory import Defect
from headrace.schemas.rollouts import RolloutCounts
from headrace.streams.grouping.baselines import RunningMean
from headrace.streams.grouping.watermark import Watermark

Key: TypeAlias = tuple[str, ...]
"""Kind, then ids."""


Cohort: TypeAlias = tuple[str, ...]
"""What single attempts have in common: run, reward spec with version, cohort key and, where they have one, tenant."""


def cohort(run: str, spec: str, key: str, tenant: str | None) -> Cohort:
    """The cohort of attempts whose start says ``key`` as ``cohort_key``."""
    return (run, spec, key) if tenant is None else (run, spec, key, tenant)


class Candidate(msgspec.Struct, frozen=True, omit_defaults=True):
    """What of a reward its group needs."""

    trajectory_id: str
    """The trajectory."""
    partition: int
    """Where its record stands in ``trajectories``."""
    offset: int
    """Where its record stands in ``trajectories``."""
    spec: str
    """Reward spec."""
    total: float | None
    """The reward."""
    task_id: str | None = None
    """Its task: the group's, except in a cohort."""
    revision: int = 0
    """Which reward of the trajectory it is."""
    defects: tuple[str, ...] = ()
    """Labels of the trajectory: values of ``Defect``."""
    oldest_version: int | None = None
    """Oldest policy version among its tokens."""
    sampled_tokens: int = 0
    """Tokens sampled."""
    traceparent: str | None = None
    """Trace of the reward's record."""

    @property
    def trajectory(self) -> Reference:
        """Where its record stands."""
        return Reference(partition=self.partition, offset=self.offset)


class GroupState(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, tag_field="kind", tag="group"):
    """A group that is being collected or, with ``closed``, the memory of one that was."""

    group_id: str
    """The group."""
    run: str
    """Training run of its first member in the order of the log; rewards of another run are turned away."""
    task_id: str
    """Task; of a cohort's group of several, the cohort key."""
    spec: str
    """Reward spec of its first member; totals under another cannot be compared."""
    maximum: float | None
    """Largest possible total."""
    size: int | None
    """Expected members; ``None`` until a member says."""
    opened_ms: int
    """Log time of the first member, Unix milliseconds."""
    tenant: str | None = None
    """Tenant of its first member; rewards of another tenant are turned away."""
    cohort_key: str | None = None
    """Cohort, where the group is made of single attempts."""
    members: dict[str, Candidate] = {}
    """Trajectory id → member; empty once closed."""
    closed: tuple[str, ...] | None = None
    """The members of a closed group, as :func:`remembered`."""
    closed_ms: int | None = None
    """Log time of the decision."""
    skipped_ms: int = 0
    """Time that had not counted for timeouts when it was opened."""

    @property
    def cohort(self) -> Cohort | None:
        """What its members have in common; ``None`` for a group by id."""
        return None if self.cohort_key is None else cohort(self.run, self.spec, self.cohort_key, self.tenant)

    @property
    def since_ms(self) -> int:
        """Log time of the last thing that happened to it as a whole."""
        return self.opened_ms if self.closed_ms is None else self.closed_ms


class StoredMember(msgspec.Struct, frozen=True, tag_field="kind", tag="member"):
    """A member of an open group, as it is stored."""

    group_id: str
    """The group."""
    member: Candidate
    """The member."""


class Rollouts(msgspec.Struct, frozen=True, tag_field="kind", tag="rollouts"):
    """Rollouts of a run that no training record has told of yet."""

    run: str
    """Training run."""
    scored: int
    """This and the rest: as in ``RolloutCounts``."""
    reward_sum: float
    groups: int
    all_success: int
    all_fail: int
    all_equal: int

    @classmethod
    def of(cls, run: str, counts: RolloutCounts) -> Self:
        """``counts`` of ``run``."""
        return cls(run, **{name: getattr(counts, name) for name in RolloutCounts.model_fields})

    @property
    def counts(self) -> RolloutCounts:
        """Without the run's name."""
        return RolloutCounts(**{name: getattr(self, name) for name in RolloutCounts.model_fields})


Entry: TypeAlias = GroupState | StoredMember | RunningMean | Rollouts | Watermark
"""What is stored under a key."""

CLOCK: Key = ("clock",)

_ENTRY: msgspec.json.Decoder[Entry] = msgspec.json.Decoder(Entry)
_ENCODER = msgspec.json.Encoder()


_PLAIN_ID = re.compile(r"[0-9A-Za-z_./:@-]{1,64}")


def remembered(trajectory_id: str) -> str:
    """What the memory of a closed group keeps of a member: its id, or a hash of one that is long or odd. So the largest
    group's memory is far below what a state topic takes, whatever its members are called.
    """
    return trajectory_id if _PLAIN_ID.fullmatch(trajectory_id) else derived_id("member", trajectory_id)


def group_key(group_id: str) -> Key:
    """Where a group is stored."""
    return "group", group_id


def member_key(group_id: str, trajectory_id: str) -> Key:
    """Where a member of an open group is stored."""
    return "member", group_id, trajectory_id


def running_key(cohort: Key) -> Key:
    """Where a cohort's running mean is stored."""
    return "running", *cohort


def rollouts_key(run: str) -> Key:
    """Where the rollouts of a run are stored that no training record has told of yet."""
    return "rollouts", run


def to_record(key: Key, entry: Entry | None) -> tuple[bytes, bytes | None]:
    """Key and value as the topic has them. A group's members are records of their own."""
    if isinstance(entry, GroupState) and entry.members:
        entry = msgspec.structs.replace(entry, members={})
    return _ENCODER.encode(key), None if entry is None else _ENCODER.encode(entry)


def decoded(key: bytes, value: bytes) -> Entry:
    """The entry in a record of the topic. Raises ``ValueError`` naming the key of one that cannot be read."""
    try:
        return _ENTRY.decode(value)
    except msgspec.MsgspecError as error:
        raise ValueError(f"state of group under the key {key[:200]!r} cannot be read: {error}") from error


def without_group(entries: Mapping[bytes, Entry]) -> set[bytes]:
    """Keys of members whose group is not among ``entries``."""
    groups = {entry.group_id for entry in entries.values() if isinstance(entry, GroupState)}
    return {
        key for key, entry in entries.items() if isinstance(entry, StoredMember) and entry.group_id not in groups
    }  # fmt: skip


def groups_of(entries: Iterable[Entry]) -> list[GroupState]:
    """The groups among ``entries`` with their members, in the order of the groups."""
    members: dict[str, dict[str, Candidate]] = {}
    for entry in entries:
        if isinstance(entry, StoredMember):
            members.setdefault(entry.group_id, {})[entry.member.trajectory_id] = entry.member
    return [
        msgspec.structs.replace(entry, members=members.get(entry.group_id, {}))
        for entry in entries
        if isinstance(entry, GroupState)
    ]


def candidate_of(reward: Reward, traceparent: str | None = None) -> Candidate:
    """What of ``reward`` its group needs."""
    return Candidate(
        trajectory_id=reward.trajectory_id,
        partition=reward.trajectory.partition,
        offset=reward.trajectory.offset,
        spec=reward.spec,
        total=reward.total,
        task_id=reward.task_id,
        revision=reward.revision,
        defects=tuple(Defect(defect).value for defect in dict.fromkeys(reward.defects)),
        oldest_version=reward.oldest_version,
        sampled_tokens=reward.sampled_tokens,
        traceparent=traceparent,
    )
