"""Group as an operator: one :class:`Groups` per partition of ``rewards``; its effects are decisions and state."""

from collections import Counter
from collections.abc import Mapping

from headrace.schemas.records.group import Reason, Rejection, TrainingGroup
from headrace.schemas.records.reward import Reward
from headrace.schemas.topics import TRAJECTORIES
from headrace.streams.dead_letters.raised import raised_alert
from headrace.streams.grouping.group import SOURCE, output_message
from headrace.streams.grouping.group_state import Entry, decoded, to_record, without_group
from headrace.streams.grouping.groups import GroupChanges, Groups
from headrace.streams.raw import LogRecord, Outgoing
from headrace.streams.rules import Rules
from headrace.streams.runtime.processor import Effects, Operator, Start
from headrace.streams.runtime.state import SetAside, read_state
from headrace.streams.typed_reader import TypedReader

_REWARDS = TypedReader(Reward)

TRAINED = "trained"
"""Counted: trajectories in training groups. Rejected ones are counted by reason."""
IGNORED = "ignored"
"""Counted: rewards without effect: duplicates, or revisions after the decision."""


class GroupOperator(Operator):
    """Rewards in, training groups and rejections out."""

    def __init__(self, groups: Groups) -> None:
        """``groups``: the restored state."""
        self.groups = groups
        self.newest_ms = groups.time.newest_ms or 0
        self._changes = GroupChanges()

    def process(self, record: LogRecord) -> None:
        """Fold a reward into its group."""
        self.fold(record)

    def fold(self, record: LogRecord) -> Reward:
        """As :meth:`process`; returns the reward, or a struct with its fields."""
        reward, traceparent = _REWARDS.read(record)
        self.groups.add(reward, record.timestamp, self._changes, traceparent)
        return reward

    @property
    def waits(self) -> bool:
        """Whether a group waits for members."""
        return self.groups.open > 0

    def advance(self, now_ms: int, at_most: int) -> None:
        """Close groups that have timed out, and drop closed groups that have expired."""
        self.groups.pass_time(now_ms, self._changes)

    def flush(self) -> Effects:
        """Returns decisions, alerts about those that raised, and state."""
        changes, self._changes = self._changes, GroupChanges()
        outgoing = [
            Outgoing(
                *output_message(each.record, each.time_ms, origin=each.origin, rollouts=each.rollouts), each.time_ms
            )
            for each in changes.outputs
        ]
        return Effects(
            outgoing + raised_in(changes),
            dict(to_record(key, entry) for key, entry in changes.stored.items()),
            _counts(changes),
        )


def restore_group(rules: Rules, start: Start) -> tuple[GroupOperator, list[SetAside]]:
    """Returns the operator of a partition of ``rewards``, and the state entries that cannot be read."""
    entries, aside = read_entries(start.stored)
    groups = Groups(
        rules.groups,
        entries,
        policies=rules.policies,
        sources=start.partitions.get(TRAJECTORIES, 1),
        step_ms=rules.groups.step_ms if start.outages else None,
    )
    return GroupOperator(groups), aside


def read_entries(state: Mapping[bytes, LogRecord]) -> tuple[list[Entry], list[SetAside]]:
    """Returns the entries of ``state``, and those to quarantine: unreadable ones and members without a group."""
    entries, aside = read_state(state, decoded)
    orphans = without_group(entries)
    aside += [SetAside(state[key], "a member of a group that is missing or cannot be read") for key in orphans]
    return [entry for key, entry in entries.items() if key not in orphans], aside


def raised_in(changes: GroupChanges) -> list[Outgoing]:
    """Returns an alert for each group in ``changes`` whose decision raised; its members are rejected."""
    found: dict[str | None, Outgoing] = {}
    for record, time_ms, *_ in changes.outputs:
        if isinstance(record, Rejection) and record.reason is Reason.RAISED and record.group_id not in found:
            place = record.trajectory
            found[record.group_id] = raised_alert(
                None, SOURCE, time_ms, topic=TRAJECTORIES.name, partition=place.partition, offset=place.offset
            )
    return list(found.values())


def _counts(changes: GroupChanges) -> Counter[str]:
    """Returns counts of fates by reason, and of ignored rewards."""
    counts: Counter[str] = Counter({IGNORED: changes.ignored} if changes.ignored else {})
    for record, *_ in changes.outputs:
        if isinstance(record, TrainingGroup):
            counts[TRAINED] += len(record.members)
        else:
            counts[record.reason.value] += 1
    return counts
