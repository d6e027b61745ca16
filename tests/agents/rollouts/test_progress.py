"""The next task of a sampler: none twice, by number and level, also after a restart."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.rollouts.config import RolloutConfig
from headrace.agents.rollouts.curriculum import CurriculumSettings
from headrace.agents.rollouts.journal import Journal
from headrace.agents.rollouts.progress import Progress
from headrace.agents.rollouts.rollout_metrics import AttemptEnd, Restored, RolloutMetrics
from headrace.agents.rollouts.tasks import TASKS_PER_SEED
from tests.agents.rollouts.test_feedback import formed, reward
from tests.agents.rollouts.test_journal import events_of, journal_of, place, started

LEVELS = ("easy", "middle", "hard")
FAST = CurriculumSettings(window=1, review=0)


def progress(**settings: Any) -> Progress:
    config = RolloutConfig("127.0.0.1:1", "http://127.0.0.1:1", "r", sampler="s0", **settings)
    return Progress(config, LEVELS, RolloutMetrics(LEVELS))


def places(found: Progress) -> list[tuple[int, int]]:
    drawn = []
    while not found.is_exhausted:
        at = found.next_place()
        drawn.append((at.epoch, at.number))
    return drawn


@given(
    tasks=st.integers(1, 12),
    epochs=st.integers(1, 3),
    first=st.integers(0, 5),
    attempted=st.sets(st.tuples(st.integers(0, 2), st.integers(0, 15))),
)
def test_no_task_is_attempted_twice_in_an_epoch_also_after_a_restart(
    tasks: int, epochs: int, first: int, attempted: set[tuple[int, int]]
) -> None:
    found = progress(tasks=tasks, epochs=epochs, first_task=first)
    journal = Journal("r", "s0")
    journal.attempted = {(epoch, TASKS_PER_SEED + number) for epoch, number in attempted}
    found.restore(journal)
    drawn = places(found)
    whole = {(epoch, TASKS_PER_SEED + first + number) for epoch in range(epochs) for number in range(tasks)}
    assert len(set(drawn)) == len(drawn)
    assert set(drawn) == whole - journal.attempted
    with pytest.raises(LookupError, match="every task"):
        found.next_place()


def test_the_same_seed_and_feedback_give_the_same_places() -> None:
    def drawn(seed: int) -> list[Any]:
        found = progress(seed=seed, curriculum=CurriculumSettings(window=1))
        result = []
        for number in range(40):
            at = found.next_place()
            found.began(f"g{number}", at, 1)
            found.add(reward("a", 2.0, group=f"g{number}"))
            result.append((at.number, at.level, at.curriculum))
        return result

    assert drawn(3) == drawn(3)
    assert [level for _, level, _ in drawn(3)] != [level for _, level, _ in drawn(4)]


def test_results_move_the_level_and_no_result_moves_nothing() -> None:
    found = progress(curriculum=FAST)
    for number, level in enumerate((0, 1, 2, 2)):
        at = found.next_place()
        assert (at.level, at.curriculum) == (level, level)
        found.began(f"g{number}", at, 1)
        found.add(reward("a", 2.0, group=f"g{number}"))
    found.add(reward("a", 0.0, group="of another sampler"))
    assert [found.next_place().level for _ in range(50)] == [2] * 50
    assert found.visited == [0, 1, 2]


def test_results_of_another_run_with_the_same_group_id_move_nothing() -> None:
    found = progress(curriculum=FAST)
    found.began("g", found.next_place(), 1)
    found.add(reward("x", 2.0, run="another"))
    assert found.visited == [0]
    found.add(reward("a", 2.0, run="r"))
    assert found.visited == [0, 1]


def test_a_restarted_sampler_goes_on_at_the_level_of_its_newest_group() -> None:
    found = progress(curriculum=FAST)
    found.restore(journal_of(events_of("t", started(place(number=TASKS_PER_SEED, curriculum=2)))))
    assert found.next_place().level == 2
    assert found.next_place().number == TASKS_PER_SEED + 2


def test_without_a_curriculum_tasks_are_the_usual_mixture() -> None:
    at = progress().next_place()
    assert (at.level, at.curriculum) == (None, None)


def test_the_report_counts_groups_attempts_and_fates() -> None:
    found = progress(curriculum=FAST)
    found.began("g", found.next_place(), 2)
    for record in (reward("a", 2.0), reward("b", 0.0), formed(), formed()):
        found.add(record)
    metrics = found.metrics
    metrics.ended(AttemptEnd.MADE)
    metrics.ended(AttemptEnd.MADE)
    metrics.restored(Restored.KEPT, 3)
    metrics.waited(1.5)
    report = metrics.report(seconds=6.0, levels=found.visited, is_exhausted=False)
    assert (report.groups, report.groups_by_level, report.attempts) == (1, {"easy": 1}, {"made": 2})
    assert (report.pass_rates, report.fates, report.restored) == ({"easy": 0.5}, {"gradient": 1}, {"kept": 3})
    assert (report.seconds, report.waited_s, report.levels) == (6.0, 1.5, ("easy",))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tasks": 0}, "tasks"),
        ({"tasks": 10, "first_task": TASKS_PER_SEED - 9}, "tasks"),
        ({"epochs": 0}, "epochs"),
        ({"restore_within_s": -1.0}, "restore_within_s"),
        ({"sampler": ""}, "sampler"),
        ({"curriculum": CurriculumSettings(first=3)}, "first level"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Progress(
            RolloutConfig(**{"bootstrap": "b", "vllm_url": "u", "run": "r"} | settings), LEVELS, RolloutMetrics(())
        )
