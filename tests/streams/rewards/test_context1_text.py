"""The reward of the program over real text, which reports its tools because its messages may have thoughts."""

import pytest

from headrace.schemas.records.trajectory import Turn
from headrace.streams.rewards.context1 import SEARCH_ANNEALED
from headrace.streams.rewards.context1_text import SEARCH_TEXT
from headrace.streams.scoring.score import REWARDS_OF_AGENTS
from tests.streams.attempts import attempt, prunes, shows

TASK = {"targets": ["c1", "c2"], "answer_chunks": ["c2"]}


def test_it_is_scored_as_an_agent_whose_tools_are_recorded() -> None:
    turns = [shows("c1", "x"), prunes(5), *[Turn(sampled_tokens=1)] * 66]
    recorded = attempt("t", agent="search", task=TASK, turns=turns, answer={"chunk_ids": ["c1", "x"]})
    answer = {
        "chunk_ids": ["c1", "x"],
        "retrieved": ["c1", "x"],
        "tools": ["search_corpus", *["prune_chunks"] * 5, "unknown"],
    }
    said = [Turn(messages=[{"role": "assistant", "content": "I think.\nprune_chunks x"}])] * len(turns)
    reported = attempt("t", agent="search-text", task=TASK, turns=said, answer=answer)
    assert REWARDS_OF_AGENTS.of(reported) is SEARCH_TEXT
    scored = SEARCH_TEXT.score(reported)
    assert scored.total == SEARCH_ANNEALED.score(recorded).total
    assert scored.components["prune_penalty"].value == pytest.approx(0.2)


@pytest.mark.parametrize("answer", [None, "answer c1", {"retrieved": "c1", "tools": "x"}, {"tools": [1, None]}, ["c1"]])
def test_a_report_that_cannot_be_read_earns_nothing(answer: object) -> None:
    assert SEARCH_TEXT.score(attempt("t", agent="search-text", task=TASK, answer=answer)).total == 0.0
