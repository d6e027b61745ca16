"""A search agent on OpenAI's client: it answers questions from a search service, one line of JSON per question.

    export OPENAI_BASE_URL=… OPENAI_API_KEY=… SEARCH_URL=…
    echo '{"id": "1", "index": "search-heldout-000001", "question": "what is the seat of the employer of ada ?"}' |
        python openai_program.py
    {"id": "1", "status": "completed", "chunk_ids": ["c17", "c40"], "retrieved": ["c17", "c40", "c05"]}

The model writes one action per message (``search_corpus ada employer``), and the program replies with its result. The
program knows nothing of how its calls are recorded, or of training.
"""

import asyncio
import json
import os
import re
import sys
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from openai import AsyncOpenAI, OpenAIError

MODEL = os.environ.get("OPENAI_MODEL", "policy")
CONCURRENCY = 64
"""Questions in progress."""

TURNS = 8
"""Calls of the model per question."""
ANSWER_TOKENS = 16
"""Longest answer of the model."""
BUDGET, HARD, SOFT = 120, 76, 60
"""Tokens of context: where the attempt ends, where only pruning is allowed, where it is advised."""
ROOM = {"search_corpus": 21, "grep_corpus": 35, "read_document": BUDGET}
"""Largest result of each tool, in tokens."""
MOST_WORDS = {"search_corpus": 6, "grep_corpus": 1, "read_document": 1}
"""Most arguments of each tool; each needs one at least."""

CHUNK_ID = re.compile(r"c\d\d")
INVALID, REFUSED = "error: invalid action", "error: refused"

Message = dict[str, str]


@dataclass
class Attempt:
    """A question that is being answered."""

    question: str
    index: str
    turns: int = 0
    messages: list[Any] = field(default_factory=list)
    used: int = 0
    """Tokens of the context, as its last line tells the model."""
    kept: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """Actions whose results are in the context, with these: chunk id → text."""
    retrieved: dict[str, None] = field(default_factory=dict)
    """Ids of all chunks that were found, in order."""

    def __post_init__(self) -> None:
        self.show(self.question)

    def show(self, text: str) -> None:
        """Add a message of the user, which ends with how full the context is."""
        self.messages.append({"role": "user", "content": text})
        self.used = tokens_of(self.messages)
        usage = f"[Token usage: {' '.join(str(self.used))} / {' '.join(str(BUDGET))} ]"
        notice = " only pruning" if self.used >= HARD else " consider pruning" if self.used >= SOFT else ""
        self.messages[-1]["content"] = f"{text} {usage}{notice}"

    def prune(self, chunk_ids: set[str]) -> bool:
        """Start a new context without these chunks; ``False`` if it does not have them all."""
        if not chunk_ids or not chunk_ids <= {chunk for _, found in self.kept for chunk in found}:
            return False
        rest = [(action, {k: v for k, v in found.items() if k not in chunk_ids}) for action, found in self.kept]
        self.kept = [(action, found) for action, found in rest if found]
        self.messages = self.messages[:1] if self.kept else []
        for action, found in self.kept:
            self.messages.append({"role": "assistant", "content": action})
            self.messages.append({"role": "user", "content": joined(found)})
        self.show(self.messages.pop()["content"] if self.kept else self.question)
        return True

    def result(self, status: str, chunk_ids: list[str] | None = None) -> dict[str, Any]:
        answer = {} if chunk_ids is None else {"chunk_ids": chunk_ids}
        return {"status": status, **answer, "retrieved": list(self.retrieved)}


class Agent:
    """Answers questions."""

    def __init__(self, client: AsyncOpenAI, search: aiohttp.ClientSession) -> None:
        self.client = client
        self.search = search

    async def answer(self, attempt: Attempt, temperature: float, client: AsyncOpenAI) -> dict[str, Any]:
        while attempt.turns < TURNS:
            reply = await client.chat.completions.create(
                model=MODEL,
                messages=attempt.messages,
                temperature=temperature,
                max_completion_tokens=ANSWER_TOKENS,
            )
            choice = reply.choices[0]
            text = choice.message.content or ""
            attempt.turns += 1
            attempt.messages.append({"role": "assistant", "content": text})
            # An answer that was cut off is no action.
            name, *words = text.split() if choice.finish_reason == "stop" and text.split() else [""]
            if name == "answer" and all(map(CHUNK_ID.fullmatch, words)):
                return attempt.result("completed", list(dict.fromkeys(words)))
            if name != "prune_chunks" or not attempt.prune(set(words)):
                attempt.show(await self.act(attempt, text, name, words))
            if tokens_of(attempt.messages) + 1 >= BUDGET:
                return attempt.result("budget_exhausted")
        return attempt.result("turns_exhausted")

    async def act(self, attempt: Attempt, text: str, name: str, words: list[str]) -> str:
        """Carry out an action of the model; returns what to show it."""
        if not 1 <= len(words) <= MOST_WORDS.get(name, 0):
            return INVALID
        async with self.search.post(f"{attempt.index}/{name}", json={"words": words}) as response:
            if response.status == 400:
                return INVALID
            response.raise_for_status()
            found: list[dict[str, str]] = await response.json()
        if attempt.used >= HARD:
            return REFUSED
        room = min(ROOM[name], BUDGET - tokens_of(attempt.messages) - 1)
        shown: dict[str, str] = {}
        for chunk in found:
            if name == "search_corpus" and chunk["id"] in attempt.retrieved:
                continue
            room -= len(chunk["text"].split())
            if room < 0:
                break
            shown[chunk["id"]] = chunk["text"]
        if not shown:
            return "nothing found"
        attempt.retrieved |= dict.fromkeys(shown)
        attempt.kept.append((text, shown))
        return joined(shown)

    async def one(self, line: dict[str, Any]) -> dict[str, Any]:
        """Answer one line of the input; a line may have an API key of its own."""
        client = self.client.with_options(api_key=line["api_key"]) if "api_key" in line else self.client
        attempt = Attempt(line["question"], line["index"])
        try:
            result = await self.answer(attempt, line.get("temperature", 1.0), client)
        except (OpenAIError, aiohttp.ClientError) as error:
            result = {"status": "failed", "error": f"{type(error).__name__}: {error}"}
        return {"id": line["id"], **result}


def joined(found: dict[str, str]) -> str:
    return " ".join(found.values())


def tokens_of(messages: list[Message]) -> int:
    """Number of tokens: this model's are words, with a marker in front of a message and one after its own answers."""
    return sum(len(each["content"].split()) + markers_of(each) for each in messages)


def markers_of(message: Message) -> int:
    if message["role"] == "assistant":
        return 2
    return 0 if message["content"].startswith("error: ") else 1  # "error:" becomes the marker


async def main() -> None:
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    slots = asyncio.Semaphore(CONCURRENCY)

    async def answer(agent: Agent, line: bytes) -> None:
        try:
            sys.stdout.write(json.dumps(await agent.one(json.loads(line))) + "\n")
            sys.stdout.flush()
        finally:
            slots.release()

    search = aiohttp.ClientSession(os.environ["SEARCH_URL"].rstrip("/") + "/")
    async with AsyncOpenAI() as client, search, asyncio.TaskGroup() as tasks:
        agent = Agent(client, search)
        while line := await lines.readline():
            await slots.acquire()
            tasks.create_task(answer(agent, line))


if __name__ == "__main__":
    asyncio.run(main())
