"""Parents that wait for the rewards of their continuations, and those rewards, of one partition of ``rewards``.

A parent's reward and those of its continuations arrive in any order, because trajectories are scored in several
partitions. Entries are kept per parent until it is settled, or until nothing was heard of it for a time.
"""

from collections.abc import Iterable
from typing import Protocol

from headrace.streams.grouping.continuations import Continued, Family, continued_key
from headrace.streams.grouping.group_state import Candidate, Entry, GroupState, Key, cohort, remembered


class Store(Protocol):
    """State to store."""

    def keep(self, key: Key, entry: Entry) -> None:
        """Store ``entry``."""

    def forget(self, key: Key) -> None:
        """Delete ``key``."""


def family_of(state: GroupState, parent: Candidate) -> Family:
    """Returns the family of a member of a group that ended in order to be continued."""
    return cohort(state.run, parent.spec, parent.trajectory_id, state.tenant)


class Families:
    """Mutable; its state depends only on its inputs."""

    def __init__(self, stored: Iterable[Entry], open_groups: Iterable[GroupState], *, most: int) -> None:
        """Restored from ``stored`` and the members of ``open_groups``. Beyond ``most`` rewards, those of the parents
        heard of longest ago are dropped."""
        self._most = most
        self._continued = {entry.family: entry for entry in stored if isinstance(entry, Continued)}
        self._rewards = sum(len(entry.totals) for entry in self._continued.values())
        self._waiting: dict[Family, str] = {}
        for state in open_groups:
            for member in state.members.values():
                self.index(state, member)

    @property
    def oldest_ms(self) -> int | None:
        """When the parent that is forgotten next was last heard of, Unix milliseconds; ``None`` if there is none."""
        oldest = next(iter(self._continued.values()), None)
        return None if oldest is None else oldest.heard_ms

    def index(self, state: GroupState, member: Candidate) -> None:
        """Note a member of an open group that may wait for its continuations."""
        if member.waits:
            self._waiting[family_of(state, member)] = state.group_id

    def waiting_in(self, family: Family) -> str | None:
        """Returns the open group in which the family's parent waits; ``None`` if it does not."""
        return self._waiting.get(family)

    def count(self, family: Family) -> int:
        """Returns the number of continuations that have a reward."""
        entry = self._continued.get(family)
        return len(entry.totals) if entry else 0

    def hear(
        self, family: Family, trajectory_id: str, revision: int, total: float | None, now_ms: int, changes: Store
    ) -> None:
        """Note a continuation's reward."""
        before = self._continued.get(family) or Continued(family)
        after = before.hearing(remembered(trajectory_id), revision, total, now_ms)
        if after is before:
            return
        self._continued.pop(family, None)
        self._continued[family] = after  # moves to the end: the order is that of the last reward
        changes.keep(continued_key(family), after)
        self._rewards += len(after.totals) - len(before.totals)
        while self._rewards > self._most:
            self._forget(next(iter(self._continued)), changes)

    def totals_of(self, state: GroupState) -> dict[str, float | None]:
        """Returns the totals that waiting members of ``state`` would have by the rewards so far, by trajectory id."""
        return {
            name: entry.mean if (entry := self._continued.get(family_of(state, member))) else None
            for name, member in state.members.items()
            if member.waits
        }

    def settle(self, family: Family, changes: Store) -> float | None:
        """Forget a parent that no longer waits; returns its total by the rewards so far."""
        self._waiting.pop(family, None)
        entry = self._continued.get(family)
        self._forget(family, changes)
        return entry.mean if entry else None

    def forget_until(self, heard_ms: int, changes: Store) -> None:
        """Forget parents that were last heard of at ``heard_ms`` (Unix milliseconds) or before."""
        while (oldest := self.oldest_ms) is not None and oldest <= heard_ms:
            self._forget(next(iter(self._continued)), changes)

    def _forget(self, family: Family, changes: Store) -> None:
        entry = self._continued.pop(family, None)
        if entry is not None:
            self._rewards -= len(entry.totals)
            changes.forget(continued_key(family))
