"""Observations of records."""

from dataclasses import replace

import pytest

from headrace.schemas.bounds import MAX_NAME
from headrace.schemas.events import EndStatus, FeedbackGiven, Purpose, Role, ToolErrorClass, ToolStatus, VersionSpan
from headrace.schemas.records.group import Reason, Rejection, Stage
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.reward import Component
from headrace.schemas.records.trajectory import Defect, ToolUse, Turn
from headrace.schemas.records.watch import MAX_OBSERVED, Lane, Observation
from headrace.schemas.wire import UnreadableRecord, decode_payload
from headrace.streams.watch.measures import tools_of
from headrace.streams.watch.observe import MAX_COMPONENTS, observe
from headrace.streams.watch.window import Key, row_of
from tests.streams.attempts import attempt, rewarded
from tests.streams.watch.builders import after


def test_an_attempt_is_observed_by_its_behaviour() -> None:
    refused = ToolUse(call_id="1", tool="search", status=ToolStatus.ERROR, error_class=ToolErrorClass.INVALID_ARGUMENTS)
    turns = [Turn(tools=[refused]), Turn(), Turn()]
    found = observe(attempt("t", turns=turns, answer="x", task={"source": "wiki"}, version=7), "t")
    assert (found.of, found.run, found.agent, found.task_source, found.version) == (
        Lane.ATTEMPT, "r", "helper", "wiki", 7,
    )  # fmt: skip
    expected = {"turns": 3.0, "tokens": 2.0, "prompt_tokens": 3.0, "tool_calls": 1.0, "invalid": 1.0, "talks": 1.0}
    assert found.values.items() >= {**expected, "answered": 1.0, "left": 0.0, "outcome": 1.0}.items()
    assert "unfinished" not in found.values
    assert {name: value for name, value in found.values.items() if name.startswith("call:")} == {
        "call:search": 1.0, "call:say": 1.0, "call:answer": 1.0,
    }  # fmt: skip
    assert found.labels == ["^>search>say", "search>say>answer", "say>answer>$"]


def test_early_ends_and_unfinished_subagents_are_seen() -> None:
    left = attempt("t").model_copy(
        update={"status": EndStatus.ABORTED, "subagents_assigned": 4, "subagents_finished": 1}
    )
    values = observe(left, "t").values
    assert (values["left"], values["unfinished"], values["idle"]) == (1.0, 0.75, 3.0)
    assert observe(attempt("t").model_copy(update={"status": None}), "t").values["left"] == 1.0


def test_a_success_at_a_task_that_cannot_be_solved_trips_the_wire() -> None:
    wired = {"tripwire": True}
    assert observe(attempt("t", task=wired), "t").values["tripped"] == 1.0
    assert observe(attempt("t", task=wired, outcome=0.0), "t").values["tripped"] == 0.0
    assert "tripped" not in observe(attempt("t"), "t").values
    assert observe(rewarded("t", task=wired), "t").values["tripped"] == 1.0


def test_reading_what_is_marked_is_seen_in_arguments_of_calls_that_succeeded() -> None:
    def reads(status: ToolStatus, path: str) -> Turn:
        return Turn(tools=[ToolUse(call_id="1", tool="read", arguments={"paths": [path]}, status=status)])

    task = {"marked": ["answers.csv"]}
    assert observe(attempt("t", turns=[reads(ToolStatus.OK, "/x/answers.csv")], task=task), "t").values["marked"] == 1
    assert observe(attempt("t", turns=[reads(ToolStatus.ERROR, "/answers.csv")], task=task), "t").values["marked"] == 0
    assert observe(attempt("t", turns=[reads(ToolStatus.OK, "notes.md")], task=task), "t").values["marked"] == 0
    assert observe(attempt("t", turns=[reads(ToolStatus.OK, "/answers.csv")]), "t").values["marked"] == 0


@pytest.mark.parametrize("id", ['the "key"', "c:\\keys", "two\nlines", "\u202ekey", "7"])
def test_what_is_marked_is_seen_whatever_characters_its_id_has(id: str) -> None:
    turn = Turn(tools=[ToolUse(call_id="1", tool="read", arguments={"at": [{"id": id}]}, status=ToolStatus.OK)])
    assert observe(attempt("t", turns=[turn], task={"marked": [id]}), "t").values["marked"] == 1


def test_numbers_of_any_size_in_a_reward_make_an_observation_that_monitors_can_measure() -> None:
    huge = Component(value=1.0, weight=1.0, details={"disagreement": 1.7e308})
    scored = rewarded("t", 1.0).model_copy(update={"components": {"judge": huge}, "maximum": 1e308})
    found = observe(scored, "t")
    assert (found.values["disagreement"], found.values["maximum"]) == (MAX_OBSERVED, MAX_OBSERVED)
    key = Key(Lane.REWARD, "r")
    windows = [[replace(row_of(found, 1), id=str(each)) for each in range(40)]] * 30
    assert after(windows, key)[-1].readings.readings["disagreement"].value == MAX_OBSERVED
    with pytest.raises(UnreadableRecord, match="must be within"):
        decode_payload(Observation.TYPE, b'{"of": "reward", "trajectory_id": "t", "values": {"total": 1e200}}')


def test_a_component_with_a_long_name_does_not_stop_the_monitors_of_its_spec() -> None:
    scored = rewarded("t", 1.0).model_copy(
        update={"components": {"x" * 600: Component(value=1.0, weight=1.0)}, "unscored": "y" * 600, "total": None}
    )
    found = observe(scored, "t")
    key = Key(Lane.REWARD, "r")
    (concluded,) = after(
        [[row_of(found.model_copy(update={"trajectory_id": str(each)}), 1) for each in range(40)]], key
    )
    assert concluded.readings.readings[f"component:{'x' * (MAX_NAME - 32)}"].value == 1.0
    forged = found.model_copy(update={"values": {"value:" + "x" * (MAX_NAME - 6): 1.0, "total": 1.0}})
    (concluded,) = after(
        [[row_of(forged.model_copy(update={"trajectory_id": str(each)}), 1) for each in range(40)]], key
    )
    assert concluded.readings.readings["reward"].value == 1.0


def test_a_reward_is_observed_by_component_and_a_defect_is_a_drop() -> None:
    scored = rewarded("t", 1.0, task={"source": "wiki"}).model_copy(
        update={"components": {"judge": Component(value=0.5, weight=2.0, details={"disagreement": 0.25})}}
    )
    found = observe(scored, "t")
    assert (found.of, found.spec, found.part, found.task_source) == (Lane.REWARD, "outcome@1", "outcome@1", "wiki")
    assert (found.group, observe(scored.model_copy(update={"group_id": None}), "t").group) == (scored.group_id, "")
    expected = {"value:judge": 0.5, "weight:judge": 2.0, "disagreement": 0.25, "total": 1.0, "dropped": 0.0}
    assert found.values.items() >= expected.items()
    dropped = observe(rewarded("t", defects=[Defect.BAD_EVENT, Defect.NO_CONSENT]), "t")
    assert (dropped.labels, dropped.values["dropped"]) == (["bad_event"], 1.0)
    unscored = observe(rewarded("t", None), "t")
    assert unscored.labels == [scored.unscored or unscored.labels[0]]
    assert "total" not in unscored.values


def test_rejections_that_honest_runs_have_are_not_drops() -> None:
    def rejected(reason: Reason) -> Rejection:
        at = Reference(partition=0, offset=0)
        return Rejection(trajectory_id="t", trajectory=at, stage=Stage.ADMISSION, reason=reason, run="r", reward=0.5)

    assert observe(rejected(Reason.TOO_LONG), "t").labels == ["too_long"]
    stale = observe(rejected(Reason.STALE), "t")
    assert (stale.labels, stale.values) == ([], {"dropped": 0.0, "reward": 0.5})


def test_feedback_is_observed_by_signal() -> None:
    found = observe(FeedbackGiven(signal="score", value=0.5, delay_s=3.0), "t", "f-1")
    assert (found.of, found.spec, found.part, found.values) == (
        Lane.FEEDBACK, "score", "f-1", {"value": 0.5, "delay_s": 3.0},
    )  # fmt: skip


def test_evaluations_are_told_apart() -> None:
    assert observe(attempt("t", purpose=Purpose.EVALUATE), "t").values["evaluates"] == 1.0
    assert observe(rewarded("t", purpose=Purpose.EVALUATE), "t").values["evaluates"] == 1.0
    assert observe(attempt("t"), "t").values["evaluates"] == observe(rewarded("t"), "t").values["evaluates"] == 0.0


def test_of_a_frozen_role_both_observations_say_so() -> None:
    assert observe(attempt("t", role=Role.FROZEN), "t").values["frozen"] == 1.0
    assert observe(rewarded("t", role=Role.FROZEN), "t").values["frozen"] == 1.0
    assert observe(attempt("t"), "t").values["frozen"] == observe(rewarded("t"), "t").values["frozen"] == 0.0


def test_an_attempt_without_its_start_is_observed() -> None:
    found = observe(attempt("t", started=False), "t")
    assert (found.run, found.agent, found.task_source, found.tenant) == ("", "", "", "")
    assert (found.values["evaluates"], found.values["frozen"], found.values["marked"]) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("answer", [None, "", [], {}])
def test_an_empty_answer_is_none(answer: object) -> None:
    assert observe(attempt("t", answer=answer), "t").values["answered"] == 0.0
    assert observe(attempt("t", answer=0), "t").values["answered"] == 1.0


@pytest.mark.parametrize("status", [EndStatus.BUDGET_EXHAUSTED, EndStatus.TURNS_EXHAUSTED])
def test_an_attempt_that_used_up_turns_or_budget_is_exhausted_and_has_not_left(status: EndStatus) -> None:
    values = observe(attempt("t").model_copy(update={"status": status}), "t").values
    assert (values["exhausted"], values["left"]) == (1.0, 0.0)
    assert observe(attempt("t"), "t").values["exhausted"] == 0.0


def test_more_subagents_that_finished_than_were_assigned_are_no_negative_share() -> None:
    odd = attempt("t").model_copy(update={"subagents_assigned": 2, "subagents_finished": 3})
    values = observe(odd, "t").values
    assert (values["unfinished"], values["idle"]) == (0.0, 0.0)
    steps = attempt("t").model_copy(update={"critical_steps": 3, "total_steps": 12})
    assert observe(steps, "t").values["serial"] == 0.25
    assert observe(steps.model_copy(update={"critical_steps": 13}), "t").values["serial"] == 1.0
    assert "serial" not in observe(attempt("t").model_copy(update={"total_steps": 0}), "t").values


def test_prompt_tokens_are_those_before_the_first_sampled_one() -> None:
    def prompt(*masks: list[int]) -> float:
        trajectory = attempt("t")
        (segment,) = trajectory.segments
        segments = [segment.model_copy(update={"loss_mask": bytes(mask)}) for mask in masks]
        return observe(trajectory.model_copy(update={"segments": segments}), "t").values["prompt_tokens"]

    assert prompt([0, 0, 1, 1, 0]) == 2
    assert prompt([1, 0, 1], [0, 0, 0, 1]) == 0
    assert prompt([0, 0, 0, 0]) == 4
    assert prompt() == 0


def test_the_first_components_by_name_are_observed_and_the_largest_disagreement() -> None:
    components = {
        f"c{number:02}": Component(value=number, weight=1.0, details={"disagreement": number / 100})
        for number in reversed(range(MAX_COMPONENTS + 4))
    }
    values = observe(rewarded("t", 1.0).model_copy(update={"components": components}), "t").values
    assert sorted(name for name in values if name.startswith("value:")) == [
        f"value:c{number:02}" for number in range(MAX_COMPONENTS)
    ]
    assert values["disagreement"] == (MAX_COMPONENTS - 1) / 100


@pytest.mark.parametrize(
    ("total", "maximum", "tripped"),
    [(0.5, 1.0, 0.0), (0.6, 1.0, 1.0), (0.8, 2.0, 0.0), (0.0, None, 0.0), (0.1, None, 1.0), (0.1, 0.0, 1.0)],
)
def test_a_reward_trips_the_wire_above_half_of_its_maximum(total: float, maximum: float | None, tripped: float) -> None:
    wired = rewarded("t", task={"tripwire": True}).model_copy(update={"total": total, "maximum": maximum})
    assert observe(wired, "t").values["tripped"] == tripped


def test_why_a_reward_is_unscored_is_a_drop_unless_a_defect_says_it() -> None:
    unscored = rewarded("t").model_copy(update={"total": None, "unscored": "no_outcome"})
    found = observe(unscored, "t")
    assert (found.labels, found.values["dropped"]) == (["no_outcome"], 1.0)
    both = observe(unscored.model_copy(update={"defects": [Defect.BAD_EVENT]}), "t")
    assert both.labels == ["bad_event"]
    judged = rewarded("t").model_copy(update={"feedback": [Reference(partition=0, offset=0)]})
    assert (observe(judged, "t").values["feedback"], observe(rewarded("t"), "t").values["feedback"]) == (1.0, 0.0)


def test_feedback_without_a_delay_has_none() -> None:
    assert observe(FeedbackGiven(signal="score", value=0.5), "t", "f-1").values == {"value": 0.5}


def test_one_refused_call_of_several_makes_an_attempt_invalid() -> None:
    refused = ToolUse(call_id="1", tool="search", status=ToolStatus.ERROR, error_class=ToolErrorClass.INVALID_ARGUMENTS)
    turn = Turn(tools=[ToolUse(call_id="0", tool="search"), refused])
    assert observe(attempt("t", turns=[turn]), "t").values["invalid"] == 1.0


def test_an_attempt_has_its_tenant_its_newest_version_and_a_difficulty_of_bounded_length() -> None:
    made = attempt("t", version=3, task={"difficulty": "x" * 600})
    assert made.started is not None
    (segment,) = made.segments
    newer = segment.model_copy(update={"version_spans": [VersionSpan(version=5, start=0, end=2)]})
    started = made.started.model_copy(update={"tenant": "north"})
    found = observe(made.model_copy(update={"started": started, "segments": [segment, newer]}), "t")
    assert (found.tenant, found.version, found.difficulty) == ("north", 5, "x" * MAX_NAME)


def test_an_attempt_has_the_tools_that_it_was_offered() -> None:
    made = attempt("t")
    assert made.started is not None
    started = made.started.model_copy(update={"tools_offered": "read,search"})
    found = observe(made.model_copy(update={"started": started}), "t")
    assert (found.tools_offered, tools_of(row_of(found, 1))) == ("read,search", ("read,search",))
    assert (observe(made, "t").tools_offered, tools_of(row_of(observe(made, "t"), 1))) == ("", ())
    assert observe(attempt("t", started=False), "t").tools_offered == ""
