"""Context-1's reward for a program behind the gateway, whose actions are text.

The first word of a turn's answer is its tool; what was retrieved is in the answer with which the program ends its
session, because the results of its last turn were never sent to the model:

    {"chunk_ids": ["c17", "c40"], "retrieved": ["c17", "c40", "c05"]}
"""

from headrace.schemas.records.trajectory import Trajectory, Turn
from headrace.streams.rewards.context1 import BETA, Reads, chunk_ids, context1


def retrieved(trajectory: Trajectory) -> set[str]:
    """Returns the chunks that the program says it retrieved; empty if it says nothing that can be read."""
    answer = trajectory.answer
    return chunk_ids({"chunk_ids": answer.get("retrieved")}) if isinstance(answer, dict) else set()


def tools_in_text(trajectory: Trajectory) -> list[str]:
    """Returns the first word of each turn's answer."""
    return [_first_word(turn) for turn in trajectory.turns]


def _first_word(turn: Turn) -> str:
    """Returns the first word of the last message, which is the answer; empty if it has none, or was not recorded."""
    content = turn.messages[-1].get("content") if turn.messages else None
    return next(iter(content.split()), "") if isinstance(content, str) else ""


SEARCH_PROGRAM = context1(version=4, beta=BETA, records_beta=False, reads=Reads(retrieved, tools_in_text))
"""``search@4``: the totals of ``search@1``, for a program whose actions are text."""
