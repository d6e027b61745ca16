"""The fold of the ledger: records in, an account of each trajectory and total counts out. No I/O.

Each trajectory has one account, and topics only add to it: neither order nor repetition of records matters. Every
account must have an event, at most one fate, and all inputs of that fate (:meth:`Account.contradictions`). The counts
are updated with each account, so the ledger of a million trajectories is available immediately.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import msgspec

from headrace.schemas.envelope import SUBJECT, TYPE
from headrace.schemas.events import ClockTicked, TrajectoryStarted
from headrace.schemas.records.group import Rejection, TrainingGroup
from headrace.schemas.records.step import Step
from headrace.schemas.topics import EVENTS, REWARDS, TRAJECTORIES
from headrace.schemas.wire import UnreadableRecord, decode_payload
from headrace.streams.assembly.arrival import MAX_ID_BYTES
from headrace.streams.ledger.account import PENDING, Account, Known

MAX_NAMED = 100
"""Most contradictions listed in a ledger; the rest is only counted."""

Fields = TypeVar("Fields", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True)
class Ledger:
    """Counts of distinct trajectories."""

    started: int
    """Trajectories whose ``trajectory.started`` is in ``events``."""
    seen_without_start: int
    """Trajectories with other facts in ``events``, but without ``trajectory.started``."""
    expired: int
    """Trajectories known only from later topics, because retention has deleted their events."""
    trained: int
    """Trajectories in a step."""
    trained_by_step: dict[str, int]
    """``run/step`` → trajectories."""
    rejected: int
    """Rejected trajectories."""
    rejected_by: dict[str, dict[str, int]]
    """Stage → reason → trajectories."""
    pending: int
    """Trajectories that are neither trained nor rejected."""
    pending_by: dict[str, int]
    """``open`` (not assembled), ``unscored``, ``ungrouped``, ``untrained`` → trajectories."""
    conflicts: list[str]
    """Contradictions in words, at most ``MAX_NAMED``."""
    conflicting: int
    """Number of contradictions."""
    unreadable: int
    """Records of later topics that could not be decoded."""
    adds_up: bool
    """Every trajectory has exactly one fate, and the fates sum up to the trajectories."""

    def as_dict(self) -> dict[str, Any]:
        """Returns the ledger as JSON-compatible values."""
        return asdict(self)


class _Start(msgspec.Struct):
    """The needed fields of ``trajectory.started``; other fields of large records are skipped without decoding."""

    task_id: str
    agent: str
    run: str = "default"


class _Span(msgspec.Struct):
    version: int | None
    run: str | None = None


class _Segment(msgspec.Struct):
    version_spans: list[_Span] = []


class _Assembled(msgspec.Struct):
    started: _Start | None = None
    segments: list[_Segment] = []


class _Scored(msgspec.Struct):
    task_id: str | None = None
    agent: str = ""
    oldest_version: int | None = None


_START = msgspec.json.Decoder(_Start)
_ASSEMBLED = msgspec.json.Decoder(_Assembled)
_SCORED = msgspec.json.Decoder(_Scored)

_SEEN = Account(Known.SEEN)


class LedgerTally:
    """The fold's state: an account of each trajectory, and total counts.

    Takes about 300 bytes per trajectory (measured). No decided trajectory is dropped, because it might be decided
    again.
    """

    def __init__(self) -> None:
        self.accounts: dict[str, Account] = {}
        """By trajectory id."""
        self.unreadable = 0
        """Records of later topics that could not be decoded."""
        self._counts: Counter[str] = Counter()
        self._by_step: Counter[str] = Counter()
        self._by_reason: Counter[tuple[str, str]] = Counter()
        self._suspects: set[str] = set()
        self._texts: dict[str, str] = {}

    @classmethod
    def of(cls, accounts: Mapping[str, Account], unreadable: int) -> "LedgerTally":
        """Returns a tally with these ``accounts`` and this count of ``unreadable`` records."""
        tally = cls()
        tally.unreadable = unreadable
        text = tally._text
        for trajectory_id, known in accounts.items():
            steps = tuple(text(step) or "" for step in known.steps)
            rejections = tuple((text(stage) or "", text(reason) or "") for stage, reason in known.rejections)
            shared = Account(known.known, known.version, text(known.task), text(known.agent), steps, rejections)
            tally._note(trajectory_id, shared)
        return tally

    def add(self, topic: str, headers: Mapping[str, bytes | None], value: bytes | None) -> None:
        """Fold one record. Values are decoded only if necessary; unreadable events are not counted here."""
        kind, subject = headers.get(TYPE), _trajectory_id(headers.get(SUBJECT))
        if topic == EVENTS.name:
            if subject is not None and kind != _TICK:
                self._add_event(subject, kind, value)
        elif subject is None or kind is None:
            return
        elif topic == TRAJECTORIES.name:
            self._note(subject, self._assembled(value))
        elif topic == REWARDS.name:
            self._note(subject, self._scored(value))
        else:
            try:
                self._add_decided(decode_payload(kind.decode(errors="replace"), value))
            except UnreadableRecord:
                self.unreadable += 1

    def ledger(self, *, cut: frozenset[str] = frozenset()) -> Ledger:
        """Returns the ledger. ``cut``: topics whose oldest records are deleted, so that records may have expired."""
        counts = self._counts
        conflicts = sorted(
            f"{trajectory_id} {words}"
            for trajectory_id in self._suspects
            for words in self.accounts[trajectory_id].contradictions(cut)
        )
        pending_by = {stage: counts[stage] for stage in PENDING}
        trained, rejected, pending = counts["trained"], counts["rejected"], sum(pending_by.values())
        return Ledger(
            started=counts["started"],
            seen_without_start=counts["seen"] - counts["started"],
            expired=counts["expired"] if EVENTS.name in cut else 0,
            trained=trained,
            trained_by_step=_in_step_order(self._by_step),
            rejected=rejected,
            rejected_by=self._rejected_by(),
            pending=pending,
            pending_by=pending_by,
            conflicts=conflicts[:MAX_NAMED],
            conflicting=len(conflicts),
            unreadable=self.unreadable,
            adds_up=not conflicts and not self.unreadable and trained + rejected + pending == len(self.accounts),
        )

    def _add_event(self, trajectory_id: str, kind: bytes | None, value: bytes | None) -> None:
        """Add an event to its trajectory's account, readable or not, as the assembler does."""
        if kind == _STARTED:
            start = _fields(_START, value)
            labels = (self._text(start.task_id), self._text(start.agent)) if start else (None, None)
            self._note(trajectory_id, Account(Known.SEEN | Known.STARTED, None, *labels))
        elif not self.accounts.get(trajectory_id, _NOTHING).known & Known.SEEN:
            self._note(trajectory_id, _SEEN)

    def _assembled(self, value: bytes | None) -> Account:
        record = _fields(_ASSEMBLED, value)
        if record is None:
            return Account(Known.ASSEMBLED)
        start = record.started
        runs = (None, start.run) if start else None  # the same rule as `Trajectory.versions`
        spans = (span for segment in record.segments for span in segment.version_spans if not runs or span.run in runs)
        version = min((span.version for span in spans if span.version is not None), default=None)
        labels = (self._text(start.task_id), self._text(start.agent)) if start else (None, None)
        return Account(Known.ASSEMBLED, version, *labels)

    def _scored(self, value: bytes | None) -> Account:
        record = _fields(_SCORED, value)
        if record is None:
            return Account(Known.SCORED)
        return Account(Known.SCORED, record.oldest_version, self._text(record.task_id), self._text(record.agent))

    def _add_decided(self, payload: object) -> None:
        if isinstance(payload, TrainingGroup):
            for member in payload.members:
                self._note(member.trajectory_id, Account(Known.GROUPED, member.oldest_version))
        elif isinstance(payload, Rejection):
            place = (self._text(payload.stage.value) or "", self._text(payload.reason.value) or "")
            self._note(payload.trajectory_id, Account(version=payload.policy_version, rejections=(place,)))
        elif isinstance(payload, Step):
            step = Account(steps=(self._text(f"{payload.run}/{payload.step}") or "",))
            for group in payload.groups:
                for trajectory_id in group.trajectory_ids:
                    self._note(trajectory_id, step)

    def _note(self, trajectory_id: str, news: Account) -> None:
        """Merge ``news`` into the account and update the counts."""
        before = self.accounts.get(trajectory_id)
        after = news if before is None else before.merged(news)
        if after == before:
            return
        if before is not None:
            self._count(before, -1)
        self._count(after, +1)
        self.accounts[trajectory_id] = after
        if next(after.contradictions(), None) is None:
            self._suspects.discard(trajectory_id)
        else:
            self._suspects.add(trajectory_id)

    def _count(self, account: Account, change: int) -> None:
        counts = self._counts
        counts["started"] += change * bool(account.known & Known.STARTED)
        counts["expired" if account.is_expired else "seen"] += change
        counts["trained"] += change * bool(account.steps)
        counts["rejected"] += change * bool(account.rejections)
        if account.pending:
            counts[account.pending] += change
        for step in account.steps:
            self._by_step[step] += change
        for place in account.rejections:
            self._by_reason[place] += change

    def _text(self, text: str | None) -> str | None:
        """Intern ``text``, so that all accounts share one object; ``None`` for an empty text."""
        return self._texts.setdefault(text, text) if text else None

    def _rejected_by(self) -> dict[str, dict[str, int]]:
        by: dict[str, dict[str, int]] = {}
        for (stage, reason), count in sorted((+self._by_reason).items()):
            by.setdefault(stage, {})[reason] = count
        return by


_NOTHING = Account()
_TICK = ClockTicked.TYPE.encode()
_STARTED = TrajectoryStarted.TYPE.encode()


def _trajectory_id(subject: bytes | None) -> str | None:
    """Returns the trajectory id in a header; ``None`` if the assembler would reject it."""
    if not subject or len(subject) > MAX_ID_BYTES:
        return None
    try:
        return subject.decode()
    except UnicodeDecodeError:
        return None


def _fields(decoder: "msgspec.json.Decoder[Fields]", value: bytes | None) -> Fields | None:
    """Decode the needed fields; ``None`` if that fails, which other processes report."""
    try:
        return decoder.decode(value or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _in_step_order(counts: Counter[str]) -> dict[str, int]:
    def place(item: tuple[str, int]) -> tuple[str, int]:
        run, _, step = item[0].rpartition("/")
        return run, int(step)

    return dict(sorted((+counts).items(), key=place))
