"""Context-1's reward for the program over real text, whose messages may have thoughts before the call of a tool.

Everything but the turns is in the answer with which the program ends its session:

    {"chunk_ids": ["d0960-1"], "retrieved": ["d0960-1", "d0911-2"], "tools": ["search_corpus", "answer"]}
"""

from headrace.schemas.records.trajectory import Trajectory
from headrace.streams.rewards.context1 import ANNEALED_AT, BETA, FIRST_BETA, Reads, context1
from headrace.streams.rewards.context1_program import retrieved
from headrace.streams.rewards.schedule import linear


def tools_in_answer(trajectory: Trajectory) -> list[str]:
    """Returns the tool of each turn as the program reports it; empty if it reports nothing that can be read."""
    answer = trajectory.answer
    tools = answer.get("tools") if isinstance(answer, dict) else None
    return [tool for tool in tools if isinstance(tool, str)] if isinstance(tools, list) else []


SEARCH_TEXT = context1(
    name="search-text",
    version=1,
    beta=linear(FIRST_BETA, BETA, until=ANNEALED_AT),
    records_recall=True,
    reads=Reads(retrieved, tools_in_answer),
)
"""``search-text@1``: Context-1's reward with β annealed from 4 to 2, for the program over real text."""
