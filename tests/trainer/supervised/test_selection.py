"""Common to all filters: exclusion of unusable attempts, one attempt per trajectory, tasks on one side only."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.events import Purpose, Role
from headrace.schemas.records.trajectory import Defect
from headrace.trainer.supervised.attempt import draw, form_of
from headrace.trainer.supervised.selection import newest, unfit, unusable
from headrace.trainer.supervised.split import is_held_out, split
from tests.trainer.builders import segment, trajectory
from tests.trainer.supervised.attempts import attempt, form


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({}, None),
        ({"purpose": Purpose.EVALUATE}, "evaluation"),
        ({"role": Role.FROZEN}, "frozen_role"),
        ({"defects": (Defect.NO_LOGPROBS,)}, None),  # tokens can be imitated without their log-probabilities
        ({"defects": (Defect.NO_LOGPROBS, Defect.NO_CONSENT)}, "no_consent"),
        ({"defects": (Defect.MISSING_EVENTS,)}, "missing_events"),
        ({"total": None}, "unscored"),
    ],
)
def test_the_reward_decides_whether_an_attempt_can_be_imitated(changes: dict[str, object], rule: str | None) -> None:
    assert unusable(attempt("a", **changes)) == rule


@pytest.mark.parametrize(
    ("found", "rule"),
    [
        (form(longest=64, largest_id=99), None),
        (form(longest=65), "too_long"),
        (form(largest_id=100), "vocabulary"),
        (form(smallest_id=-1), "vocabulary"),
        (form(sampled_tokens=0), "nothing_sampled"),
        (None, "unresolved"),
    ],
)
def test_the_record_decides_whether_an_attempt_can_be_imitated(found: object, rule: str | None) -> None:
    assert unfit(attempt("a", form=found), max_positions=64, vocabulary_size=100) == rule


def test_the_form_knows_the_smallest_and_the_largest_id_of_what_is_imitated() -> None:
    made = segment("cSc")
    odd = made.model_copy(update={"token_ids": array("i", [7, 3, -2])})
    found = form_of(trajectory("t", made, odd))
    assert (found.smallest_id, found.largest_id) == (-2, max(7, *made.token_ids))
    assert unfit(attempt("a", form=found), max_positions=64, vocabulary_size=100) == "vocabulary"


def test_the_latest_reward_of_a_trajectory_counts() -> None:
    first, second = attempt("a", total=0.0), attempt("a", total=1.0, revision=1)
    assert newest([first, second]) == newest([second, first]) == [second]


@given(st.lists(st.integers(0, 20), max_size=50), st.floats(0, 1))
def test_a_task_is_on_one_side_only(tasks: list[int], share: float) -> None:
    kept = [(attempt(f"a{i}", task=f"t{task}"), "full") for i, task in enumerate(tasks)]
    train, held_out = split(kept, share)
    assert not {each.task_id for each, _ in train} & {each.task_id for each, _ in held_out}
    assert len(train) + len(held_out) == len(kept)


def test_the_share_of_tasks_is_held_out_and_a_larger_one_holds_the_smaller() -> None:
    small, large = ({i for i in range(5000) if is_held_out(f"t{i}", share)} for share in (0.05, 0.2))
    assert len(small) / 5000 == pytest.approx(0.05, abs=0.01)
    assert small < large


def test_draws_depend_on_their_arguments_alone() -> None:
    assert draw(1, "low", "a") == draw(1, "low", "a")
    assert len({draw(seed, kind, "a") for seed in (0, 1) for kind in ("low", "negative")}) == 4
