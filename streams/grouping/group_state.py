"""State of a partition of ``rewards``, as values and as records of the topic ``headrace-group-state``.

    ["group", "g7"]            {"kind":"group","group_id":"g7","run":"r","task_id":"t","spec":"search@1","size":8, …}
    ["member", "g7", "t-31"]   {"kind":"member","group_id":"g7","member":{"trajectory_id":"t-31","total":0.5, …}}
    ["running", "r", "s@1", "eu"]  {"kind":"running","cohort":["r","s@1","eu"],"total":3.1,"weight":7.0,"count":7}
    ["continued", "r", "s@1", "t-9"]  {"kind":"continued","family":["r","s@1","t-9"],"totals":{"t-31":[0,1.0]}, …}
    ["rollouts", "r"]          {"kind":"rollouts","run":"r","scored":16,"reward_sum":8.5,"groups":2, …}
    ["clock"]                  {"kind":"clock", …}

Members are separate records, so that a group of a thousand members is not rewritten a thousand times. When a group
closes, its record keeps the members' ids and the member records are deleted. The topic is compacted: the latest record
of a key counts, and an empty one deletes the key.
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
from headrace.streams.grouping.continuations import Continued
from headrace.streams.grouping.watermark import Watermark

Key: TypeAlias = tuple[str, ...]
"""Kind, then ids."""


Cohort: TypeAlias = tuple[str, ...]
"""Grouping key of single attempts: run, reward spec with version, cohort key and, if there is one, tenant."""


def cohort(run: str, spec: str, key: str, tenant: str | None) -> Cohort:
    """Returns the cohort of attempts whose start event has the ``cohort_key`` ``key``."""
    return (run, spec, key) if tenant is None else (run, spec, key, tenant)


class Hint(msgspec.Struct, frozen=True, omit_defaults=True):
    """A hint for a turn; fields as in the reward's."""

    turn: int
    token_ids: list[int]
    gap: int = 0
    source: str = ""
    tenant: str | None = None


class Candidate(msgspec.Struct, frozen=True, omit_defaults=True):
    """The fields of a reward that its group needs."""

    trajectory_id: str
    """The trajectory."""
    partition: int
    """Partition of its record in ``trajectories``."""
    offset: int
    """Offset of its record in ``trajectories``."""
    spec: str
    """Reward spec."""
    total: float | None
    """The reward."""
    task_id: str | None = None
    """Its task; equal to the group's, except in a cohort."""
    revision: int = 0
    """Revision of the reward."""
    defects: tuple[str, ...] = ()
    """Labels of the trajectory: values of ``Defect``."""
    oldest_version: int | None = None
    """Oldest policy version among its tokens."""
    sampled_tokens: int = 0
    """Tokens sampled."""
    traceparent: str | None = None
    """Trace of the reward's record."""
    hints: tuple[Hint, ...] = ()
    """Hints for its turns."""
    parent: str | None = None
    """For a continuation: the trajectory that it continues."""
    continuations: int = 0
    """Number of continuations for which it ended; 0 if it ended for good. Its own total then never counts."""
    waits: bool = False
    """Whether its total is still to come from its continuations."""
    task_source: str = ""
    """Source of its task."""

    @property
    def trajectory(self) -> Reference:
        """Position of its record in ``trajectories``."""
        return Reference(partition=self.partition, offset=self.offset)


class GroupState(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, tag_field="kind", tag="group"):
    """A group that is being collected or, if ``closed`` is set, a closed group that is remembered."""

    group_id: str
    """The group."""
    run: str
    """Training run of its first member in the order of the topic; rewards of another run are rejected."""
    task_id: str
    """Task; the cohort key if the group collects several attempts of a cohort."""
    spec: str
    """Reward spec of its first member; totals of other specs cannot be compared."""
    maximum: float | None
    """Largest possible total."""
    size: int | None
    """Expected number of members; ``None`` until a member specifies it."""
    opened_ms: int
    """Stream time of the first member, Unix milliseconds."""
    tenant: str | None = None
    """Tenant of its first member; rewards of another tenant are rejected."""
    cohort_key: str | None = None
    """Cohort key, if the group consists of single attempts."""
    members: dict[str, Candidate] = {}
    """Trajectory id → member; empty once closed."""
    closed: tuple[str, ...] | None = None
    """The members of a closed group, as :func:`remembered`."""
    closed_ms: int | None = None
    """Stream time of the decision."""
    skipped_ms: int = 0
    """Total time that had not counted for timeouts when the group was opened."""

    @property
    def cohort(self) -> Cohort | None:
        """Its cohort; ``None`` for a group by id."""
        return None if self.cohort_key is None else cohort(self.run, self.spec, self.cohort_key, self.tenant)

    @property
    def since_ms(self) -> int:
        """Stream time at which it was closed or, if it is open, opened."""
        return self.opened_ms if self.closed_ms is None else self.closed_ms


class StoredMember(msgspec.Struct, frozen=True, tag_field="kind", tag="member"):
    """A member of an open group, as it is stored."""

    group_id: str
    """The group."""
    member: Candidate
    """The member."""


class Rollouts(msgspec.Struct, frozen=True, tag_field="kind", tag="rollouts"):
    """Rollouts of a run that no training record has reported yet."""

    run: str
    """Training run."""
    scored: int
    """This and all further fields: as in ``RolloutCounts``."""
    reward_sum: float
    groups: int
    all_success: int
    all_fail: int
    all_equal: int

    @classmethod
    def of(cls, run: str, counts: RolloutCounts) -> Self:
        """Returns the entry for the ``counts`` of ``run``."""
        return cls(run, **{name: getattr(counts, name) for name in RolloutCounts.model_fields})

    @property
    def counts(self) -> RolloutCounts:
        """The counts without the run's name."""
        return RolloutCounts(**{name: getattr(self, name) for name in RolloutCounts.model_fields})


Entry: TypeAlias = GroupState | StoredMember | RunningMean | Continued | Rollouts | Watermark
"""A value of the state topic."""

CLOCK: Key = ("clock",)

_ENTRY: msgspec.json.Decoder[Entry] = msgspec.json.Decoder(Entry)
_ENCODER = msgspec.json.Encoder()


_PLAIN_ID = re.compile(r"[0-9A-Za-z_./:@-]{1,64}")


def remembered(trajectory_id: str) -> str:
    """Returns what a closed group keeps of a member: its id, or a hash of a long or unusual id. This keeps the record
    of the largest group far below the size limit of a state topic.
    """
    return trajectory_id if _PLAIN_ID.fullmatch(trajectory_id) else derived_id("member", trajectory_id)


def group_key(group_id: str) -> Key:
    """Returns the key of a group."""
    return "group", group_id


def member_key(group_id: str, trajectory_id: str) -> Key:
    """Returns the key of a member of an open group."""
    return "member", group_id, trajectory_id


def running_key(cohort: Key) -> Key:
    """Returns the key of a cohort's running mean."""
    return "running", *cohort


def rollouts_key(run: str) -> Key:
    """Returns the key of a run's unreported rollouts."""
    return "rollouts", run


def to_record(key: Key, entry: Entry | None) -> tuple[bytes, bytes | None]:
    """Returns key and value of the record. A group's members are separate records."""
    if isinstance(entry, GroupState) and entry.members:
        entry = msgspec.structs.replace(entry, members={})
    return _ENCODER.encode(key), None if entry is None else _ENCODER.encode(entry)


def decoded(key: bytes, value: bytes) -> Entry:
    """Decode a record of the topic. Raises ``ValueError`` with the key if it cannot be read."""
    try:
        return _ENTRY.decode(value)
    except msgspec.MsgspecError as error:
        raise ValueError(f"group state with the key {key[:200]!r} cannot be read: {error}") from error


def without_group(entries: Mapping[bytes, Entry]) -> set[bytes]:
    """Returns the keys of members whose group is not in ``entries``."""
    groups = {entry.group_id for entry in entries.values() if isinstance(entry, GroupState)}
    return {
        key for key, entry in entries.items() if isinstance(entry, StoredMember) and entry.group_id not in groups
    }  # fmt: skip


def groups_of(entries: Iterable[Entry]) -> list[GroupState]:
    """Returns the groups in ``entries`` with their members, in the order of the groups."""
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
    """Returns the fields of ``reward`` that its group needs."""
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
        hints=tuple(Hint(each.turn, list(each.token_ids), each.gap, each.source, each.tenant) for each in reward.hints),
        parent=reward.parent_trajectory_id,
        continuations=reward.continuations or 0,
        task_source=reward.task_source,
    )
