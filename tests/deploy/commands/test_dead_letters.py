"""`headrace dead-letters` on a real broker, with a real assembler: listed, shown, repaired, sent again, once."""

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import pytest
from click.testing import CliRunner, Result

from headrace.deploy.cli import cli
from headrace.schemas.envelope import ID, SOURCE, SUBJECT
from headrace.schemas.headers import REDRIVE, REDRIVE_OF
from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.kafka.sending import send
from headrace.schemas.records.dead_letter import DeadLetterError, Repaired
from headrace.schemas.records.trajectory import Trajectory
from headrace.schemas.topics import DEAD_LETTERS, EVENTS, REWARDS, TRAJECTORIES, Topic
from headrace.schemas.wire import Message, UnreadableRecord, decode
from headrace.streams.assembly.assembler import AssemblerConfig, run_assembler
from headrace.streams.dead_letters.build import dead_letter_message
from headrace.streams.ledger.ledger import read_ledger
from headrace.streams.raw import StoredRecord
from headrace.streams.scoring.score import reward_message
from tests.streams.attempts import rewarded
from tests.streams.builders import T0, session, with_header

pytestmark = pytest.mark.kafka

GOOD = [record.value or b"" for record in session("any", "ask", "tool", "answer")]
BROKEN = GOOD[2][:-9]


def headrace(*arguments: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(cli, arguments, input=stdin)


def dead_letters(kafka: str, *arguments: str, stdin: bytes | None = None) -> str:
    done = headrace("dead-letters", *arguments, "--kafka", kafka, stdin=stdin)
    assert done.exit_code == 0, done.output
    return done.stdout


def attempt(trajectory_id: str, broken: bytes | None = BROKEN) -> list[StoredRecord]:
    """Returns the events of a trajectory whose third event is ``broken``."""
    records = session(trajectory_id, "ask", "tool", "answer")
    return [*records[:2], replace(records[2], value=broken), *records[3:]]


async def produce(kafka: str, records: list[StoredRecord]) -> None:
    async with open_producer(kafka) as producer:
        for record in records:
            await producer.send_and_wait(EVENTS.name, record.value, record.key, headers=list(record.headers))


async def everything(kafka: str, topic: Topic) -> list[tuple[Message, object]]:
    found = []
    async for record in read_to_end(kafka, topic, decided=True):
        message = Message(record.key or b"", record.value or b"", list(record.headers))
        found.append((message, decode(record.headers, record.value)[1]))
    return found


def trajectories(kafka: str) -> dict[str, Trajectory]:
    found = [payload for _, payload in asyncio.run(everything(kafka, TRAJECTORIES))]
    by_id = {payload.trajectory_id: payload for payload in found if isinstance(payload, Trajectory)}
    assert len(by_id) == len(found)
    return by_id


@contextmanager
def assembling(kafka: str) -> Iterator[None]:
    """An assembler in a thread of its own, because the commands run their own event loops."""
    ended, ready = Event(), Event()

    async def assemble() -> None:
        stop = asyncio.Event()
        config = AssemblerConfig(kafka, member="one", commit_interval_s=0.05, idle_timeout_s=60, hole_grace_s=1)
        task = asyncio.create_task(run_assembler(config, stop=stop, ready=ready.set))
        await asyncio.to_thread(ended.wait)
        stop.set()
        await task

    thread = Thread(target=lambda: asyncio.run(assemble()))
    thread.start()
    try:
        assert ready.wait(60)
        yield
    finally:
        ended.set()
        thread.join(60)
        assert not thread.is_alive()


def until_assembled(kafka: str, count: int) -> dict[str, Trajectory]:
    for _ in range(300):
        if len(found := trajectories(kafka)) >= count:
            return found
        Event().wait(0.2)
    raise AssertionError(f"{len(trajectories(kafka))} of {count} trajectories")


def named(kafka: str, trajectory_id: str) -> dict[str, object]:
    """Returns the only dead letter of a trajectory."""
    (line,) = dead_letters(kafka, "list", "--trajectory", trajectory_id, "--json").splitlines()
    found: dict[str, object] = json.loads(line)
    return found


def test_a_broken_event_is_repaired_and_its_trajectory_assembled_again(kafka: str, tmp_path: Path) -> None:
    with assembling(kafka):
        asyncio.run(produce(kafka, [*attempt("closed"), *session("whole", "ask", "answer")]))
        before = until_assembled(kafka, 2)
        assert before["closed"].defects == ["bad_event"]
        entry = named(kafka, "closed")
        name = str(entry["letter"])
        assert (entry["error"], entry["redriven"]) == ("bad_json", [])

        shown = dead_letters(kafka, "show", name)
        assert "not JSON: Unterminated string" in shown
        assert "now          unreadable" in shown

        refused = headrace("dead-letters", "redrive", name, "--kafka", kafka)
        assert refused.exit_code == 1
        assert "repair it first" in refused.output

        repaired = tmp_path / "repaired.json"
        repaired.write_bytes(GOOD[2])
        assert "could be repaired" in dead_letters(kafka, "repair", name, "--value", str(repaired), "--dry-run")
        assert named(kafka, "closed")["repair"] is None
        assert "repaired: headrace.tool.called.v1" in dead_letters(kafka, "repair", name, "--value", "-", stdin=GOOD[2])
        assert "now          readable" in dead_letters(kafka, "show", name)

        assert "would be sent with all of closed, 6 events" in dead_letters(kafka, "redrive", name, "--dry-run")
        assert len(trajectories(kafka)) == 2
        assert "sent with all of closed, 6 events" in dead_letters(kafka, "redrive", name)
        after = until_assembled(kafka, 3)
        (new_id,) = after.keys() - before.keys()
        assert after[new_id].defects == []
        assert after[new_id].events == len(GOOD)
        assert after[new_id].segments == until_assembled(kafka, 3)["closed"].segments
        assert after["closed"] == before["closed"]

        again = dead_letters(kafka, "redrive", name)
        assert "the same content was sent before" in again
        assert dead_letters(kafka, "list", "--open") == ""
        assert "repaired, sent again" in dead_letters(kafka, "list")

        sent = [headers for headers in asyncio.run(headers_of_events(kafka)) if headers.get(REDRIVE_OF) == b"closed"]
        assert [headers.get(REDRIVE) for headers in sent].count(f"dead-letters:{name}".encode()) == 1
        assert len(sent) == len({headers[ID] for headers in sent}) == len(GOOD)
        ledger = asyncio.run(read_ledger(kafka))
        assert (ledger.started, ledger.adds_up) == (3, True)


def test_an_event_of_an_open_trajectory_takes_its_place(kafka: str) -> None:
    records = attempt("open", broken=None)
    with assembling(kafka):
        asyncio.run(produce(kafka, records[:4]))
        entry = until_dead(kafka, "open")
        name = str(entry["letter"])
        dead_letters(kafka, "repair", name, "--value", "-", stdin=GOOD[2])
        assert "sent to events, event 2 of open" in dead_letters(kafka, "redrive", "--trajectory", "open")
        asyncio.run(produce(kafka, records[4:]))
        assert until_assembled(kafka, 4)["open"].defects == []
    assert "already has a readable event" in headrace("dead-letters", "redrive", name, "--kafka", kafka).output


def test_a_record_of_a_derived_topic_is_sent_again_once_this_version_can_read_it(kafka: str) -> None:
    asyncio.run(write_dead_letter_of_a_reward(kafka))
    assert "1 of 1 dead letters" in headrace("dead-letters", "redrive", "--topic", "rewards", "--kafka", kafka).output
    ((message, _),) = asyncio.run(everything(kafka, REWARDS))
    assert message.value == REWARD.value
    assert message.headers[:-1] == REWARD.headers
    assert message.headers[-1][0] == REDRIVE
    assert "0 of 0 dead letters" in headrace("dead-letters", "redrive", "--topic", "rewards", "--kafka", kafka).output


def test_an_unknown_dead_letter_or_a_missing_choice_is_an_error_with_a_remedy(kafka: str) -> None:
    unknown = headrace("dead-letters", "show", "0:999", "--kafka", kafka).output
    assert "`headrace dead-letters list` prints their names" in unknown
    assert "Specify dead letters" in headrace("dead-letters", "redrive", "--kafka", kafka).output
    name = str(named(kafka, "open")["letter"])
    assert "Specify what to change" in headrace("dead-letters", "repair", name, "--kafka", kafka).output
    wrong = headrace("dead-letters", "repair", name, "--value", "-", "--kafka", kafka, stdin=b"[]")
    assert wrong.exit_code == 1
    assert "still be unreadable, invalid" in wrong.output


def from_producer(producer: str, records: list[StoredRecord]) -> list[StoredRecord]:
    return [with_header(record, SOURCE, producer.encode()) for record in records]


def repairs(kafka: str) -> int:
    return sum(isinstance(payload, Repaired) for _, payload in asyncio.run(everything(kafka, DEAD_LETTERS)))


def redriven_of(kafka: str) -> list[str]:
    """Returns the old ids of the trajectories that were sent again, one for each new id."""
    sent = {
        headers[SUBJECT]: headers[REDRIVE_OF]
        for headers in asyncio.run(headers_of_events(kafka))
        if REDRIVE_OF in headers
    }
    return sorted(old.decode() for old in sent.values())


WITHOUT_TOOL = json.dumps({name: value for name, value in json.loads(GOOD[2]).items() if name != "tool"}).encode()


def test_all_records_of_one_cause_are_repaired_together_and_sent_again_once(kafka: str) -> None:
    """Others of the producer, and the same fault of another producer, stay as they are."""
    of_cause = ("--producer", "/agents/old", "--error", "invalid")
    edit = ("repair", *of_cause, "--set", "tool=search")
    with assembling(kafka):
        for name in ("many-0", "many-1", "many-2"):
            asyncio.run(produce(kafka, from_producer("/agents/old", attempt(name, WITHOUT_TOOL))))
        asyncio.run(produce(kafka, from_producer("/agents/old", attempt("no-json"))))
        asyncio.run(produce(kafka, from_producer("/agents/new", attempt("other", WITHOUT_TOOL))))
        for name in ("many-0", "many-1", "many-2", "no-json", "other"):
            until_dead(kafka, name)
        before = repairs(kafka)

        planned = headrace("dead-letters", *edit, "--kafka", kafka)
        assert planned.stdout.count("could be repaired: headrace.tool.called.v1 of many-") == 3
        assert "Nothing was saved: --save does that." in planned.output
        assert repairs(kafka) == before

        # One was saved before: by name, or by a command that was killed.
        dead_letters(kafka, "repair", str(named(kafka, "many-1")["letter"]), "--set", "tool=search")
        saved = dead_letters(kafka, *edit, "--save")
        assert (saved.count("  repaired: "), saved.count("needs no repair: it can be read already")) == (2, 1)
        assert "repaired: " not in dead_letters(kafka, *edit, "--save")
        assert repairs(kafka) == before + 3

        sent_before = redriven_of(kafka)
        whole = until_closed(kafka, "many-0", "many-1", "many-2", "no-json", "other")
        assert dead_letters(kafka, "redrive", *of_cause).count("sent with all of many-") == 3
        assert dead_letters(kafka, "redrive", *of_cause) == ""
        assert redriven_of(kafka) == sorted([*sent_before, "many-0", "many-1", "many-2"])
        after = until_assembled(kafka, len(whole) + 3)
        assert all(after[name].defects == [] for name in after.keys() - whole.keys())

    assert (named(kafka, "no-json")["repair"], named(kafka, "other")["repair"]) == (None, None)
    both = [json.loads(line) for line in dead_letters(kafka, "list", "--by", "producer", "--json").splitlines()]
    assert {"producer": "/agents/old", "dead_letters": 4, "open": 1} in both
    assert {"producer": "/agents/new", "dead_letters": 1, "open": 1} in both


def test_what_a_change_does_not_make_readable_is_named_and_stays(kafka: str, tmp_path: Path) -> None:
    before = repairs(kafka)
    of_producer = ("--producer", "/agents/old", "--set", "tool=search", "--save")
    done = headrace("dead-letters", "repair", *of_producer, "--kafka", kafka)
    assert done.exit_code == 1
    assert "not repaired: its value is not JSON" in done.output
    assert "0 of 1 dead letters" in done.output
    script = tmp_path / "completes.py"
    script.write_text(f"import sys\nprint(sys.stdin.read() + {GOOD[2][-9:].decode()!r})\n")
    by_command = ("--producer", "/agents/old", "--through", f"{sys.executable} {script}")
    assert "could be repaired: headrace.tool.called.v1 of no-json" in dead_letters(kafka, "repair", *by_command)
    assert repairs(kafka) == before


@pytest.mark.parametrize(
    ("change", "of_one"), [(("--value", "-"), "whole value"), (("--header", "ce_sequence=3"), "header ce_sequence")]
)
def test_what_would_make_several_records_the_same_needs_one_name(
    kafka: str, change: tuple[str, ...], of_one: str
) -> None:
    for which in (("--error", "invalid"), ("0:1", "0:2")):
        refused = headrace("dead-letters", "repair", *which, *change, "--kafka", kafka, stdin=GOOD[2])
        assert refused.exit_code == 2
        assert f"{of_one} is of one record" in refused.output


def test_a_repair_of_everything_or_of_nothing_is_refused(kafka: str) -> None:
    for which in ((), ("0:1", "--error", "invalid")):
        refused = headrace("dead-letters", "repair", *which, "--set", "tool=search", "--kafka", kafka)
        assert "Specify dead letters by PARTITION:OFFSET" in refused.output


def until_closed(kafka: str, *names: str) -> dict[str, Trajectory]:
    for _ in range(300):
        if set(names) <= (found := trajectories(kafka)).keys():
            return found
        Event().wait(0.2)
    raise AssertionError(f"{set(names) - trajectories(kafka).keys()} are not closed")


REWARD = reward_message(rewarded("r"))


async def write_dead_letter_of_a_reward(kafka: str) -> None:
    original = StoredRecord("rewards", 1, 7, T0, REWARD.key, REWARD.value, REWARD.headers)
    entry = dead_letter_message(original, UnreadableRecord(DeadLetterError.INVALID, "an older worker could not"))
    async with open_producer(kafka) as producer:
        await (await send(producer, DEAD_LETTERS, entry))


async def headers_of_events(kafka: str) -> list[dict[str, bytes]]:
    return [dict(record.headers) async for record in read_to_end(kafka, EVENTS, decided=True)]


def until_dead(kafka: str, trajectory_id: str) -> dict[str, object]:
    for _ in range(300):
        if dead_letters(kafka, "list", "--trajectory", trajectory_id, "--json"):
            return named(kafka, trajectory_id)
        Event().wait(0.2)
    raise AssertionError(f"no dead letter of {trajectory_id}")
