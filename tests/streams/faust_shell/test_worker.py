"""Properties of every processor on Faust."""

import asyncio
from collections.abc import Sequence

import pytest

from headrace.schemas.operator_error import TopicsError
from headrace.schemas.topics import FEEDBACK, TRAJECTORIES
from headrace.streams.faust_shell.worker import check_equal, unless_revoked
from headrace.streams.runtime.processor import PartitionsRevoked


async def test_judges_do_not_delay_a_rebalance() -> None:
    revoked, ended = asyncio.Event(), asyncio.Event()

    async def ask(questions: Sequence[str]) -> list[str]:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()
        raise AssertionError("nobody waits for it")

    asking = asyncio.ensure_future(unless_revoked(revoked, ask, ["?"]))
    await asyncio.sleep(0)
    revoked.set()
    with pytest.raises(PartitionsRevoked):
        await asyncio.wait_for(asking, 10)
    assert ended.is_set()


async def test_answers_are_returned_in_order() -> None:
    async def ask(questions: Sequence[str]) -> list[str]:
        return [question.upper() for question in questions]

    assert await unless_revoked(asyncio.Event(), ask, ["a", "b"]) == ["A", "B"]


def test_input_topics_with_different_partitions_on_the_broker_are_refused_before_anything_is_read() -> None:
    check_equal("score", {TRAJECTORIES: 8, FEEDBACK: 8})
    with pytest.raises(TopicsError, match=r"score reads .* \(trajectories has 8, feedback has 4\)"):
        check_equal("score", {TRAJECTORIES: 8, FEEDBACK: 4})
