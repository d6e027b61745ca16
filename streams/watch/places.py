"""Where a trajectory belongs, for records that name it only by its id: feedback, rejections, trained trajectories.

    feedback about t-1 ──waits──▶ t-1 is observed: run r, agent search, source hotpot ──▶ counts there
    rejection of t-2, observed before ─────────────────────────────────────────────────▶ counts at once

Feedback often comes before its trajectory, which is only written when it is closed. Both sides are bounded: the oldest
trajectories are forgotten, and what waits for longest counts without its place.
"""

from collections.abc import Iterable, MutableMapping
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from pydantic import TypeAdapter

from headrace.streams.watch import key_state
from headrace.streams.watch.key_state import KeyState, StoredRow, digest
from headrace.streams.watch.window import Key, Row

MAX_PLACES = 32_768
"""Most trajectories whose place is remembered: the newest, about 11 MB."""
MAX_WAITING = 1_024
"""Most records that wait for their trajectory."""


class Place(NamedTuple):
    """Where a trajectory belongs."""

    run: str
    """Training run."""
    agent: str
    """Agent."""
    task_source: str
    """Task source."""
    version: int | None
    """Newest policy version among its tokens; ``None`` if unknown."""


class About(NamedTuple):
    """A row about a trajectory that another record describes."""

    trajectory: str
    """Digest of the trajectory's id."""
    key: Key
    """Its key, without agent and task source."""
    identity: str
    """Tells it from all others of the key."""
    row: Row
    """The row."""

    def at(self, place: Place) -> "About":
        """Returns it with the key, and without a version of its own the version, of a trajectory at ``place``."""
        key = self.key._replace(
            run=self.key.run or place.run,
            agent=self.key.agent or place.agent,
            task_source=self.key.task_source or place.task_source,
        )
        version = place.version if self.row.version is None else self.row.version
        return self._replace(key=key, row=replace(self.row, version=version))


class StoredPlace(NamedTuple):
    """The place of a trajectory, as it is stored."""

    number: int
    """Its place in the order of observations."""
    trajectory: str
    """Digest of the trajectory's id."""
    place: Place
    """The place."""


class StoredWaiting(NamedTuple):
    """A row that waits for its trajectory, as it is stored."""

    number: int
    """Its place in the order of observations."""
    about: About
    """The row."""


PlaceEntry: TypeAlias = StoredPlace | StoredWaiting
Stored: TypeAlias = MutableMapping[bytes, bytes | None]
"""Changes of the stored state."""

_PLACES = TypeAdapter(StoredPlace)
_WAITING = TypeAdapter(StoredWaiting)


class Places:
    """The places that are known, and what waits for one. The order of entries is the order of their observations."""

    def __init__(self, entries: Iterable[PlaceEntry] = ()) -> None:
        """``entries``: the stored state, in any order."""
        self._known: dict[str, StoredPlace] = {}
        self._waiting: dict[bytes, StoredWaiting] = {}
        self._of: dict[str, list[bytes]] = {}
        self._next = 0
        for entry in sorted(entries, key=lambda each: each.number):
            self._next = entry.number + 1
            if isinstance(entry, StoredPlace):
                self._known[entry.trajectory] = entry
            else:
                self._keep(entry)

    def entries(self) -> list[PlaceEntry]:
        """Returns the whole state as it is stored."""
        return [*self._known.values(), *self._waiting.values()]

    def found(self, trajectory: str, place: Place, stored: Stored) -> list[About]:
        """Note that ``trajectory`` (a digest) is at ``place``; returns the rows that waited for it, in order."""
        if trajectory not in self._known:
            if len(self._known) >= MAX_PLACES:
                oldest = next(iter(self._known))
                del self._known[oldest]
                stored[_place_name(oldest)] = None
            entry = StoredPlace(self._number(), trajectory, place)
            self._known[trajectory] = entry
            stored.update([place_entry(entry)])
        return [self._taken(name, stored).at(place) for name in list(self._of.get(trajectory, ()))]

    def placed(self, about: About, stored: Stored) -> list[About]:
        """Returns the rows that count now: ``about`` if its trajectory is known; otherwise it waits, and of too many
        that wait the first counts without its place."""
        known = self._known.get(about.trajectory)
        if known is not None:
            return [about.at(known.place)]
        over = [self._taken(next(iter(self._waiting)), stored)] if len(self._waiting) >= MAX_WAITING else []
        entry = StoredWaiting(self._number(), about)
        self._keep(entry)
        stored.update([place_entry(entry)])
        return over

    def waits(self, about: About) -> bool:
        """Whether the same row waits already."""
        return _waiting_name(about) in self._waiting

    def _number(self) -> int:
        self._next += 1
        return self._next - 1

    def _keep(self, entry: StoredWaiting) -> None:
        name = _waiting_name(entry.about)
        self._waiting[name] = entry
        self._of.setdefault(entry.about.trajectory, []).append(name)

    def _taken(self, name: bytes, stored: Stored) -> About:
        about = self._waiting.pop(name).about
        self._of[about.trajectory].remove(name)
        if not self._of[about.trajectory]:
            del self._of[about.trajectory]
        stored[name] = None
        return about


def place_entry(entry: PlaceEntry) -> tuple[bytes, bytes]:
    """Returns the record of the state topic for ``entry``."""
    if isinstance(entry, StoredPlace):
        return _place_name(entry.trajectory), _PLACES.dump_json(entry)
    return _waiting_name(entry.about), _WAITING.dump_json(entry)


def decoded(name: bytes, value: bytes) -> PlaceEntry | KeyState | StoredRow:
    """Returns an entry of the state topic, of any kind. Raises ``ValueError``."""
    if name.startswith(b"p"):
        return _PLACES.validate_json(value)
    if name.startswith(b"w"):
        return _WAITING.validate_json(value)
    return key_state.decoded(name, value)


def _place_name(trajectory: str) -> bytes:
    return f"p{trajectory}".encode()


def _waiting_name(about: About) -> bytes:
    return f"w{digest(*about.key)}{about.identity}".encode()
