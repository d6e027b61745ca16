"""Every record is a readable line, or shows why it cannot be read."""

import json
from dataclasses import replace

import pytest

from headrace.deploy.tail.line import as_json, line
from headrace.deploy.tail.record import decode_record
from headrace.deploy.tail.sentence import sentence
from headrace.deploy.tail.shortened_ids import is_id, shortened
from headrace.schemas.events import FACTS, ModelCalled, SdkStatsReported
from headrace.schemas.examples import EXAMPLES, OTHER, TRAJECTORY, Example
from headrace.schemas.records.reward import Component, Reward
from headrace.streams.raw import StoredRecord

SENTENCES = {
    "trajectory.started": "search 1.4.0, task ada-works, group search-7/ada-works/0 of 2, run search-7",
    "model.called": "2+2 tokens after 7, v3–4, stop, 0.41 s, At the mill.",
    "tool.called": 'search_corpus {"query": "where does ada work"}',
    "tool.returned": 'search_corpus ok, 0.03 s, {"chunk_ids": ["c17", "c3"], "text": "[c17] Ada works at the mill. …"}',
    "context.summarized": "8 → 5 tokens, Ada works at the mill (c17).",
    "context.pruned": "9 → 8 tokens, c3",
    "subagent.started": "reader as 01a1fdd9…333333 in stage 0",
    "subagent.finished": "reader completed in 4 steps",
    "environment.snapshotted": "files as 9f86d081 in 4.7 ms",
    "environment.forked": "4 forks of 9f86d081 in 2.1 ms",
    "environment.restored": "9f86d081 in 0.6 ms, of 01a1fdd9…333333",
    "trajectory.ended": 'completed, outcome 1, {"chunk_ids": ["c17"], "text": "At the mill."}',
    "clock.ticked": "stream time 1795260324512 ms",
    "feedback.given": "accepted 1, 12.5 s after the end, Just what I needed.",
    "sdk.stats": "1,204 emitted, 1,200 sent, 0 queued, 4 dropped: queue_full",
    "gateway.stats": "904 calls, 2 failed: engine_unavailable, 17 sessions, 1 engines, 3 unacknowledged",
    "trajectory.assembled": "search, 2 turns, 11 tokens, 5 sampled, v3–4, completed, outcome 1",
    "trajectory.scored": "search@1 1.83 of 2 = 0.7·0.9 f_beta + 0.3·1 trajectory_recall + 1·1 answer_found"
    " − 1·0.1 prune_penalty",
    "trajectory.rejected": "zero_variance_all_fail at group, reward 0, v3, group search-7/ada-works/0",
    "group.formed": "search@1, 2 of 2, mean 1.33, advantages −0.5 … +0.5, v3",
    "step.trained": "step 5 made v5, 1 group with 2 trajectories, loss −0.014, k3 0.002, grad_norm 0.37, tokens 14, "
    "seconds 1.9",
    "weights.published": "v5 on v4, delta, 182,044 bytes, step 5",
    "budget.granted": "80 groups in flight at v5: (4 + 1) · 16",
    "weights.applied": "v5 served by 127.0.0.1:8000, fetched in 0.2 s, swapped in 0.04 s, canary error 0.0009",
    "trajectory.observed": "attempt, search, wiki, turns 4, tokens 14, tool_calls 2, invalid 0, talks 0, answered 1",
    "monitor.read": "attempt window 41, search, wiki, 64 observations, talks 0.1875 (1.08)",
    "alert.raised": "critical canary_mismatch: Version 6 does not reproduce the trainer's log-probabilities; "
    "version 5 is served again.",
    "record.dead": "events[2]@7104 bad_json: headrace.tool.called.v1: Invalid JSON: EOF while parsing a string at "
    "line 1 column 74",
    "record.repaired": "events[2]@7104 repaired",
    "record.redriven": "events[2]@7104 sent again with all of 01a1fdd9…222222 as ",
}


def stored(example: Example, offset: int = 7) -> StoredRecord:
    message = example.message
    return StoredRecord(
        example.topic.name, 1, offset, example.envelope.time_ms, message.key, message.value, message.headers
    )


WITH_SUMMARY = [name for name, each in EXAMPLES.items() if type(each.payload) in {*sentence.registry, *FACTS}]


@pytest.mark.parametrize("example", [EXAMPLES[name] for name in WITH_SUMMARY], ids=WITH_SUMMARY)
def test_a_type_with_a_summary_of_its_own_is_shown_by_it(example: Example) -> None:
    shown = line(decode_record(stored(example)))
    assert (shown.text[: len(SENTENCES[shown.type])], shown.unreadable) == (SENTENCES[shown.type], False)
    assert len(shown.text) < 250


@pytest.mark.parametrize(("delivered", "said"), [(None, False), (True, False), (False, True)])
def test_an_answer_is_said_to_be_undelivered_only_if_that_is_known(delivered: bool | None, said: bool) -> None:
    call = EXAMPLES[ModelCalled.TYPE].payload.model_copy(update={"delivered": delivered})
    assert ("0.41 s, not delivered, At the mill." in sentence(call, shortened)) == said


def test_a_line_has_time_position_type_and_subject() -> None:
    shown = line(decode_record(stored(EXAMPLES["headrace.tool.called.v1"])))
    assert shown[:4] == ("2026-11-21 11:24:25.412", "1:7", "tool.called", "01a1fdd9…111111 #3")


def test_ids_can_be_shown_in_full_and_shortened_ids_match() -> None:
    seen = decode_record(stored(EXAMPLES["headrace.tool.called.v1"]))
    assert line(seen, full=True).subject == f"{TRAJECTORY} #3"
    assert is_id(TRAJECTORY, shortened(TRAJECTORY))
    assert not is_id(OTHER, shortened(TRAJECTORY))
    assert shortened("short") == "short"


def test_events_on_disk_are_shown_if_there_are_any() -> None:
    stats = SdkStatsReported(emitted=9, sent=2, queued=1, spooled=6, replayed=0, adopted=1_200)
    assert sentence(stats, str) == "9 emitted, 2 sent, 1 queued, 6 spooled, 1,200 adopted"


def test_a_total_is_shown_as_a_sum_only_if_it_is_the_sum_of_its_terms() -> None:
    reward = EXAMPLES[Reward.TYPE].payload
    assert isinstance(reward, Reward)
    clamped = reward.model_copy(update={"components": {"a": Component(value=5, weight=1)}, "total": 2.0})
    assert sentence(clamped, str) == "search@1 2 of 2 from 1·5 a"
    assert sentence(clamped.model_copy(update={"total": None, "unscored": "no_end", "revision": 1}), str) == (
        "search@1 unscored: no_end from 1·5 a, revision 1"
    )


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"value": b'{"call_id": "c"'}, "unreadable, bad_json"),
        ({"value": None}, "unreadable, null_value"),
        ({"headers": []}, "unreadable, bad_headers: header ce_id is missing"),
        ({"headers": [("ce_subject", b"\xff\x1b[31m"), ("ce_type", b"x")]}, "unreadable, bad_headers"),
        ({"value": b"{}"}, "unreadable, invalid"),
    ],
)
def test_unreadable_records_are_shown_as_such(change: dict[str, object], expected: str) -> None:
    record = replace(stored(EXAMPLES["headrace.tool.called.v1"]), **change)  # type: ignore[arg-type]
    shown = line(decode_record(record))
    assert shown.unreadable
    assert shown.text.startswith(expected)
    assert "".join(shown[:5]).isprintable()
    assert as_json(decode_record(record))["error"] in expected


def test_control_characters_of_a_record_are_escaped() -> None:
    example = EXAMPLES["headrace.alert.raised.v1"]
    rude = replace(example, payload=example.payload.model_copy(update={"message": "\x1b[2Jgone\nand a line"}))
    assert line(decode_record(stored(rude))).text == r"critical canary_mismatch: \x1b[2Jgone\nand a line"


def test_json_contains_position_envelope_and_payload() -> None:
    shown = json.loads(json.dumps(as_json(decode_record(stored(EXAMPLES["headrace.tool.called.v1"])))))
    assert shown["data"]["arguments"] == {"query": "where does ada work"}
    assert {name: shown[name] for name in ("topic", "partition", "offset", "key", "subject", "sequence", "time")} == {
        "topic": "events",
        "partition": 1,
        "offset": 7,
        "key": TRAJECTORY,
        "subject": TRAJECTORY,
        "sequence": 3,
        "time": "2026-11-21T11:24:25.412Z",
    }


def test_token_arrays_are_text_in_json_and_numbers_on_request() -> None:
    seen = decode_record(stored(EXAMPLES["headrace.trajectory.assembled.v1"]))
    assert as_json(seen)["data"]["segments"][0]["loss_mask"] == "AAAAAAEBAQAAAQE="
    shown = json.loads(json.dumps(as_json(seen, arrays=True)))["data"]
    assert shown["segments"][0]["loss_mask"] == [0, 0, 0, 0, 1, 1, 1, 0, 0, 1, 1]
    assert shown["segments"][0]["logprobs"] == [-0.5, -0.125, -1.5, -0.25, -0.0625]
    assert shown["status"] == "completed"
    assert shown["started"]["task_id"] == "ada-works"
