"""What happened lately, folded from records of the log: dead letters, steps, rollouts, dropped events, feedback. Pure.

Every size is bounded: the newest of each kind count.
"""

from base64 import b64decode
from binascii import Error
from collections import Counter, OrderedDict, deque
from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple

from headrace.schemas.events import SdkStatsReported
from headrace.schemas.records.alert import Alert, Episode, EpisodeState
from headrace.schemas.records.dead_letter import DeadLetter
from headrace.schemas.records.step import Budget
from headrace.streams.oncall.alarms import SOURCE as ONCALL
from headrace.streams.oncall.conditions import NO_STEPS, Found

MOST = 10_000
"""Most records of a kind, sources and episodes that are remembered."""
FEEDBACK_WAIT_MS = 120_000
"""Time that the trajectory of a feedback has to appear in the ledger, in milliseconds."""
CAUSES = 3
"""Causes of dead letters that an alert names."""
MOST_SHOWN = 200
"""Most characters of an error's description in an alert."""


class _Dead(NamedTuple):
    time_ms: int
    topic: str
    cause: str
    description: str


class _Dropped(NamedTuple):
    time_ms: int
    source: str
    reason: str
    events: int


class _Feedback(NamedTuple):
    time_ms: int
    trajectory_id: str


class Recent:
    """Fold of the newest records. Times are those at which this process read them, Unix milliseconds; those of records
    that were in the log before are their own."""

    def __init__(self, runs: Iterable[str], *, window_s: float) -> None:
        """``runs``: training runs that must continue. ``window_s``: seconds over which is counted."""
        self._runs = tuple(dict.fromkeys(runs))
        self._window_ms = round(window_s * 1000)
        self._dead: deque[_Dead] = deque(maxlen=MOST)
        self._dropped: deque[_Dropped] = deque(maxlen=MOST)
        self._totals: OrderedDict[str, Counter[str]] = OrderedDict()
        self._feedback: deque[_Feedback] = deque(maxlen=MOST)
        self._budgets: dict[str, tuple[int, int]] = {}
        self._begun: dict[str, int] = {}
        self._silent_since: dict[str, int] = {}
        self._steps: dict[str, int] = {}
        self._rollouts: dict[str, int] = {}
        self._monitors: OrderedDict[str, str] = OrderedDict()

    def add_dead_letter(self, letter: DeadLetter, time_ms: int) -> None:
        """Note a dead letter."""
        producer = dict(letter.headers).get("ce_source")
        origin = f" from {_text(producer)}" if producer else ""
        newest = f"{letter.topic}[{letter.partition}]@{letter.offset}: {letter.message[:MOST_SHOWN]}"
        self._dead.append(_Dead(time_ms, letter.topic, f"{letter.error}{origin}", newest))

    def add_sdk_stats(self, source: str, stats: SdkStatsReported, time_ms: int, *, follows: bool) -> None:
        """Note an SDK's counts since it started. ``follows``: whether the record is new; the first counts of an SDK
        that are older may be from long ago, and only say from where to count."""
        before = self._totals.pop(source, None)
        now = Counter(stats.dropped)
        for reason, total in now.items():
            known = 0 if before is None else before[reason]
            grown = total - known if total >= known else total  # less: it has started again
            if grown > 0 and (before is not None or follows):
                self._dropped.append(_Dropped(time_ms, source, reason, grown))
        self._totals[source] = now
        if len(self._totals) > MOST:
            self._totals.popitem(last=False)

    def add_feedback(self, trajectory_id: str, time_ms: int) -> None:
        """Note a feedback about a trajectory."""
        self._feedback.append(_Feedback(time_ms, trajectory_id))

    def add_budget(self, budget: Budget, time_ms: int) -> None:
        """Note what samplers may begin: a trainer grants it at its start and with each step, and 0 at the end."""
        if budget.run in self._runs:
            self._budgets[budget.run] = (time_ms, budget.max_groups)
            self._begun.setdefault(budget.run, time_ms)

    def add_step(self, run: str, time_ms: int) -> None:
        """Note a step."""
        if run in self._runs:
            self._steps[run] = time_ms

    def add_rollout(self, run: str, time_ms: int) -> None:
        """Note a rollout."""
        if run in self._runs:
            self._rollouts[run] = time_ms

    def add_alert(self, alert: Alert) -> None:
        """Note an alert of a monitor, or of a run without steps."""
        episode = alert.episode
        if episode is None or episode.state is EpisodeState.ACKNOWLEDGED:
            return
        if alert.source == ONCALL and episode.monitor == NO_STEPS.name:
            self._note_silence(alert, episode)
        if alert.source != "watch":
            return
        self._monitors.pop(episode.id, None)
        if episode.state is not EpisodeState.RESOLVED:
            self._monitors[episode.id] = episode.monitor
            if len(self._monitors) > MOST:
                self._monitors.popitem(last=False)

    def _note_silence(self, alert: Alert, episode: Episode) -> None:
        """An open alert says since when a run has no steps: its first budgets may have been compacted since."""
        limit_s = alert.details.get("limit")
        self._silent_since.pop(alert.run, None)
        if episode.state is EpisodeState.OPENED and alert.run in self._runs and isinstance(limit_s, int | float):
            self._silent_since[alert.run] = episode.since_ms - round(1000 * limit_s)

    @property
    def unfinished(self) -> list[str]:
        """Runs that have begun and are not finished, of those that must continue."""
        return [run for run, (_, groups) in self._budgets.items() if groups]

    @property
    def open_monitors(self) -> Counter[str]:
        """Open alerts by monitor."""
        return Counter(self._monitors.values())

    def dead_letters(self, now_ms: int) -> list[Found]:
        """Dead letters within the window, by topic, with their commonest causes and what is wrong with the newest."""
        by_topic: dict[str, Counter[str]] = {}
        newest: dict[str, str] = {}
        for each in self._dead:
            if each.time_ms > now_ms - self._window_ms:
                by_topic.setdefault(each.topic, Counter())[each.cause] += 1
                newest[each.topic] = each.description
        return [
            Found(
                topic,
                causes.total(),
                details={f"cause {cause}": count for cause, count in causes.most_common(CAUSES)}
                | {"newest": newest[topic]},
            )
            for topic, causes in by_topic.items()
        ]

    def sdk_drops(self, now_ms: int) -> list[Found]:
        """Events dropped within the window, by source, with the reasons."""
        by_source: dict[str, Counter[str]] = {}
        for each in self._dropped:
            if each.time_ms > now_ms - self._window_ms:
                by_source.setdefault(each.source, Counter())[each.reason] += each.events
        return [
            Found(source, reasons.total(), details=dict(reasons.most_common(CAUSES)))
            for source, reasons in by_source.items()
        ]

    def lost_feedback(self, now_ms: int, known: Container[str]) -> list[Found]:
        """Feedback within the window whose trajectory is not ``known``, once that has had time to appear."""
        begin, end = now_ms - self._window_ms - FEEDBACK_WAIT_MS, now_ms - FEEDBACK_WAIT_MS
        lost = [
            each.trajectory_id
            for each in self._feedback
            if begin < each.time_ms <= end and each.trajectory_id not in known
        ]
        return [Found("", len(lost), details={"trajectory": lost[-1]})] if lost else []

    def step_ages(self, now_ms: int) -> list[Found]:
        """Seconds since the last step of each run that is not finished, or since it began. A trainer that starts again
        and again does not make it younger."""
        begun = {run: min(at_ms, self._silent_since.get(run, at_ms)) for run, at_ms in self._begun.items()}
        return self._ages(now_ms, {run: self._steps.get(run, begun[run]) for run in self._budgets})

    def rollout_ages(self, now_ms: int) -> list[Found]:
        """Seconds since the last rollout of each run that is not finished, or since its trainer granted a budget, as it
        does at its start and with each step."""
        granted = {run: granted_ms for run, (granted_ms, _) in self._budgets.items()}
        return self._ages(now_ms, {run: max(at, self._rollouts.get(run, 0)) for run, at in granted.items()})

    def _ages(self, now_ms: int, newest: Mapping[str, int]) -> list[Found]:
        return [Found(run, max(0, now_ms - newest[run]) / 1000, run) for run in self.unfinished]


def _text(encoded: str) -> str:
    try:
        return b64decode(encoded, validate=True).decode()
    except (Error, UnicodeDecodeError):
        return "an unreadable source"
