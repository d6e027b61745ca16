"""The program over real text: a policy that answers right, one that prunes wrongly, and sessions of a gateway."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai")
from openai import AsyncOpenAI

from headrace.agents.environments.sessions import Session
from headrace.agents.retrieval.documents import write_documents
from headrace.agents.retrieval.index import RetrievalSettings, build_index, retriever_of
from headrace.agents.search.text import program as text_program
from headrace.agents.search.text.episode import Attempted, AttemptSettings, attempt
from headrace.agents.search.text.generate import generate
from headrace.agents.search.text.harness import HARNESS_VERSION, Message, Observation, TextLimits
from headrace.agents.search.text.tasks import TextTask, write_tasks
from headrace.agents.search.text.verify import Corpus
from headrace.schemas.events import EndStatus
from headrace.streams.rewards.context1_text import SEARCH_TEXT
from tests.agents.retrieval.endpoint_server import endpoint
from tests.agents.search.text.library import small_text
from tests.streams.attempts import attempt as recorded

TEXT = small_text()
TASKS = generate(TEXT.facts, Corpus.of(TEXT.documents), "sha", counts={1: 9, 2: 9, 3: 9}).tasks
TASK = next(task for task in TASKS if len(task.hops) == 3)
LIMITS = TextLimits(budget=2_000, soft=700, hard=1_500, search_tokens=200, grep_tokens=200, turns=40)

Policy = Callable[[list[Message]], str]


def completion(text: str, messages: list[Message]) -> dict[str, Any]:
    """An answer of the API; a token is four characters."""
    prompt = sum(len(message["content"]) for message in messages) // 4
    usage = {"prompt_tokens": prompt, "completion_tokens": len(text) // 4, "total_tokens": prompt + len(text) // 4}
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    return {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}


@asynccontextmanager
async def model(policy: Policy) -> AsyncIterator[AsyncOpenAI]:
    """A client of a model that follows ``policy``."""

    def answer(path: str, body: Any) -> Any:
        assert path == "/v1/chat/completions"
        return completion(policy(body["messages"]), body["messages"])

    async with endpoint(answer) as (_, url, _), AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        yield client


class RightPolicy:
    """Searches for each hop until its evidence is shown, prunes what is no evidence when advised, and answers."""

    def __init__(self, task: TextTask) -> None:
        self._task = task
        self._prunes: set[str] = set()

    def __call__(self, messages: list[Message]) -> str:
        shown = shown_in(messages)
        useless = [chunk_id for chunk_id in shown if chunk_id not in self._task.targets]
        if "prun" in messages[-1]["content"].rpartition("[Token usage")[2] and useless:
            return f"That is enough to read.\nprune_chunks {' '.join(useless)}"
        for hop, target in zip(self._task.hops, self._task.targets, strict=True):
            if target not in shown:
                said = f"search_corpus {hop.subject} {' '.join(hop.cues)}"
                if not any(message["content"] == said for message in messages):
                    return said
                return f"grep_corpus {hop.subject.replace('.', '[.]')}"
        return f"answer {' '.join(self._task.targets)}"


class PrunesEvidence(RightPolicy):
    """The same, but it removes the evidence it has found before it answers with what is left."""

    def __call__(self, messages: list[Message]) -> str:
        said = super().__call__(messages)
        if self._prunes:
            return f"answer {' '.join(shown_in(messages))}"
        if said.startswith("answer"):
            self._prunes = set(self._task.targets)
            return f"prune_chunks {' '.join(self._task.targets)}"
        return said


def shown_in(messages: list[Message]) -> list[str]:
    """Chunk ids in the context, as a model reads them."""
    lines = [line for message in messages[1:] for line in message["content"].splitlines() if line.startswith("[d")]
    return [line[1 : line.index("]")] for line in lines]


def reward(task: TextTask, attempted: Attempted) -> float:
    """What the shipped reward gives for the answer with which the session ends."""
    record = recorded("t", agent="search-text", task=task.facts, answer=attempted.as_answer())
    return SEARCH_TEXT.score(record).total


async def attempted_by(
    policy: Policy, task: TextTask, limits: TextLimits = LIMITS
) -> tuple[Attempted, list[Observation]]:
    observed: list[Observation] = []
    retriever = await retriever_of(TEXT.documents, RetrievalSettings())
    async with model(policy) as client:
        settings = AttemptSettings("m", limits=limits)
        return await attempt(client, retriever, task.question, settings, observed.append), observed


@pytest.mark.parametrize("task", [task for task in TASKS if len(task.hops) > 1][::3], ids=lambda task: task.task_id)
async def test_a_policy_that_answers_right_is_rewarded_in_full(task: TextTask) -> None:
    found, _ = await attempted_by(RightPolicy(task), task)
    assert found.status is EndStatus.COMPLETED
    assert set(found.chunk_ids) == set(task.targets)
    assert set(task.targets) <= set(found.retrieved)
    assert reward(task, found) == pytest.approx(2.0)


async def test_a_policy_that_prunes_wrongly_loses_what_its_answer_lacks() -> None:
    found, observed = await attempted_by(PrunesEvidence(TASK), TASK)
    assert found.status is EndStatus.COMPLETED
    assert not set(found.chunk_ids) & set(TASK.targets)
    assert set(TASK.targets) <= set(found.retrieved)  # the full trajectory remembers what was pruned
    assert [each.pruned for each in observed if each.pruned] == [TASK.targets]
    # Recall of the trajectory and the answer's chunk were earned; F_β of the answer was not.
    assert reward(TASK, found) == pytest.approx(0.3 + 1.0)


async def test_a_policy_under_a_tight_budget_prunes_on_the_way_and_still_answers() -> None:
    tight = TextLimits(budget=900, soft=250, hard=600, search_tokens=200, grep_tokens=200, turns=40)
    found, observed = await attempted_by(RightPolicy(TASK), TASK, tight)
    assert [each for each in observed if each.pruned]
    assert set(found.chunk_ids) == set(TASK.targets)


async def test_pruning_again_and_again_costs() -> None:
    def prunes(messages: list[Message]) -> str:
        return f"prune_chunks {TASK.targets[0]}" if len(messages) < 20 else f"answer {TASK.targets[0]}"

    found, observed = await attempted_by(prunes, TASK)
    assert {each.error_class is None for each in observed} == {False}
    assert found.tools.count("prune_chunks") > 4
    assert reward(TASK, found) == 0.0


@pytest.mark.parametrize("pattern", ["(", "(a|aa)+$", "[.]"])
async def test_a_bad_or_costly_pattern_of_a_model_ends_nothing(pattern: str) -> None:
    turns = iter([f"grep_corpus {pattern}", "answer d1-1"])
    found, observed = await attempted_by(lambda messages: next(turns), TASK)
    assert found.status is EndStatus.COMPLETED
    assert len(observed) == 1


async def test_the_program_runs_as_a_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    write_documents(TEXT.documents, tmp_path)
    await build_index(tmp_path, RetrievalSettings())
    write_tasks(TASKS, tmp_path / "tasks.jsonl")
    by_question = {task.question: task for task in TASKS}

    def policy(messages: list[Message]) -> str:
        question = messages[0]["content"].split("Question:\n")[1].partition("\n\n[")[0]
        return RightPolicy(by_question[question])(messages)

    async with model(policy) as client:
        monkeypatch.setenv("OPENAI_BASE_URL", str(client.base_url))
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        options = [
            "--corpus",
            str(tmp_path),
            "--tasks",
            str(tmp_path / "tasks.jsonl"),
            "--model",
            "m",
            "--split",
            "train",
        ]
        await text_program.run(text_program.parser().parse_args([*options, "--count", "4"]))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 4
    assert {(line["status"], line["recall"], line["trajectory_recall"]) for line in lines} == {("completed", 1.0, 1.0)}


async def test_with_a_gateway_each_attempt_is_a_session_that_ends_with_its_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A scripted gateway: the real one's sessions are tested with the other program, whose requests are the same."""
    write_documents(TEXT.documents, tmp_path)
    await build_index(tmp_path, RetrievalSettings())
    write_tasks([TASK], tmp_path / "tasks.jsonl")
    ends: list[Any] = []
    starts: list[Any] = []

    def gateway(path: str, body: Any) -> Any:
        if path == "/sessions":
            starts.append(body)
            return {"session": f"ses_{len(starts)}", "trajectory": f"t{len(starts)}", "api_key": "hrs_1"}
        if path.endswith("/end"):
            ends.append(body)
            return {}
        return completion(RightPolicy(TASK)(body["messages"]), body["messages"])

    async with endpoint(gateway) as (_, url, _):
        options = [
            "--corpus",
            str(tmp_path),
            "--tasks",
            str(tmp_path / "tasks.jsonl"),
            "--model",
            "m",
            "--gateway",
            url,
        ]
        await text_program.run(
            text_program.parser().parse_args([*options, "--split", str(TASK.split), "--attempts", "2"])
        )
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert len({each["session"] for each in starts}) == 2
    assert {each["purpose"] for each in starts} == {TASK.split.purpose.value}
    assert [(each["agent"], each["harness_version"], each["group_size"]) for each in starts] == [
        ("search-text", HARNESS_VERSION, 2)
    ] * 2
    assert starts[0]["group_id"] == starts[1]["group_id"]
    assert starts[0]["task"] == TASK.facts
    assert [each["status"] for each in ends] == ["completed"] * 2
    assert set(ends[0]["answer"]["chunk_ids"]) == set(TASK.targets)


async def test_an_endpoint_that_fails_is_a_line_with_the_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_documents(TEXT.documents, tmp_path)
    await build_index(tmp_path, RetrievalSettings())
    write_tasks([TASK], tmp_path / "tasks.jsonl")
    ends: list[Any] = []

    def gateway(path: str, body: Any) -> Any:
        if path == "/sessions":
            return {"session": "ses_1", "trajectory": "t1", "api_key": "hrs_1"}
        if path.endswith("/end"):
            ends.append(body)
            return {}
        return 400

    async with endpoint(gateway) as (_, url, _):
        options = [
            "--corpus",
            str(tmp_path),
            "--tasks",
            str(tmp_path / "tasks.jsonl"),
            "--model",
            "m",
            "--gateway",
            url,
        ]
        await text_program.run(text_program.parser().parse_args([*options, "--split", str(TASK.split)]))
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert line["status"] == "failed"
    assert "BadRequestError" in line["error"]
    assert ends == [{"status": "failed"}]


async def test_an_attempt_that_takes_too_long_ends_as_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Slow:
        def __init__(self) -> None:
            self.chat = self.completions = self

        def with_options(self, **_: Any) -> "Slow":
            return self

        async def create(self, **_: Any) -> Any:
            await asyncio.Event().wait()

    retriever = await retriever_of(TEXT.documents, RetrievalSettings())
    program = text_program.Program(Slow(), retriever, AttemptSettings("m"), timeout_s=0.01)  # type: ignore[arg-type]
    assert await program.one(TASK, Session("s", "t", "http://nowhere/v1")) == {"status": "failed"}
    assert json.loads(capsys.readouterr().out)["error"].startswith("TimeoutError")


def test_options_that_contradict_each_other_are_a_sentence(tmp_path: Path) -> None:
    write_tasks([TASK], tmp_path / "tasks.jsonl")
    options = ["--corpus", str(tmp_path), "--tasks", str(tmp_path / "tasks.jsonl"), "--model", "m"]
    with pytest.raises(SystemExit, match="concurrency is 4: it must be at least attempts, 8"):
        text_program.main([*options, "--attempts", "8", "--concurrency", "4"])


def test_a_missing_corpus_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text("")
    with pytest.raises(SystemExit, match="headrace index"):
        text_program.main(["--corpus", str(tmp_path), "--tasks", str(tmp_path / "tasks.jsonl"), "--model", "m"])
