"""The attempts of a group beside one another."""

from collections.abc import Sequence

from headrace.deploy.transcript.reading import latest_rewards
from headrace.deploy.transcript.siblings import Attempt, Group, compared, siblings
from headrace.schemas.events import EndStatus
from headrace.schemas.records.reward import Component, Reward
from headrace.schemas.records.trajectory import Trajectory, Turn
from headrace.trainer.provenance.evidence import Found
from tests.trainer.builders import AT, segment, trajectory


def words(token_ids: Sequence[int]) -> str:
    return "".join(f" w{each}" for each in token_ids)


def record(name: str, *lengths: int) -> Trajectory:
    """An attempt with a turn for each of ``lengths``; its tokens follow from these."""
    made = trajectory(name, *(segment("c" + "S" * length) for length in lengths))
    turns = [Turn(sampled_tokens=length, segment=number) for number, length in enumerate(lengths)]
    return made.model_copy(update={"turns": turns, "answer": f"answer of {name}", "outcome": 1.0})


def reward(name: str, total: float, revision: int = 0, spec: str = "shop@1") -> Reward:
    return Reward(
        trajectory_id=name, trajectory=AT, spec=spec, total=total, maximum=2.0, revision=revision, ended_ms=0,
        components={"found": Component(value=total, weight=0.5), "prunes": Component(value=0.5, weight=-0.1)},
        status=EndStatus.COMPLETED,
    )  # fmt: skip


def group(*attempts: Attempt) -> Group:
    return Group("g", "mean 0.5", attempts)


def test_each_attempt_has_its_terms_its_answer_and_what_it_did_where_it_parts() -> None:
    lines = siblings(
        group(
            Attempt("a", 1.0, 0.5, "trained at step 3", reward("a", 1.0), record("a", 2, 3)),
            Attempt("b", 0.0, -0.5, "rejected: stale", reward("b", 0.0), record("b", 2, 4)),
            Attempt("c", None, None, "waits for its group", None, record("c", 2)),
            Attempt("gone", 0.0, -0.5, "", reward("gone", 0.0)),
        ),
        "b",
        words,
    )
    assert lines == [
        "Group g, baseline mean 0.5: 4 attempts; they part at turn 1 (3 compared)",
        "  - a  reward 1  advantage +0.5  outcome 1  5 tokens  trained at step 3",
        "      terms   shop@1 1 of 2 from 0.5·1 found − 0.1·0.5 prunes",
        '      answer  "answer of a"',
        "      turn 1  w11 w18 w25",
        "  → b  reward 0  advantage -0.5  outcome 1  6 tokens  rejected: stale",
        "      terms   shop@1 0 of 2 from 0.5·0 found − 0.1·0.5 prunes",
        '      answer  "answer of b"',
        "      turn 1  w12 w19 w26 w33",
        "  - c  no reward  outcome 1  2 tokens  waits for its group",
        '      answer  "answer of c"',
        "      turn 1  it ended before this turn",
        "  - gone  reward 0  advantage -0.5  completed  0 tokens",
        "      terms   shop@1 0 of 2 from 0.5·0 found − 0.1·0.5 prunes",
    ]


def test_attempts_that_did_the_same_are_not_compared_and_ids_stand_without_a_decoder() -> None:
    same = siblings(group(*(Attempt(each, 1.0, 0.0, "", None, record(each, 2)) for each in "ab")), "a", words)
    assert same[0].endswith("2 attempts; all did the same")
    assert not any("turn" in line for line in same[1:])
    (ids,) = [
        line
        for line in siblings(
            group(Attempt("a", 1.0, 0.0, "", None, record("a", 2)), Attempt("b", 0.0, 0.0, "", None, record("b", 3))),
            None,
            None,
        )
        if "turn 0  11 18 25" in line
    ]
    assert ids
    (alone,) = [line for line in siblings(group(Attempt("a", 1.0, 0.0, "")), "a", None) if "Group" in line]
    assert alone == "Group g, baseline mean 0.5: 1 attempt"


def test_texts_are_short() -> None:
    long = record("a", 900).model_copy(update={"answer": "x" * 9_000})
    lines = siblings(
        group(Attempt("a", 1.0, 0.5, "", None, long), Attempt("b", 0.0, 0.5, "", None, record("b", 800))), "a", words
    )
    assert max(map(len, lines)) < 520
    assert any(line.endswith("…") for line in lines)


def test_of_a_large_group_the_best_the_worst_and_the_one_that_is_shown_are_compared() -> None:
    ids = [f"t{number}" for number in range(20)]
    assert compared(ids, "t9") == ["t0", "t1", "t2", "t3", "t9", "t16", "t17", "t18", "t19"]
    assert compared(ids, None) == ["t0", "t1", "t2", "t3", "t16", "t17", "t18", "t19"]
    assert compared(ids[:8], "t1") == ids[:8]


def test_the_reward_that_holds_is_the_last_revision_by_the_spec_that_scored_last() -> None:
    scores = [
        Found((0, 1), reward("a", 1.0)),
        Found((0, 2), reward("a", 0.25, spec="other@1")),
        Found((0, 3), reward("a", 0.75, revision=1)),
        Found((0, 4), reward("a", 1.0)),  # sent again
        Found((0, 5), reward("b", 0.5)),
    ]
    assert {name: each.total for name, each in latest_rewards(scores).items()} == {"a": 0.75, "b": 0.5}
