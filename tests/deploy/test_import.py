"""``headrace import`` with a real Kafka: what an ordinary client reads, after a repetition and an interruption."""

import asyncio
import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin.records_to_delete import RecordsToDelete
from click.testing import CliRunner, Result

from headrace.agents.imported_ids import ImportedIds
from headrace.agents.importer import import_runs, survey
from headrace.agents.openai_runs import Dataset, fact_messages, parse_run, run_to_facts
from headrace.deploy.cli import cli
from headrace.schemas.envelope import Envelope
from headrace.schemas.events import ModelCalled, ToolCalled, ToolReturned, TrajectoryEnded, TrajectoryStarted
from headrace.schemas.kafka.clients import open_admin, open_consumer
from headrace.schemas.kafka.reading import partitions_of, read_to_end
from headrace.schemas.model import Record
from headrace.schemas.records.group import Reason, Rejection
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.topics import EVENTS
from headrace.schemas.wire import Message, decode
from headrace.streams.drive import drive
from headrace.streams.topology import TOPOLOGY

pytestmark = pytest.mark.kafka

RUNS = Path(__file__).parent.parent / "data" / "runs.jsonl"
AIRLINE = Path(__file__).parents[3] / "shared" / "data" / "airline-gpt4o-tasks-00-24.jsonl"


@pytest.fixture(autouse=True, scope="module")
def _a_cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["import", *arguments])


def events(bootstrap: str, dataset: str) -> list[tuple[Envelope, Record]]:
    async def read() -> list[tuple[Envelope, Record]]:
        return [decode(record.headers, record.value) async for record in read_to_end(bootstrap, EVENTS)]

    source = Dataset(dataset).source
    found = [(envelope, payload) for envelope, payload in asyncio.run(read()) if envelope.source == source]
    # The order between partitions differs each time.
    return sorted(found, key=lambda event: (event[0].subject, event[0].sequence or 0, event[0].id))


def test_good_lines_are_imported_and_bad_lines_reported(kafka: str) -> None:
    result = run(str(RUNS), "--kafka", kafka)
    assert result.exit_code == 1
    assert (
        "runs: 9 lines, 5 trajectories in 3 groups; 36 events sent, 0 already in the log; 4 bad lines" in result.output
    )
    for number in (3, 6, 7, 8):
        assert f"runs.jsonl:{number}: left out: " in result.output
    found = events(kafka, "runs")
    assert len(found) == 36
    by_trajectory = defaultdict(list)
    for envelope, _ in found:
        by_trajectory[envelope.subject].append(envelope.sequence)
    assert len(by_trajectory) == 5
    assert all(numbers == list(range(len(numbers))) for numbers in by_trajectory.values())


def test_a_second_import_changes_nothing(kafka: str) -> None:
    run(str(RUNS), "--kafka", kafka, "--dataset", "twice")
    before = events(kafka, "twice")
    again = run(str(RUNS), "--kafka", kafka, "--dataset", "twice")
    assert "0 events sent, 36 already in the log" in again.output
    assert events(kafka, "twice") == before
    assert len(before) == 36


def test_the_next_import_reads_only_newer_records(kafka: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    add = ImportedIds.add

    def noted(self: ImportedIds, source: str, event_id: bytes, partition: int, offset: int) -> None:
        read.append(source)
        add(self, source, event_id, partition, offset)

    monkeypatch.setattr(ImportedIds, "add", noted)
    run(str(RUNS), "--kafka", kafka, "--dataset", "before")
    read.clear()
    assert "36 events sent, 0 already in the log" in run(str(RUNS), "--kafka", kafka, "--dataset", "kept").output
    assert read == [Dataset("before").source] * 36
    for fresh in (36, 0):
        read.clear()
        assert "0 events sent, 36 already in the log" in run(str(RUNS), "--kafka", kafka, "--dataset", "kept").output
        assert read == [Dataset("kept").source] * fresh


def test_expired_events_are_imported_again(kafka: str) -> None:
    for _ in range(2):
        run(str(RUNS), "--kafka", kafka, "--dataset", "expired")

    async def expire() -> None:
        async with open_consumer(kafka) as consumer, open_admin(kafka) as admin:
            ends = await consumer.end_offsets(await partitions_of(consumer, EVENTS))
            await admin.delete_records({place: RecordsToDelete(end) for place, end in ends.items()})

    asyncio.run(expire())
    assert "36 events sent, 0 already in the log" in run(str(RUNS), "--kafka", kafka, "--dataset", "expired").output
    assert "0 events sent, 36 already in the log" in run(str(RUNS), "--kafka", kafka, "--dataset", "expired").output


def test_an_interrupted_import_is_completed(kafka: str) -> None:
    dataset = Dataset("torn")

    class Killed(Exception):
        pass

    def interrupt(_: int) -> None:
        raise Killed

    found = survey(RUNS, dataset)
    with pytest.raises(Killed):
        asyncio.run(import_runs(RUNS, dataset, found, kafka, interrupt))
    partial = len(events(kafka, "torn"))
    assert 0 < partial < 36
    assert (
        f"{36 - partial} events sent, {partial} already in the log"
        in run(str(RUNS), "--kafka", kafka, "--dataset", "torn").output
    )
    ids = [envelope.id for envelope, _ in events(kafka, "torn")]
    assert (len(ids), len(set(ids))) == (36, 36)


def test_a_missing_file_and_an_unavailable_broker_are_reported(tmp_path: Path) -> None:
    assert "does not exist" in run(str(tmp_path / "none.jsonl"), "--kafka", "127.0.0.1:9").output
    result = run(str(RUNS), "--kafka", "127.0.0.1:9")
    assert result.exit_code == 1
    assert "127.0.0.1:9" in result.output
    assert not isinstance(result.exception, Exception), "no traceback"


@pytest.mark.skipif(
    not AIRLINE.exists() and "CI" not in os.environ,
    reason="the recorded airline runs are not beside this checkout (shared/data)",
)
def test_the_airline_runs_count_in_kafka_as_in_the_file(kafka: str) -> None:
    for _ in range(2):
        assert run(str(AIRLINE), "--kafka", kafka, "--dataset", "airline").exit_code == 0
    found = events(kafka, "airline")
    by_trajectory: dict[str, list[Any]] = defaultdict(list)
    for envelope, payload in found:
        by_trajectory[envelope.subject].append(payload)
    assert len(by_trajectory) == 100

    rewards: dict[str | None, list[float]] = defaultdict(list)
    tools: Counter[str] = Counter()
    for facts in by_trajectory.values():
        started, ended = facts[0], facts[-1]
        assert isinstance(started, TrajectoryStarted)
        assert isinstance(ended, TrajectoryEnded)
        assert ended.outcome is not None
        rewards[started.group_id].append(ended.outcome)
        called = {fact.call_id for fact in facts if isinstance(fact, ToolCalled)}
        assert called == {fact.call_id for fact in facts if isinstance(fact, ToolReturned)}
        tools["calls"] += len(called)
        assert all(fact.sampled_ids is None for fact in facts if isinstance(fact, ModelCalled))
    assert tools["calls"] == 621
    assert (len(rewards), {len(group) for group in rewards.values()}) == (25, {4})
    equal = [group for group in rewards.values() if len(set(group)) == 1]
    assert (len(equal), sum(group[0] == 1 for group in equal)) == (14, 4)
    assert sum(map(sum, rewards.values())) / 100 == pytest.approx(0.31)


@pytest.mark.skipif(
    not AIRLINE.exists() and "CI" not in os.environ,
    reason="the recorded airline runs are not beside this checkout (shared/data)",
)
def test_the_airline_runs_are_processed_like_live_ones_and_all_rejected() -> None:
    dataset = Dataset("airline")
    messages: list[Message] = []
    for line in AIRLINE.read_bytes().splitlines():
        recorded = parse_run(line)
        assert recorded.trial is not None
        facts = run_to_facts(recorded, dataset, recorded.trial, 4)
        messages += fact_messages(facts, dataset, dataset.trajectory_id(str(recorded.task_id), recorded.trial), 1_000)
    records = drive(TOPOLOGY, messages)
    reasons = Counter(record.reason for record in records["rejected"] if isinstance(record, Rejection))
    assert reasons == {Reason.NO_TOKEN_IDS: 44, Reason.ALL_FAIL: 40, Reason.ALL_SUCCESS: 16}
    assert records["training"] == []
    trajectories = [record for record in records["trajectories"] if isinstance(record, Trajectory)]
    uses = [use for trajectory in trajectories for turn in trajectory.turns for use in turn.tools]
    assert (len(trajectories), len(uses), sum(use.status is None for use in uses)) == (100, 621, 0)
    assert sum(trajectory.outcome or 0 for trajectory in trajectories) / 100 == pytest.approx(0.31)
