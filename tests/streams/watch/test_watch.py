"""The fold: windows, keys, repetition, bounds, and that its state follows from the order within a key."""

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.deploy.watching.plant import RULES as PLANT_RULES
from headrace.deploy.watching.plant import Plan, planted_steps
from headrace.schemas.records.alert import Alert, EpisodeState
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.step import Step, TrainedGroup
from headrace.schemas.records.watch import Lane, LevelAccepted, Observation, Readings
from headrace.streams.watch import places
from headrace.streams.watch import watch as fold_module
from headrace.streams.watch.judgement import WatchRules
from headrace.streams.watch.key_state import StoredRow, digest, key_entry, row_entry, row_name
from headrace.streams.watch.places import decoded, place_entry
from headrace.streams.watch.planted.drifts import PLANTED
from headrace.streams.watch.watch import (
    ACCEPTED,
    KEYS_DROPPED,
    NOT_OPEN,
    OBSERVED,
    REPEATED,
    KeyState,
    Watch,
    WatchChanges,
)
from headrace.streams.watch.window import LEAST, Key, keys_of
from headrace.trainer.admission.pauses import PausedSource, Pauses
from tests.streams.watch.builders import RULES, observed


def stream(agents: int, windows: int, seed: int = 0) -> list[Observation]:
    """Observations of several agents, version by version, each with a few attempts and rewards."""
    random = Random(seed)
    found = []
    for version in range(windows):
        for agent in range(agents):
            for number in range(LEAST + 4):
                of = Lane.REWARD if number % 2 else Lane.ATTEMPT
                values = {"total": random.random()} if number % 2 else {"turns": float(random.randint(1, 9))}
                labels = [random.choice("abc")]
                found.append(
                    observed(f"{agent}-{version}-{number}", of=of, version=version, **values).model_copy(
                        update={"agent": f"a{agent}", "labels": labels}
                    )
                )
    return found


def folded(records: list[Any], *cuts: int) -> tuple[Watch, dict[bytes, bytes], list[Any]]:
    """The fold after ``records``, divided at ``cuts``, restored from its stored state at each; with that state and all
    readings and alerts.
    """
    fold, stored, out = Watch(RULES), dict[bytes, bytes](), list[Any]()
    ends = [*sorted(cuts), len(records)]
    start = 0
    for end in ends:
        changes = WatchChanges()
        for number in range(start, end):
            fold.add(records[number], 1000 + number, changes)
        for name, value in changes.stored.items():
            stored.pop(name, None)
            if value is not None:
                stored[name] = value
        out += [*changes.readings, *changes.alerts]
        fold = Watch(RULES, [decoded(name, value) for name, value in stored.items()])
        start = end
    return fold, stored, out


def test_a_window_ends_at_a_newer_version_once_it_has_enough_rows() -> None:
    few = [observed(f"a{number}", version=1, turns=1) for number in range(LEAST - 1)]
    _, _, none = folded([*few, observed("b", version=2, turns=1)])
    assert none == []
    enough = [*few, observed("b", version=2, turns=1), observed("c", version=3, turns=1)]
    _, _, ((readings, at_ms),) = folded(enough)
    assert (readings.trajectories, readings.first_version, readings.last_version) == (LEAST, 1, 2)
    assert (readings.since_ms, readings.until_ms, at_ms) == (1000, 1031, 1032)
    assert (readings.lane, readings.run, readings.agent, readings.task_source) == (Lane.ATTEMPT, "r", "a", "s")


def test_a_window_of_one_version_ends_when_it_is_large() -> None:
    _, _, found = folded([observed(f"a{number}", turns=1) for number in range(257)])
    assert [readings.trajectories for readings, _ in found if readings.lane is Lane.ATTEMPT] == [256]
    assert [readings.trajectories for readings, _ in found if readings.lane is Lane.INPUT] == [64] * 4


def test_a_version_that_is_late_joins_the_open_window() -> None:
    records = [observed(f"a{number}", version=2, turns=1) for number in range(LEAST)]
    _, _, found = folded([*records, observed("late", version=1, turns=1)])
    assert found == []


def test_each_record_counts_in_the_lanes_that_it_belongs_to() -> None:
    assert keys_of(observed("t")) == [Key(Lane.ATTEMPT, "r", "a", "s"), Key(Lane.INPUT, "r", "a")]
    assert keys_of(observed("t", evaluates=1.0)) == keys_of(observed("t", frozen=1.0)) == []
    assert keys_of(observed("t", of=Lane.REWARD, evaluates=1.0)) == [Key(Lane.REWARD, "r", "a", "s", "x@1")]
    assert keys_of(observed("t", of=Lane.REWARD, frozen=1.0)) == []
    assert keys_of(observed("t", of=Lane.FATE)) == [Key(Lane.FATE, "r")]


def test_trained_and_rejected_trajectories_are_compared() -> None:
    at = Reference(partition=0, offset=0)
    group = TrainedGroup(
        group_id="g", group=at, trajectory_ids=[f"t{number}" for number in range(40)], trajectories=[at] * 40
    )
    step = Step(run="r", step=1, version=1, groups=[group], config_sha256="", data_sha256="", metrics={})
    rejected = [observed(f"x{number}", of=Lane.FATE, dropped=1.0) for number in range(25)]
    attempts = [observed(id) for id in (*group.trajectory_ids, *(each.trajectory_id for each in rejected))]
    _, _, out = folded([*attempts, step, *rejected])
    (readings,) = [each for each, _ in out if each.lane is Lane.FATE]
    assert (readings.trajectories, readings.run, readings.agent, readings.task_source) == (64, "r", "a", "s")


def talking(version: int, share: float) -> list[Observation]:
    return [observed(f"v{version}-{n}", version=version, talks=float(n < share * 40)) for n in range(40)]


def level_of(alert: Alert, **changes: str) -> LevelAccepted:
    episode = alert.episode
    assert episode is not None
    fields = {"episode": episode.id, "monitor": episode.monitor, "lane": alert.details["lane"], "run": alert.run}
    fields |= {"agent": episode.agent, "task_source": episode.task_source, "by": "ada"}
    return LevelAccepted.model_validate(fields | changes)


def test_an_accepted_level_ends_the_alert_and_is_what_later_windows_are_compared_with() -> None:
    fold, changes = Watch(RULES), WatchChanges()

    def steps(first: int, last: int, share: float) -> list[Alert]:
        changes.alerts.clear()
        for version in range(first, last):
            for each in talking(version, share):
                fold.add(each, version, changes)
        return [alert for alert, _ in changes.alerts]

    (opened,) = steps(0, 30, 0.05) + steps(30, 34, 0.4)
    for wrong in ({"episode": "another"}, {"monitor": "tokens"}, {"agent": "b"}):
        fold.add(level_of(opened, **wrong), 34, changes)
    assert changes.counts[NOT_OPEN] == 3
    assert steps(34, 38, 0.4) == []
    fold.add(level_of(opened), 38, changes)
    (ended,) = [alert for alert, _ in changes.alerts]
    assert ended.episode is not None
    assert ended.episode.state is EpisodeState.RESOLVED
    assert ended.message == "Accepted by ada: talks (agent a, source s). What is usual is learnt anew."
    fold.add(level_of(opened), 38, changes)
    assert changes.counts[ACCEPTED] == 1
    fold = Watch(RULES, [decoded(*entry) for entry in map(stored_entry, fold.entries())])
    assert steps(38, 70, 0.4) == []
    assert {alert.kind for alert in steps(70, 74, 0.9)} == {"monitor_talks"}


@pytest.mark.parametrize("cut", [0, 1, 41])
def test_a_restart_after_a_level_was_accepted_changes_nothing(cut: int) -> None:
    """Also before the next window is complete; the level is sent again afterwards, as a command may that was killed."""
    before = [each for version in range(34) for each in talking(version, 0.05 if version < 30 else 0.4)]
    (opened,) = [each for each, _ in folded(before)[2] if isinstance(each, Alert)]
    level = level_of(opened)
    after = [each for version in range(34, 64) for each in talking(version, 0.4)]
    records = [*before, level, *after[:41], level, *after[41:]]
    fold, stored, out = folded(records, len(before) + 1, len(before) + 1 + cut)
    whole, all_stored, said = folded(records)
    assert (fold.entries(), stored, sorted(map(repr, out))) == (whole.entries(), all_stored, sorted(map(repr, said)))
    ended = [(each, at) for each, at in out if isinstance(each, Alert)][1:]
    assert [(each.details, at) for each, at in ended] == [
        ({"lane": "attempt", "window": 33, "accepted_by": "ada"}, 1000 + len(before))
    ]


def stored_entry(entry: object) -> tuple[bytes, bytes]:
    if isinstance(entry, KeyState):
        return key_entry(entry)
    return row_entry(entry) if isinstance(entry, StoredRow) else place_entry(entry)  # type: ignore[arg-type]


def test_an_accepted_tripwire_is_an_alert_again_only_with_new_evidence() -> None:
    fold, changes = Watch(RULES), WatchChanges()

    def steps(first: int, last: int, tripped: float) -> list[str]:
        changes.alerts.clear()
        for version in range(first, last):
            for n in range(40):
                fold.add(observed(f"v{version}-{n}", version=version, tripped=tripped), version, changes)
        return [str(alert.episode.state) for alert, _ in changes.alerts if alert.episode]

    assert steps(0, 3, 0.0) == []
    assert steps(3, 9, 1.0)[0] == "opened"
    opened = next(alert for alert, _ in changes.alerts)
    assert "resolved" not in steps(9, 10, 0.0)
    changes.alerts.clear()
    fold.add(level_of(opened), 10, changes)
    assert [str(alert.episode.state) for alert, _ in changes.alerts if alert.episode] == ["resolved"]
    assert steps(10, 20, 0.0) == []
    assert steps(20, 23, 1.0)[0] == "opened"


def fate(id: str, run: str) -> Observation:
    return Observation(of=Lane.FATE, trajectory_id=id, run=run, values={"dropped": 1.0}, labels=["too_long"])


def opinion(id: str) -> Observation:
    return Observation(of=Lane.FEEDBACK, trajectory_id=id, part=f"{id}-f", spec="thumb", values={"value": 1.0})


def about_sources(first: bool) -> list[Observation]:
    """70 attempts of each of two runs and two task sources, with a rejection and a feedback each, which come before
    (``first``) or after the attempts."""
    attempts, others = [], []
    for number in range(70):
        for run in ("r1", "r2"):
            for source in ("s1", "s2"):
                id = f"{run}-{source}-{number}"
                changed = {"run": run, "task_source": source}
                attempts.append(observed(id, version=number).model_copy(update=changed))
                others += [fate(id, run), opinion(id)]
    return [*others, *attempts] if first else [*attempts, *others]


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("cuts", [(), (100, 500, 700)])
def test_rejections_and_feedback_count_at_the_run_agent_and_task_source_of_their_trajectory(
    first: bool, cuts: tuple[int, ...]
) -> None:
    fold, _, out = folded(about_sources(first), *cuts)
    read = [each for each, _ in out if each.lane in (Lane.FATE, Lane.FEEDBACK)]
    assert {(each.lane, each.run, each.agent, each.task_source, each.spec, each.trajectories) for each in read} == {
        (lane, run, "a", source, "thumb" if lane is Lane.FEEDBACK else "", 64)
        for lane in (Lane.FATE, Lane.FEEDBACK)
        for run in ("r1", "r2")
        for source in ("s1", "s2")
    }
    assert {(each.first_version, each.last_version) for each in read} == {(0, 63)}, "the attempts' versions"
    assert not any(key.agent == "" for key in fold.keys)
    again = WatchChanges()
    for each in about_sources(first):
        fold.add(each, 9000, again)
    assert (again.counts[OBSERVED], again.readings) == (0, [])


def test_what_waits_for_too_long_counts_without_agent_and_task_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "MAX_WAITING", 2)
    fold, _, out = folded([*(fate(f"x{number}", "r") for number in range(3)), observed("x2"), observed("x0")])
    assert out == []
    found = [(entry.row.id, name) for entry in fold.entries() if isinstance(entry, StoredRow) for name in [entry.key]]
    without, within = digest(*Key(Lane.FATE, "r")), digest(*Key(Lane.FATE, "r", "a", "s"))
    assert [id for id, key in found if key == without] == ["x0"]
    assert [id for id, key in found if key == within] == ["x2"]


def test_state_of_former_releases_keeps_its_keys_of_fates_and_feedback() -> None:
    key = Key(Lane.FATE, "r")
    old = [
        decoded(*key_entry(KeyState(key, window=3))),
        decoded(*key_entry(KeyState(Key(Lane.FEEDBACK, spec="thumb")))),
    ]
    fold = Watch(RULES, old)
    changes = WatchChanges()
    for each in (fate("t", "r"), observed("t")):
        fold.add(each, 1, changes)
    assert {each for each in fold.keys if each.lane is Lane.FATE} == {key, Key(Lane.FATE, "r", "a", "s")}


def test_readings_follow_from_the_values_alone() -> None:
    """Readings of a state are finite numbers with the fields of a chart, once its baseline is learnt."""
    _, _, out = folded(stream(1, 60))
    last = [each for each, _ in out if each.TYPE.endswith("read.v1") and each.lane is Lane.REWARD][-1]
    reading = last.readings["reward"]
    assert reading.expected is not None
    assert reading.sd is not None
    assert reading.sd > 0
    assert reading.strength < 1


@settings(max_examples=6, deadline=None)
@given(st.lists(st.integers(0, 1200), max_size=6), st.integers(0, 100))
def test_batches_and_restarts_change_nothing(cuts: list[int], seed: int) -> None:
    records = stream(2, 16, seed)
    cuts = [cut for cut in cuts if cut < len(records)]
    whole, divided = folded(records), folded(records, *cuts)
    assert divided[1] == whole[1]
    assert divided[2] == whole[2]
    assert divided[0].entries() == whole[0].entries()


@settings(max_examples=6, deadline=None)
@given(st.randoms(use_true_random=False))
def test_only_the_order_within_a_key_matters(random: Random) -> None:
    """Two agents' observations, interleaved at random, give the same states and readings."""
    records = stream(2, 12)
    of = {agent: [each for each in records if each.agent == agent] for agent in ("a0", "a1")}
    mixed: list[Observation] = []
    rest = {agent: list(each) for agent, each in of.items()}
    while any(rest.values()):
        agent = random.choice([agent for agent, each in rest.items() if each])
        mixed.append(rest[agent].pop(0))
    for agent in of:
        alone = [readings.readings for readings, _ in folded(of[agent])[2]]
        beside = [readings.readings for readings, _ in folded(mixed)[2] if readings.agent == agent]
        assert beside == alone


@settings(max_examples=6, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 400), st.integers(1, 300)), max_size=30))
def test_an_observation_that_comes_again_changes_nothing(repeats: list[tuple[int, int]]) -> None:
    records = stream(1, 12)
    again = list(records)
    for number, later in sorted(repeats, reverse=True):
        if number < len(records):
            again.insert(min(len(again), number + later), records[number])
    readings = [each.readings for each, _ in folded(records)[2]]
    assert [each.readings for each, _ in folded(again)[2]] == readings


def test_repetitions_are_counted() -> None:
    fold, changes = Watch(RULES), WatchChanges()
    for _ in range(3):
        fold.add(observed("t"), 1, changes)
    assert changes.counts[REPEATED] == 4  # twice, in two lanes


def test_of_too_many_keys_the_one_that_was_quiet_for_longest_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold_module, "MAX_KEYS", 4)
    fold, changes = Watch(RULES), WatchChanges()
    for number in range(4):
        fold.add(observed("t").model_copy(update={"agent": f"a{number}"}), 1000 + number, changes)
    assert len(fold.keys) == 4
    assert {key.agent for key in fold.keys} == {"a2", "a3"}
    assert changes.counts[KEYS_DROPPED] == 4
    dropped = [name for name, value in changes.stored.items() if value is None]
    assert len(dropped) == 8  # two keys of each of two agents, with a row each


def test_a_tripwire_in_one_task_source_is_one_alert_and_pauses_only_that_source() -> None:
    """An agent's tasks without a source are another one, although the lane of inputs has no source, either."""
    fold, changes, pauses = Watch(WatchRules({}, frozenset({"tripwire"}))), WatchChanges(), Pauses("r")
    for number in range(200):
        fold.add(observed(f"t{number}", version=number // 40, turns=1, tripped=1.0), 1000, changes)
    assert {readings.lane for readings, _ in changes.readings} == {Lane.ATTEMPT, Lane.INPUT}
    for alert, _ in changes.alerts:
        pauses.add(alert)
    assert pauses.paused == {PausedSource("a", "s")}
    assert len(changes.alerts) == 1


def test_an_alert_of_a_key_that_is_dropped_ends_and_no_longer_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold_module, "MAX_KEYS", 4)
    fold, changes = Watch(WatchRules({}, frozenset({"tripwire"}))), WatchChanges()
    for number in range(80):
        fold.add(observed(f"t{number}", version=number // 40, turns=1, tripped=1.0), 1000, changes)
    ((opened, _),) = changes.alerts
    pauses = Pauses("r")
    pauses.add(opened)
    assert pauses.paused == {PausedSource("a", "s")}
    for number in range(4):
        fold.add(observed("t").model_copy(update={"agent": f"a{number}"}), 9000 + number, changes)
    (_, (ended, at_ms)) = changes.alerts
    assert opened.episode is not None
    assert ended.episode is not None
    assert (ended.episode.id, ended.episode.state, at_ms) == (opened.episode.id, EpisodeState.RESOLVED, 9001)
    assert ended.message.startswith("No longer watched: tripwire (agent a, source s).")
    pauses.add(ended)
    assert pauses.paused == frozenset()


def test_the_state_is_stored_as_it_is() -> None:
    fold, stored, _ = folded(stream(1, 30))
    for entry in fold.entries():
        match entry:
            case KeyState():
                name, value = key_entry(entry)
            case StoredRow():
                name, value = row_entry(entry)
            case _:
                name, value = place_entry(entry)
        assert stored[name] == value
        assert decoded(name, value) == entry
    with pytest.raises(ValueError, match="no entries like"):
        decoded(b"x", b"{}")


def test_stored_state_of_former_releases_is_found_under_its_names() -> None:
    """The names are digests: with others, the state of a running system would be lost, and its alerts never end."""
    name, value = key_entry(KeyState(Key(Lane.ATTEMPT, "r", "search", "hotpot"), touched_ms=5))
    assert name == b"k38106d16b1ff74ef"
    assert value == b'{"key":["attempt","r","search","hotpot",""],"touched_ms":5}'
    assert row_name(digest("k"), digest("t", "")) == b"rac52cb5ff985d4632add4cf717a361d9"


def test_an_observation_is_known_again_until_1024_later_ones_are_in_complete_windows() -> None:
    """Windows of inputs have 64 rows: the last 16 complete ones are remembered, and the open one."""
    fold, changes = Watch(RULES), WatchChanges()
    for number in range(18 * 64 + 1):
        fold.add(observed(f"t{number}", turns=1.0), 1000 + number, changes)
    assert changes.counts[REPEATED] == 0
    inputs = Key(Lane.INPUT, "r", "a")
    (state,) = [each for each in fold.entries() if isinstance(each, KeyState) and each.key == inputs]
    assert (len(state.remembered), state.window) == (1024, 18)
    assert state.remembered[0] == digest(f"t{2 * 64}", "")
    for known in (2 * 64, 18 * 64):
        again = WatchChanges()
        fold.add(observed(f"t{known}", turns=1.0), 9000, again)
        assert again.counts[REPEATED] == 2, known
    again = WatchChanges()
    fold.add(observed(f"t{2 * 64 - 1}", turns=1.0), 9000, again)
    assert (again.counts[REPEATED], again.counts[OBSERVED]) == (1, 1), "the lane of attempts has larger windows"


def test_the_state_of_a_key_is_bounded() -> None:
    _, stored, _ = folded(stream(1, 80))
    assert max(map(len, stored.values())) < 60_000


@pytest.mark.parametrize("hack", ["marked-answer", "clarifying-questions", "topical-without-answer"])
def test_what_is_said_does_not_depend_on_the_order_within_a_version(hack: str) -> None:
    """A replay reads the partitions in another order than the live processors."""

    def said(shuffled: bool) -> list[Readings | Alert]:
        fold, found, random = Watch(PLANT_RULES), list[Readings | Alert](), Random(5)
        for step in planted_steps(Plan(PLANTED[hack], honest=27, steps=33), 0):
            changes, observations = WatchChanges(), step.observations
            if shuffled:
                random.shuffle(observations)
            for each in observations:
                fold.add(each, step.time_ms, changes)
            found += [each for each, _ in (*changes.readings, *changes.alerts) if judged_by_version(each)]
        return sorted(found, key=str)

    in_order = said(False)
    assert {each.kind for each in in_order if isinstance(each, Alert)}
    assert said(True) == in_order


def judged_by_version(said: Readings | Alert) -> bool:
    """Whether it is about windows of single versions: of attempts, of what they were asked, of their rewards."""
    lane = said.lane if isinstance(said, Readings) else said.details["lane"]
    return lane in (Lane.ATTEMPT, Lane.INPUT, Lane.REWARD)


def test_a_key_that_gets_observations_is_not_dropped_for_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of task sources are the client's: one that is new with every attempt must not push out a busy one."""
    monkeypatch.setattr(fold_module, "MAX_KEYS", 8)
    fold, changes = Watch(RULES), WatchChanges()
    for number in range(4 * LEAST):
        fold.add(observed(f"t{number}", version=number // LEAST, turns=3.0), 10 * number, changes)
        for forged in range(3):
            made = observed(f"f{number}-{forged}", version=1, turns=3.0)
            fold.add(made.model_copy(update={"task_source": f"s{number}-{forged}"}), 10 * number + forged, changes)
    assert [each.window for each, _ in changes.readings if each.lane is Lane.ATTEMPT] == [0, 1, 2]


def test_a_window_that_cannot_be_judged_does_not_stop_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    fold, changes, failed = Watch(RULES), WatchChanges(), 0
    real = fold_module.conclude

    def conclude(state: KeyState, rows: Any, rules: WatchRules) -> Any:
        if any(row.version == 1 for row in rows):
            raise OverflowError("forged")
        return real(state, rows, rules)

    monkeypatch.setattr(fold_module, "conclude", conclude)
    for version in range(6):
        for number in range(LEAST):
            try:
                fold.add(observed(f"{version}-{number}", version=version, turns=3.0), 1000 * version, changes)
            except OverflowError:
                failed += 1
    assert failed == 2, "once in each lane that has this window"
    held = {row_name(each.key, each.identity) for each in fold.entries() if isinstance(each, StoredRow)}
    stored = {name for name, value in changes.stored.items() if value is not None and name.startswith(b"r")}
    assert stored == held, "a restart does not meet the window again"
    assert [each.window for each, _ in changes.readings if each.lane is Lane.ATTEMPT] == [0, 1, 2]
