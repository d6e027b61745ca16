"""Hints of a reward spec: bounded, labelled where refused, and carried to the training group."""

from dataclasses import replace

import pytest
from pydantic import ValidationError

from headrace.schemas.events import ToolErrorClass, ToolStatus
from headrace.schemas.records.group import TrainingGroup
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import MAX_HINT_TOKENS, MAX_HINTS, Hint, Reward
from headrace.schemas.records.trajectory import ToolUse, Trajectory, Turn
from headrace.schemas.topics import TRAINING
from headrace.schemas.wire import decode
from headrace.streams.drive import drive
from headrace.streams.grouping.group import SOURCE, group, output_message
from headrace.streams.rewards.hints import HintFunction, hints_of
from headrace.streams.rewards.outcome import OUTCOME
from headrace.streams.rewards.registry import Rewards
from headrace.streams.rewards.tool_errors import tool_error_hints
from headrace.streams.scoring.score import score
from headrace.streams.topology import TOPOLOGY
from headrace.trainer.admission.admission import AdmissionRules, admit
from headrace.trainer.batches.batch import make_batch
from tests.streams.attempts import attempt, rewarded
from tests.streams.builders import session
from tests.streams.test_drive import messages

HERE = Reference(partition=0, offset=0)


def failing(error: ToolErrorClass) -> Turn:
    return Turn(sampled_tokens=2, tools=[ToolUse(call_id="c", tool="t", status=ToolStatus.ERROR, error_class=error)])


def rewards_with(function: HintFunction) -> Rewards:
    return Rewards({}, replace(OUTCOME, hints=function))


def test_turns_with_the_policys_own_failures_get_the_hint() -> None:
    turns = [
        failing(ToolErrorClass.INVALID_ARGUMENTS),
        failing(ToolErrorClass.TIMEOUT),
        failing(ToolErrorClass.REFUSED),
    ]
    rewards = rewards_with(tool_error_hints([5, 6], gap=1))
    found = score(attempt("a", outcome=1.0, turns=turns), HERE, rewards=rewards)
    assert found.hints == [
        Hint(turn=turn, token_ids=[5, 6], gap=1, source="tool_error") for turn in (0, 2)
    ]  # fmt: skip
    assert (found.total, found.hints_refused) == (1.0, {})


def test_hints_beyond_the_bounds_are_refused_with_their_reason() -> None:
    given = [Hint(turn=n, token_ids=[1]) for n in (0, 0, 1, 2, 3, 4, 99)]
    given.append(Hint(turn=5, token_ids=[1], tenant="another"))
    of = attempt("a", turns=[Turn(sampled_tokens=1)] * 6)
    kept, refused = hints_of(lambda _: given, of, spec="s@1")
    assert [hint.turn for hint in kept] == [0, 1, 2, 3]
    assert len(kept) == MAX_HINTS
    assert refused == {"repeated": 1, "too_many": 1, "out_of_range": 1, "other_tenant": 1}


def test_a_hint_gets_the_trajectorys_tenant() -> None:
    of = attempt("a")
    assert of.started is not None
    of = of.model_copy(update={"started": of.started.model_copy(update={"tenant": "eu"})})
    for tenant in (None, "eu"):
        kept, _ = hints_of(lambda _, tenant=tenant: [Hint(turn=0, token_ids=[1], tenant=tenant)], of, spec="s@1")
        assert [hint.tenant for hint in kept] == ["eu"]


@pytest.mark.parametrize("error", [KeyError("no such turn"), SystemExit(0)])
def test_a_function_that_raises_costs_the_hints_and_not_the_reward(error: BaseException) -> None:
    def broken(trajectory: Trajectory) -> list[Hint]:
        raise error

    found = score(attempt("a", outcome=1.0), HERE, rewards=rewards_with(broken))
    assert (found.total, found.hints, found.hints_refused) == (1.0, [], {"raised": 1})


@pytest.mark.parametrize("tokens", [[], [1] * (MAX_HINT_TOKENS + 1)])
def test_a_hint_has_one_token_or_more_and_not_too_many(tokens: list[int]) -> None:
    with pytest.raises(ValidationError, match="1 to 256 are allowed"):
        tool_error_hints(tokens)


def test_a_record_with_too_many_hints_is_unreadable() -> None:
    fields = rewarded("a").model_dump() | {"hints": [Hint(turn=n, token_ids=[1]) for n in range(MAX_HINTS + 1)]}
    with pytest.raises(ValidationError, match="at most 4"):
        Reward.model_validate(fields)


def test_hints_reach_the_batch_through_rewards_and_groups() -> None:
    rewards = rewards_with(lambda _: [Hint(turn=1, token_ids=[7, 8], gap=1)])
    start = {"group_id": "g", "group_size": 2}
    events = messages(
        session("a", "ask", "tool", "answer", outcome=1.0, start=start),
        session("b", "ask", "tool", "answer", outcome=0.0, start=start),
    )  # fmt: skip
    written = drive(TOPOLOGY, events, rewards=rewards)
    (formed,) = written["training"]
    assert isinstance(formed, TrainingGroup)
    assert [one.hints for one in formed.members] == [[Hint(turn=1, token_ids=[7, 8], gap=1)]] * 2
    places = {(0, offset): each for offset, each in enumerate(written["trajectories"]) if isinstance(each, Trajectory)}
    assert [turn.segment for turn in places[0, 0].turns] == [0, 0]
    admitted, _ = admit(formed, HERE, places, AdmissionRules("default", 10, 10**6, 10**6), 1)
    assert admitted is not None
    batch = make_batch([admitted], max_hinted_turns=1)
    assert batch.packed.token_ids[batch.packed.targets[batch.hints.firsts[0] : batch.hints.lasts[0]]].tolist() == [
        250, 251, 252
    ]  # fmt: skip
    assert batch.hints.refused.sum() == 1  # the second trajectory's hint is beyond the most


def test_a_group_too_large_for_its_topic_loses_its_hints_and_not_its_members() -> None:
    hints = [
        Hint(turn=n, token_ids=[2**30 + n] * 200 + list(range(56)), source="s" * 512, tenant="t" * 512)
        for n in range(4)
    ]
    state, outputs, size = None, [], 1000
    for number in range(size):
        reward = rewarded(f"{number:04}", float(number % 2), group="g", size=size).model_copy(update={"hints": hints})
        state, outputs = group(state, reward)
    (formed,) = outputs
    assert isinstance(formed, TrainingGroup)
    assert len(formed.members) == size
    assert formed.hints_refused == 4 * size
    assert not any(one.hints for one in formed.members)
    _, message = output_message(formed, 0)
    assert len(message.value) < TRAINING.max_bytes
    assert decode(message.headers, message.value)[0].source == SOURCE
