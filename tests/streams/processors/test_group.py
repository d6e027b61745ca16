"""The group operator: when it waits, what it counts and what it stores."""

from headrace.schemas.topics import REJECTED, REWARDS, TRAINING
from headrace.streams.processors.group import IGNORED, TRAINED, restore_group
from headrace.streams.raw import StoredRecord
from headrace.streams.rules import Rules
from headrace.streams.runtime.processor import Start
from headrace.streams.scoring.score import reward_message
from tests.streams.attempts import START_MS, rewarded


def came(offset: int, name: str, total: float, group: str) -> StoredRecord:
    message = reward_message(rewarded(name, total, group=group, size=2))
    return StoredRecord(REWARDS.name, 0, offset, START_MS, message.key, message.value, message.headers)


def test_group_waits_while_a_group_is_open_and_counts_decisions() -> None:
    operator, aside = restore_group(Rules(), Start())
    assert (operator.waits, aside) == (False, [])
    operator.process(came(0, "a", 1.0, "g"))
    assert operator.waits
    assert not operator.flush().outgoing
    operator.process(came(1, "b", 0.0, "g"))
    operator.process(came(2, "b", 0.0, "g"))
    assert not operator.waits
    effects = operator.flush()
    assert [each.topic for each in effects.outgoing] == [TRAINING]
    assert effects.counts == {TRAINED: 2, IGNORED: 1}
    assert not operator.flush()


def test_group_resumes_from_its_stored_state() -> None:
    first, _ = restore_group(Rules(), Start())
    first.process(came(0, "a", 1.0, "g"))
    stored = {
        key: StoredRecord("state", 0, number, 0, key, value, ())
        for number, (key, value) in enumerate(first.flush().state.items())
    }
    second, aside = restore_group(Rules(), Start(stored))
    assert (second.waits, second.newest_ms, aside) == (True, START_MS, [])
    second.advance(START_MS + Rules().groups.timeout_ms, 500)
    assert [each.topic for each in second.flush().outgoing] == [REJECTED]
