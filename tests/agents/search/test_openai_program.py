"""The ordinary program follows the rules of the reference agent, and has none of headrace's code."""

import ast
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.search import openai_program as program
from headrace.agents.search import vocabulary as words
from headrace.agents.search.actions import MAX_QUERY_WORDS
from headrace.agents.search.corpus import CHUNK_TOKENS
from headrace.agents.search.harness import Done, Harness, Limits
from headrace.agents.search.openai_program import BUDGET, Agent, Attempt, Message
from headrace.agents.search.program_attempts import PROGRAM
from headrace.agents.search.search_service import found_by
from headrace.agents.search.tasks import Task, make_task

TASK = make_task("search-heldout-000001")


def test_the_program_has_none_of_headraces_code() -> None:
    imported = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse(PROGRAM.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names])
    }
    assert "openai" in imported
    assert imported - {"openai", "aiohttp"} <= sys.stdlib_module_names
    assert "headrace" not in PROGRAM.read_text()
    script = f"import runpy, sys; runpy.run_path({str(PROGRAM)!r}); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-P", "-c", script], check=True, capture_output=True, text=True).stdout
    assert "openai" in loaded.split()
    assert not [module for module in loaded.split() if module.partition(".")[0] == "headrace"]


def test_the_limits_are_those_of_the_reference_agent() -> None:
    limits = Limits()
    own = (program.BUDGET, program.HARD, program.SOFT, program.TURNS, program.ANSWER_TOKENS)
    assert own == (limits.budget, limits.hard, limits.soft, limits.turns, limits.sampled_tokens)
    rooms = (limits.search_tokens, limits.grep_chunks * CHUNK_TOKENS, limits.budget)
    assert dict(zip((words.SEARCH, words.GREP, words.READ), rooms, strict=True)) == program.ROOM
    assert program.MOST_WORDS[words.SEARCH] == MAX_QUERY_WORDS


class Scripted:
    """A client whose model says ``texts``, and the contexts that it was asked with."""

    def __init__(self, texts: Sequence[tuple[str, bool]]) -> None:
        """``texts``: answers, and whether each was cut off."""
        self._texts = iter(texts)
        self.contexts: list[list[int]] = []
        self.chat = SimpleNamespace(completions=self)

    async def create(self, *, messages: list[Message], **options: Any) -> Any:
        self.contexts.append(rendered(messages))
        text, is_cut = next(self._texts)
        reason = "length" if is_cut else "stop"
        return SimpleNamespace(
            choices=[SimpleNamespace(message=SimpleNamespace(content=text), finish_reason=reason)],
        )


class Service:
    """The search service without its server."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def post(self, path: str, json: dict[str, Any]) -> Any:
        return _Answer(found_by(self._task, path.rpartition("/")[2], json["words"]))


class _Answer:
    def __init__(self, found: Any) -> None:
        self._found, self.status = found, 400 if found is None else 200

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    def raise_for_status(self) -> None: ...

    async def json(self) -> Any:
        return [{"id": chunk.chunk_id, "text": " ".join(chunk.words)} for chunk in self._found]


@cache
def template() -> Any:
    return pytest.importorskip("jinja2").Template(words.CHAT_TEMPLATE)


def rendered(messages: list[Message]) -> list[int]:
    """The tokens of a chat, as an engine renders it."""
    return words.encode(template().render(messages=messages, add_generation_prompt=True))


def sayings(most_words: int = 3) -> st.SearchStrategy[str]:
    """What a model may say, sensible or not, except for pruning."""
    searchable = st.sampled_from([*sorted(words.SEARCHABLE - set(words.STOP_WORDS)), *TASK.question[2:-1]])
    arguments = st.lists(searchable | st.sampled_from(words.DOCUMENTS), max_size=most_words)
    tools = st.sampled_from([words.SEARCH, words.SEARCH, words.GREP, words.READ, "nothing"])
    actions = st.builds(lambda tool, rest: " ".join([tool, *rest]), tools, arguments)
    answers = st.lists(st.sampled_from(words.CHUNKS), max_size=3).map(lambda ids: " ".join([words.ANSWER, *ids]))
    return st.one_of(actions, actions, actions, answers, st.just(""))


async def run_both(texts: Sequence[str]) -> tuple[Harness, list[list[int]], Done, Scripted, dict[str, Any]]:
    """The reference agent's harness, its contexts and its end, and the program's client and result."""
    harness, step = Harness(TASK), None
    contexts = []
    for text in texts:
        contexts.append(list(harness.observe()))
        step = harness.act([*words.encode(text), words.END_ID])
        if isinstance(step, Done):
            break
    assert isinstance(step, Done)
    client = Scripted([(text, False) for text in texts])
    attempt = Attempt(" ".join(TASK.question), TASK.task_id)
    result = await Agent(client, Service(TASK)).answer(attempt, 1.0, client)  # type: ignore[arg-type]
    return harness, contexts, step, client, result


@given(st.lists(sayings(), min_size=8, max_size=8))
async def test_the_model_sees_what_it_sees_of_the_reference_agent(texts: list[str]) -> None:
    harness, contexts, done, client, result = await run_both(texts)
    assert client.contexts == contexts
    assert result["status"] == done.status
    assert result.get("chunk_ids") == (done.answer and done.answer["chunk_ids"])
    assert result["retrieved"] == list(harness.seen)


async def test_a_prune_leaves_the_same_results_in_the_context() -> None:
    first, second = TASK.question[-2], TASK.question[3]
    searches = [f"search_corpus {first}", f"search_corpus {second}"]
    harness = Harness(TASK)
    for text in searches:
        harness.act([*words.encode(text), words.END_ID])
    pruned = [chunk.chunk_id for chunk in harness.view[1:4]]
    texts = [*searches, "prune_chunks c00", f"prune_chunks {' '.join(pruned)}", "answer"]
    harness, contexts, _, client, result = await run_both(texts)
    assert len(harness.view) == 3
    assert result["retrieved"] == list(harness.seen)
    assert client.contexts[:4] == contexts[:4]
    assert words.decode(client.contexts[3]).count(words.ERROR) == 1
    # A chat keeps its first message, and its template marks each answer; the reference agent does neither.
    noise = {words.AGENT, *words.USAGE, *words.DIGITS}
    seen, theirs = ([w for w in words.decode_words(ids) if w not in noise] for ids in (client.contexts[4], contexts[4]))
    assert seen == theirs
    assert client.contexts[4][: len(client.contexts[0])] == client.contexts[0]


async def test_a_prune_of_everything_starts_again() -> None:
    harness = Harness(TASK)
    harness.act([*words.encode(f"search_corpus {TASK.question[-2]}"), words.END_ID])
    everything = " ".join(chunk.chunk_id for chunk in harness.view)
    texts = [f"search_corpus {TASK.question[-2]}", f"prune_chunks {everything}", "search_corpus", "answer"]
    _, contexts, _, client, _ = await run_both(texts)
    assert client.contexts == contexts
    assert client.contexts[2] == client.contexts[0]


async def test_an_answer_that_was_cut_off_is_no_action() -> None:
    client = Scripted([("answer c01", True), ("answer c02", False)])
    attempt = Attempt(" ".join(TASK.question), TASK.task_id)
    result = await Agent(client, Service(TASK)).answer(attempt, 1.0, client)  # type: ignore[arg-type]
    assert result == {"status": "completed", "chunk_ids": ["c02"], "retrieved": []}
    assert words.ERROR in words.decode_words(client.contexts[1])


async def test_the_context_never_exceeds_the_budget_when_the_model_is_asked() -> None:
    _, _, done, client, result = await run_both(["read_document d01"] * 8)
    assert max(map(len, client.contexts)) < BUDGET
    assert result["status"] == done.status
