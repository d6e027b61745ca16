"""A taskset of verifiers in the words of the demo's model: write the first search for a question, with the entity and
the relation that it asks for first. Only the Python of the environment imports it.

{"name": "search-train-000017", "prompt": "what is the seat of the employer of ada ? …", "wanted": ["ada", "employer"]}
"""

import json
from collections.abc import Iterator
from pathlib import Path

import verifiers.v1 as vf

SEARCH = "search_corpus"


class FirstQueryData(vf.TaskData):
    wanted: list[str]


def score(reply: str, wanted: list[str]) -> float:
    """Share of the wanted words in the query, or, of a query with more words, share of the query; 0 for anything else
    than a search."""
    name, *words = reply.split() or [""]
    if name != SEARCH or not words:
        return 0.0
    return len(set(words) & set(wanted)) / max(len(words), len(wanted))


class FirstQueryTask(vf.Task[FirstQueryData]):
    @vf.reward(weight=1.0)
    async def names_what_is_asked(self, trace: vf.Trace) -> float:
        return score(trace.last_reply, self.data.wanted)


class FirstQueryConfig(vf.TasksetConfig):
    file: str = "tasks.jsonl"


class FirstQueryTaskset(vf.Taskset[FirstQueryTask, FirstQueryConfig]):
    def load(self) -> Iterator[FirstQueryTask]:
        for line in Path(self.config.file).read_text().splitlines():
            yield FirstQueryTask(FirstQueryData(**json.loads(line)), self.config.task)


__all__ = ["FirstQueryTaskset"]
