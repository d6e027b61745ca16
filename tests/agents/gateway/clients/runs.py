"""What must hold of a program's run through the gateway, whatever the program does."""

from collections.abc import Mapping, Sequence

from headrace.streams.assembly.segments import SegmentFold
from tests.agents.gateway.clients.relay import Exchange
from tests.agents.gateway.running import ExactCall, Recorded, exact_calls

Tokens = tuple[int, ...]


def assert_exact_and_once(events: Sequence[Recorded], engine: Mapping[str, tuple[Tokens, Tokens]]) -> list[ExactCall]:
    """Asserts that each recorded call is one of the ``engine``'s (prompt and sampled tokens by call id), that none is
    recorded twice, and that the assembler trains each sampled token once, or not at all if it did not arrive.

    Returns the calls.
    """
    calls = exact_calls(events)
    recorded = {str(call.fact.call_id): call for call in calls}
    assert len(recorded) == len(calls)
    for name, call in recorded.items():
        prompt_ids, sampled_ids = engine[name]
        assert tuple(call.prompt_ids) == prompt_ids
        found = tuple(call.fact.sampled_ids or ())
        assert found == (sampled_ids if call.fact.delivered is not False else sampled_ids[: len(found)])
        assert len(call.fact.logprobs or ()) == len(found)
    for trajectory in {call.trajectory_id for call in calls}:
        own = [call.fact for call in calls if call.trajectory_id == trajectory]
        fold = SegmentFold()
        for fact in own:
            fold.add(fact)
        trained = sum(segment.loss_mask.count(1) for segment in fold.segments())
        assert trained == sum(len(fact.sampled_ids or ()) for fact in own if fact.delivered is not False)
    return calls


def assert_complete(exchanges: Sequence[Exchange], calls: Sequence[ExactCall]) -> int:
    """Asserts that every answer which the program received whole is recorded; returns how many there are."""
    lengths = [(call.trajectory_id, len(call.prompt_ids), len(call.fact.sampled_ids or ())) for call in calls]
    whole = 0
    for exchange in exchanges:
        if (usage := exchange.usage()) is not None and exchange.outcome != "replay":
            lengths.remove((exchange.headers["x-headrace-trajectory"], *usage))
            whole += 1
    return whole
