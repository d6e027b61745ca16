"""The example in TypeScript: what it records is what the SDK would record, and losses are visible."""

import asyncio
import json
import re
import shutil
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import NewPartitions
from aiokafka.structs import ConsumerRecord

from headrace.agents.sdk import Headrace
from headrace.schemas.envelope import from_headers
from headrace.schemas.events import FeedbackGiven, LogprobsOf, ModelCalled, Sampling, Usage, VersionSpan
from headrace.schemas.kafka.clients import open_admin
from headrace.schemas.records.trajectory import Defect, Trajectory
from headrace.schemas.topics import EVENTS, FEEDBACK
from headrace.schemas.wire import decode
from tests.agents.examples.programs import MODEL, compiled, model, node, outcome_of, run
from tests.agents.examples.written import PARTITIONS, Reader, comparable, facts, folded, the_trajectory
from tests.agents.sdk_helpers import NOWHERE
from tests.built import by_npm
from tests.conftest import RunningKafka
from tests.needs import needs

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "agents" / "examples" / "typescript"
pytestmark = [pytest.mark.kafka, needs("npm")]

QUESTION = {"role": "user", "content": "Boots in 44? 漢 \U0001f462"}
CALL = {"id": "call-1", "type": "function", "function": {"name": "search", "arguments": '{"size": "44"}'}}
ASKED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
FOUND = {"role": "tool", "tool_call_id": "call-1", "content": '["boots","sandals"]'}
ANSWER = {"role": "assistant", "content": "We have boots and sandals."}


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example, installed."""
    installed = by_npm(EXAMPLE, "typescript-example")
    folder = tmp_path_factory.mktemp("example")
    for file in EXAMPLE.iterdir():
        if file.is_file():
            shutil.copy(file, folder)
    for name in ("node_modules", "bin"):
        (folder / name).symlink_to(installed / name)
    return folder


@pytest.fixture(scope="module")
def log(kafka: str) -> str:
    """A broker whose topics have :data:`PARTITIONS` partitions."""

    async def grow() -> None:
        async with open_admin(kafka) as admin:
            await admin.create_partitions({each.name: NewPartitions(PARTITIONS) for each in (EVENTS, FEEDBACK)})

    asyncio.run(grow())
    return kafka


@pytest.fixture
async def reader(log: str) -> Reader:
    found = Reader(log)
    await found.new()
    return found


def record_the_same(log: str, trajectory_id: str) -> None:
    """What the agent did, with the SDK."""
    headrace = Headrace(log, source="checkout-helper", consent="train")
    with headrace.trajectory(task_id="order-17", agent="checkout", trajectory_id=trajectory_id) as t:
        usage = Usage(prompt_tokens=10, completion_tokens=5)
        asked: dict[str, Any] = {"model": MODEL, "latency_s": 0.1, "usage": usage}
        t.model_called(messages=[QUESTION, ASKED], finish_reason="tool_calls", **asked)
        with t.tool("search", {"size": "44"}, call_id="call-1") as call:
            call.result = ["boots", "sandals"]
        t.model_called(messages=[FOUND, ANSWER], finish_reason="stop", **asked)
        t.end(answer=ANSWER["content"], outcome=1.0)
    headrace.feedback(t.id, "accepted", 1.0)
    assert headrace.close(30)


def test_it_compiles_and_wrong_events_do_not(example: Path) -> None:
    assert compiled(example) == (0, "", "")
    wrong = [
        'h.begin({ task_id: "a" });',
        't.end({ status: "done" });',
        't.emit("headrace.tool.calld.v1", { call_id: "1", tool: "search" });',
        't.modelCalled({ model: "m", usage: { prompt_tokens: "3" } });',
    ]
    right = [
        't.end({ answer: [1, "two"] });',
        't.emit("headrace.tool.called.v1", { call_id: "1", tool: "s", new: 1 });',
    ]
    begins = 'import type { Headrace, Trajectory } from "./headrace.ts";\ndeclare const h: Headrace, t: Trajectory;'
    (example / "wrong.ts").write_text("\n".join([begins, *wrong, *right]))
    try:
        status, output, _ = compiled(example)
    finally:
        (example / "wrong.ts").unlink()
    assert status != 0
    lines = [line.partition(",")[0] for line in output.splitlines() if not line.startswith(" ")]
    assert lines == [f"wrong.ts({3 + index}" for index in range(len(wrong))], output


def test_its_types_are_those_of_todays_schemas(example: Path) -> None:
    generated = outcome_of(node(example, "generate.ts", str(ROOT / "schemas" / "asyncapi.json")))
    assert generated == (0, (EXAMPLE / "payloads.ts").read_text(), "")


async def test_an_agent_becomes_the_trajectory_that_the_sdk_records(example: Path, log: str, reader: Reader) -> None:
    with model(ASKED, ANSWER) as (url, requests):
        environment = {"HEADRACE_KAFKA": log, "OPENAI_BASE_URL": url}
        agent = node(example, "agent.ts", "order-17", str(QUESTION["content"]), **environment)
        ended = await asyncio.to_thread(outcome_of, agent)
    assert ended == (0, f"{ANSWER['content']}\n", "")
    assert requests[1]["messages"] == [QUESTION, ASKED, FOUND]
    written = await reader.new()
    kinds = [fact.TYPE.removeprefix("headrace.").removesuffix(".v1") for fact in facts(written)]
    assert kinds == [
        *("trajectory.started", "model.called", "tool.called", "tool.returned", "model.called", "trajectory.ended"),
        "feedback.given",
    ]

    await asyncio.to_thread(record_the_same, log, written[0].key.decode())
    assert [comparable(each) for each in written] == [comparable(each) for each in await reader.new()]

    records = folded(written)
    (trajectory,), (reward,) = records["trajectories"], records["rewards"]
    assert isinstance(trajectory, Trajectory)
    assert (trajectory.answer, trajectory.outcome, len(trajectory.turns)) == (ANSWER["content"], 1.0, 2)
    assert trajectory.defects == [Defect.NO_TOKEN_IDS]
    assert (reward.spec, reward.total) == ("outcome@1", 1.0)  # type: ignore[attr-defined]


async def test_the_lines_of_the_page(example: Path, log: str, reader: Reader) -> None:
    lines = re.search(r"```ts typescript\n(.*?)```", (ROOT / "agents" / "README.md").read_text(), re.S)
    assert lines is not None
    assert await asyncio.to_thread(run, example, lines[1], HEADRACE_KAFKA=log) == (0, "", "")
    *events, feedback = await reader.new()
    assert feedback.topic == FEEDBACK.name
    trajectory = the_trajectory(events)
    assert (trajectory.answer, trajectory.outcome) == ("in stock", 1.0)


async def test_every_trajectory_is_in_the_partition_where_the_sdk_puts_it(
    example: Path, log: str, reader: Reader
) -> None:
    source = """
    import * as h from "./headrace.ts";
    const headrace = new h.Headrace({ source: "many", consent: false });
    for (let i = 0; i < 40; i++) {
      const t = headrace.begin({ task_id: `${i}`, agent: "a" });
      t.end();
      headrace.feedback(t.id, "accepted", 1);
    }
    await headrace.close();
    """
    assert await asyncio.to_thread(run, example, source, HEADRACE_KAFKA=log) == (0, "", "")
    written = await reader.new()
    sdk = Headrace(log, source="many", consent="analyse")
    for record in written:
        match decode(record.headers, record.value)[0].sequence:
            case 0:
                key = record.key.decode()
                sdk.trajectory(task_id="x", agent="a", trajectory_id=key).end()
                sdk.feedback(key, "accepted", 1.0)
    assert sdk.close(30)

    def places(records: list[ConsumerRecord]) -> dict[tuple[str, bytes], set[int]]:
        found: dict[tuple[str, bytes], set[int]] = {}
        for each in records:
            found.setdefault((each.topic, each.key), set()).add(each.partition)
        return found

    assert len(places(written)) == 80
    assert places(written) == places(await reader.new())
    assert len({each.partition for each in written}) > 3


async def test_tokens_are_one_exact_segment(example: Path, log: str, reader: Reader) -> None:
    source = """
    import * as h from "./headrace.ts";
    const headrace = new h.Headrace({ source: "sampler", consent: true });
    await headrace.trajectory({ task_id: "q", agent: "a", run: "r" }, async (t) => {
      const context = [1, 2, 2147483647];
      const sampled = [4, 5];
      const common = {
        model: "policy",
        sampling: { temperature: 1, logprobs: "processed" as const },
        version_spans: [{ version: 3, start: 0, end: 2, run: "r" }],
        logprobs: h.logprobs([-0.5, -0.25]),
        sampled_ids: h.tokenIds(sampled),
      };
      t.modelCalled({ ...common, context_ids: h.tokenIds(context) });
      const before = [...context, ...sampled];
      const prefix = { prefix_length: before.length, prefix_sha256: h.prefixHash(before) };
      t.modelCalled({ ...common, ...prefix, context_ids: h.tokenIds([6]) });
    });
    await headrace.close();
    """
    assert await asyncio.to_thread(run, example, source, HEADRACE_KAFKA=log) == (0, "", "")
    written = await reader.new()
    call = facts(written)[1]
    assert call == ModelCalled(
        model="policy",
        context_ids=[1, 2, 2**31 - 1],
        sampled_ids=[4, 5],
        logprobs=[-0.5, -0.25],
        version_spans=[VersionSpan(version=3, start=0, end=2, run="r")],
        sampling=Sampling(temperature=1, logprobs=LogprobsOf.PROCESSED),
    )
    trajectory = the_trajectory(written)
    (segment,) = trajectory.segments
    assert list(segment.token_ids) == [1, 2, 2**31 - 1, 4, 5, 6, 4, 5]
    assert list(segment.loss_mask) == [0, 0, 0, 1, 1, 0, 1, 1]
    assert trajectory.defects == []


async def test_events_that_cannot_be_sent_are_counted_and_leave_gaps(example: Path, log: str, reader: Reader) -> None:
    source = """
    import * as h from "./headrace.ts";
    import { randomBytes } from "node:crypto";
    const headrace = new h.Headrace({ source: "careless", consent: true, maxEventBytes: 3_000_000 });
    const t = headrace.begin({ task_id: "q", agent: "a" });
    const loop: Record<string, unknown> = {};
    loop["loop"] = loop;
    t.modelCalled({ model: "m", messages: [{ role: "user", content: "x".repeat(3_000_000) }] });
    await t.tool("divide", loop, () => 1);
    await t.tool("divide", { by: NaN }, () => 1 / 0);
    await t.tool("halves", { "\\ud83d": "\\ude00 \\\\ud83d" }, () => { throw new RangeError("no"); }).catch(() => {});
    headrace.feedback(t.id, "score", 1, { comment: randomBytes(1_500_000).toString("base64") });
    headrace.feedback(t.id, "score", 2);
    t.end({ outcome: 1 });
    t.end();
    await headrace.flush(60_000);
    console.log(JSON.stringify([...headrace.dropped]), await headrace.close());
    headrace.feedback(t.id, "score", 3);
    """
    status, output, messages = await asyncio.to_thread(run, example, source, HEADRACE_KAFKA=log)
    assert status == 0, messages
    dropped = [["oversize", 1], ["invalid", 3], ["after_end", 1], ["refused", 1]]
    assert output == f"{json.dumps(dropped, separators=(',', ':'))} true\n"
    warnings = [line.split("HeadraceWarning: ")[1] for line in messages.splitlines() if "HeadraceWarning" in line]
    assert [line.split(")")[0] for line in warnings] == [
        *(f"lost 1 ({reason}" for reason in ("oversize", "invalid", "after_end", "refused", "closed")),
    ]
    assert "headrace.model.called.v1 of 3000" in messages

    written = await reader.new()
    found = {from_headers(each.headers).sequence: decode(each.headers, each.value)[1] for each in written}
    assert sorted(found, key=lambda sequence: -1 if sequence is None else sequence) == [None, 0, 3, 6, 7, 8]
    assert isinstance(found[None], FeedbackGiven)
    assert found[None].value == 2
    called, returned = found[6], found[7]
    assert called.arguments == {"\ufffd": "\ufffd \\ud83d"}  # type: ignore[attr-defined]
    assert returned.result == {"error": "RangeError", "message": "no"}  # type: ignore[attr-defined]
    assert Defect.MISSING_EVENTS in the_trajectory([each for each in written if each.topic == EVENTS.name]).defects


async def test_a_broker_that_does_not_answer_for_a_while_stores_every_event_once(
    example: Path, log: str, reader: Reader, running_kafka: RunningKafka
) -> None:
    source = """
    import * as h from "./headrace.ts";
    import { setTimeout as sleep } from "node:timers/promises";
    const headrace = new h.Headrace({ source: "patient", consent: true, kafka: { requestTimeout: 1000 } });
    const all = Array.from({ length: 10 }, (_, i) => headrace.begin({ task_id: `${i}`, agent: "a" }));
    await headrace.flush();
    console.log("begun");
    for (let i = 0; i < 100; i++) {
      for (const t of all) t.modelCalled({ model: `${i}` });
      await sleep(100);
    }
    for (const t of all) t.end();
    console.log(await headrace.close(60_000), headrace.dropped.size);
    """
    (example / "program.ts").write_text(source)
    program = node(example, "program.ts", HEADRACE_KAFKA=log)
    try:
        assert program.stdout is not None
        assert await asyncio.to_thread(program.stdout.readline) == "begun\n"
        await asyncio.sleep(1)
        async with frozen(running_kafka):
            await asyncio.sleep(5)  # longer than a request may take, so that answers are lost and requests repeated
        status, output, messages = await asyncio.to_thread(outcome_of, program)
    finally:
        program.kill()
    assert (status, output, messages) == (0, "true 0\n", "")
    sequences: dict[bytes, list[int | None]] = {}
    for record in await reader.new():
        sequences.setdefault(record.key, []).append(from_headers(record.headers).sequence)
    assert list(sequences.values()) == [[*range(102)]] * 10


@asynccontextmanager
async def frozen(kafka: RunningKafka) -> AsyncIterator[None]:
    kafka.freeze()
    try:
        yield
    finally:
        kafka.freeze(False)


async def test_a_stopped_agent_sends_what_it_recorded(example: Path, log: str, reader: Reader) -> None:
    with model(ASKED, ANSWER, pause_s=1) as (url, requests):
        agent = node(example, "agent.ts", HEADRACE_KAFKA=log, OPENAI_BASE_URL=url)
        while len(requests) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        agent.send_signal(signal.SIGTERM)
        status, output, messages = await asyncio.to_thread(outcome_of, agent)
    assert (status, output, messages) == (143, "", "")
    trajectory = the_trajectory(await reader.new())
    assert (trajectory.status, len(trajectory.turns)) == ("aborted", 1)


def test_without_kafka_it_ends_in_time_and_says_what_was_lost(example: Path) -> None:
    source = """
    import * as h from "./headrace.ts";
    const headrace = new h.Headrace({ source: "alone", consent: true, queueEvents: 3 });
    const failed = headrace.trajectory({ task_id: "q", agent: "a" }, async (t) => {
      t.modelCalled({ model: "m" });
      throw new Error("no answer");
    });
    console.log(await failed.catch((error) => error.message));
    headrace.feedback("x", "accepted", 1);
    console.log(await headrace.close(300), JSON.stringify([...headrace.dropped]));
    """
    began = time.monotonic()
    status, output, messages = run(example, source, HEADRACE_KAFKA=NOWHERE)
    assert (status, output) == (0, 'no answer\nfalse [["queue_full",1],["unsent_at_close",3]]\n'), messages
    assert time.monotonic() - began < 30
    status, _, messages = run(example, source, HEADRACE_KAFKA="")
    assert status == 1
    assert "set HEADRACE_KAFKA" in messages
