"""A taskset of verifiers in the words of the demo's model: write the first search for a question, with the entity and
the relation that it asks for first. Its harness makes the one call of the model in this process, so that a rollout
starts none. Only the Python of the environment imports it.

{"name": "search-train-000017", "prompt": "what is the seat of the employer of ada ? …", "wanted": ["ada", "employer"]}
"""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import verifiers.v1 as vf

SEARCH = "search_corpus"
CALL_S = 120.0


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


class OneCallHarness(vf.Harness[vf.HarnessConfig]):
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
        tool_interception_url: str | None = None,
    ) -> vf.ProgramResult:
        _, prompt = self.resolve_text_prompt(data)
        body = {"model": ctx.model, "messages": [{"role": "user", "content": prompt}]}
        async with httpx.AsyncClient(timeout=CALL_S, headers={"Authorization": f"Bearer {secret}"}) as client:
            answer = await client.post(f"{endpoint}/chat/completions", json=body)
        return vf.ProgramResult(0 if answer.is_success else 1, "", "" if answer.is_success else answer.text)


__all__ = ["FirstQueryTaskset", "OneCallHarness"]
