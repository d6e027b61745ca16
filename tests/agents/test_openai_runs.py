"""Recorded runs become facts: every message once, every call with its own result, nothing invented."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any, TypeVar

import pytest

from headrace.agents.importer import BadLine, survey
from headrace.agents.openai_runs import BadRun, Dataset, fact_messages, parse_run, run_to_facts
from headrace.schemas.events import ModelCalled, ToolCalled, ToolReturned, TrajectoryEnded, TrajectoryStarted
from headrace.schemas.model import Record
from headrace.schemas.wire import decode

RUNS = Path(__file__).parent.parent / "data" / "runs.jsonl"
AIRLINE = Path(__file__).parents[3] / "shared" / "data" / "airline-gpt4o-tasks-00-24.jsonl"
DATASET = Dataset("tables")

F = TypeVar("F", bound=Record)


def line(number: int) -> dict[str, Any]:
    row: dict[str, Any] = json.loads(RUNS.read_text().splitlines()[number - 1])
    return row


def facts(number: int, group_size: int = 2) -> list[Record]:
    run = parse_run(json.dumps(line(number)).encode())
    return run_to_facts(run, DATASET, run.trial or 0, group_size)


def of_type(kind: type[F], found: list[Record]) -> list[F]:
    return [fact for fact in found if isinstance(fact, kind)]


def messages_of(found: list[Record]) -> list[Any]:
    told: list[Any] = []
    for fact in found:
        told += getattr(fact, "messages", None) or []
    return told


def test_a_run_begins_with_its_task_and_ends_with_its_outcome() -> None:
    started, *_, ended = facts(1, group_size=4)
    assert started == TrajectoryStarted(
        task_id="0",
        group_id="tables/0",
        group_size=4,
        agent="imported",
        run="tables",
        task={"trial": 0, "info": {"expected": ["book"]}},
    )
    assert isinstance(ended, TrajectoryEnded)
    assert (ended.outcome, ended.answer) == (1.0, "Booked.")


def test_each_answer_is_a_model_call_with_the_messages_since_the_last_and_no_tokens() -> None:
    first, second, *_ = of_type(ModelCalled, facts(1))
    assert [message["role"] for message in first.messages or ()] == ["system", "user", "assistant"]
    assert [message["role"] for message in second.messages or ()] == ["tool", "assistant"]
    assert (first.context_ids, first.sampled_ids, first.logprobs, first.version_spans) == (None, None, None, [])


@pytest.mark.parametrize("number", [1, 2, 4, 5, 9])
def test_every_message_is_in_one_event_as_it_was_recorded(number: int) -> None:
    row = line(number)
    assert messages_of(facts(number)) == row.get("traj", row.get("messages"))


def test_a_reused_call_id_pairs_with_its_own_result() -> None:
    found = facts(2)
    assert [call.call_id for call in of_type(ToolCalled, found)] == ["call_9", "call_9#2"]
    assert [(back.call_id, back.tool) for back in of_type(ToolReturned, found)] == [
        ("call_9", "find_table"),
        ("call_9#2", "book"),
    ]


def test_calls_of_one_turn_pair_by_id_and_not_by_order() -> None:
    results = {back.call_id: back.result for back in of_type(ToolReturned, facts(4))}
    assert results == {"call_a": "done a", "call_b": "done b"}


def test_an_error_result_is_a_failure_without_an_error_class() -> None:
    fine, failed = of_type(ToolReturned, facts(2))
    assert (fine.status, failed.status, failed.error_class) == ("ok", "error", None)


def test_arguments_that_are_not_json_are_kept_unchanged() -> None:
    assert of_type(ToolCalled, facts(5))[0].arguments == {"raw": "seats = 2"}


def test_a_missing_reward_stays_missing() -> None:
    assert of_type(TrajectoryEnded, facts(5))[0].outcome is None


def test_ids_depend_only_on_data_set_task_and_trial() -> None:
    def ids(dataset: Dataset, trial: int, time_ms: int) -> list[str]:
        run = parse_run(json.dumps(line(1)).encode())
        trajectory_id = dataset.trajectory_id(str(run.task_id), trial)
        sent = fact_messages(run_to_facts(run, dataset, trial, 2), dataset, trajectory_id, time_ms)
        return [decode(message.headers, message.value)[0].id for message in sent]

    assert ids(DATASET, 0, 1) == ids(DATASET, 0, 99_000)
    assert not set(ids(DATASET, 0, 1)) & set(ids(DATASET, 1, 1))
    assert not set(ids(DATASET, 0, 1)) & set(ids(Dataset("other"), 0, 1))


def test_the_index_of_a_fact_is_its_sequence_number() -> None:
    sent = fact_messages(facts(1), DATASET, "t", 5)
    envelopes = [decode(message.headers, message.value)[0] for message in sent]
    assert [(envelope.sequence, envelope.subject) for envelope in envelopes] == [
        (n, "t") for n in range(len(envelopes))
    ]
    assert {envelope.source for envelope in envelopes} == {"headrace/import/tables"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Invalid JSON"),
        ("[]", "should be an object"),
        ('{"task_id": 1}', "Field required"),
        ('{"task_id": 1, "traj": []}', "at least 1"),
        ('{"task_id": 1, "traj": [{"role": "robot"}]}', "traj.0.role"),
        ('{"task_id": 1, "reward": NaN, "traj": [{"role": "user"}]}', "reward"),
        ('{"task_id": 1, "traj": [{"role": "tool"}]}', "traj.0: a tool message without tool_call_id"),
        ("\xff", "Invalid JSON"),
    ],
)
def test_an_invalid_line_is_refused_with_a_reason(text: str, message: str) -> None:
    with pytest.raises(BadRun, match=message):
        parse_run(text.encode("latin-1"))


def test_a_survey_counts_groups_and_reports_every_bad_line() -> None:
    reported: list[BadLine] = []
    found = survey(RUNS, DATASET, reported.append)
    assert found.bad == reported
    assert [bad.number for bad in found.bad] == [3, 6, 7, 8]
    assert "already on line 2" in found.bad[2].reason
    assert (found.lines, found.group_sizes) == (9, {"0": 2, "late": 2, "3": 1})
    assert found.trials == {1: 0, 2: 1, 4: 0, 5: 1, 9: 0}


def test_lines_and_events_that_are_too_long_are_bad_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.agents.importer.MAX_LINE_BYTES", 2_000_000)
    file = tmp_path / "long.jsonl"
    good = '{"task_id": 1, "traj": [{"role": "user"}]}'
    long_line = json.dumps({"task_id": 2, "traj": [{"role": "user", "content": "x" * 3_000_000}]})
    long_event = json.dumps({"task_id": 3, "traj": [{"role": "assistant", "content": "x" * 1_200_000}]})
    file.write_text("\ufeff" + "\n".join([good, long_line, long_event, good.replace("1", "4", 1)]))
    found = survey(file, DATASET)
    assert [(bad.number, bad.reason.split()[0]) for bad in found.bad] == [(2, "longer"), (3, "its")]
    assert found.group_sizes == {"1": 1, "4": 1}


@pytest.mark.skipif(
    not AIRLINE.exists() and "CI" not in os.environ,
    reason="the recorded airline runs are not beside this checkout (shared/data)",
)
def test_the_airline_runs_are_converted_completely() -> None:
    found = survey(AIRLINE, Dataset("airline"))
    assert (len(found.trials), len(found.group_sizes), set(found.group_sizes.values()), found.bad) == (100, 25, {4}, [])
    messages = tools = errors = 0
    rewards: dict[str, list[float]] = {}
    for text in AIRLINE.read_bytes().splitlines():
        run = parse_run(text)
        told = run_to_facts(run, Dataset("airline"), run.trial or 0, 4)
        called = Counter(call.call_id for call in of_type(ToolCalled, told))
        returned = Counter(back.call_id for back in of_type(ToolReturned, told))
        assert called == returned
        assert set(called.values()) <= {1}, "ids are unique inside a run"
        tools += len(called)
        errors += sum(back.status == "error" for back in of_type(ToolReturned, told))
        assert messages_of(told) == json.loads(text)["traj"]
        messages += len(messages_of(told))
        ended = told[-1]
        assert isinstance(ended, TrajectoryEnded)
        assert ended.outcome is not None
        rewards.setdefault(str(run.task_id), []).append(ended.outcome)
    assert (messages, tools, errors) == (2962, 621, 63)
    assert sum(map(sum, rewards.values())) / 100 == pytest.approx(0.31)
    equal = [group[0] for group in rewards.values() if len(set(group)) == 1]
    assert (len(equal), equal.count(1.0), equal.count(0.0)) == (14, 4, 10)


def written(message: dict[str, object] | None = None, *, raw: str = "", **fields: object) -> str:
    """A line with one message; the text ``"@"`` in it becomes ``raw``."""
    said = {"role": "assistant", "content": "hi"} if message is None else message
    return json.dumps({"task_id": 1, "traj": [said], **fields}).replace('"@"', raw)


def calls(call_id: str, tool: str) -> dict[str, object]:
    return {"role": "assistant", "tool_calls": [{"id": call_id, "function": {"name": tool, "arguments": "{}"}}]}


ODD_LINES = {
    "a number that is not finite": (written({"role": "assistant", "content": "@"}, raw="NaN"), "finite"),
    "an infinite number": (written(info={"x": "@"}, raw="1e999"), "finite"),
    "an integer beyond a float": (written(info={"x": "@"}, raw="9" * 400), "finite"),
    "a long task id": (written(task_id="x" * 600), "at most 512"),
    "a long model": (written(model="x" * 600), "at most 512"),
    "a long tool": (written(calls("c", "t" * 600)), "at most 512"),
    "a long call id": (written(calls("c" * 600, "t")), "at most 512"),
    "a large reward": (written(reward=1e300), "outcome"),
    "deep nesting": (written(info={"x": "@"}, raw="[" * 160 + "]" * 160), "150"),
}


@pytest.mark.parametrize(("odd", "problem"), ODD_LINES.values(), ids=ODD_LINES)
def test_a_line_whose_events_could_not_be_read_is_reported_and_the_others_are_imported(
    odd: str, problem: str, tmp_path: Path
) -> None:
    file = tmp_path / "runs.jsonl"
    file.write_text(f"{written(task_id=7)}\n{odd}\n{written(task_id=7)}\n")
    found = survey(file, DATASET)
    assert [bad.number for bad in found.bad] == [2]
    assert problem in found.bad[0].reason
    assert found.trials == {1: 0, 3: 1}
