"""The orchestrator on OpenAI's client, through a whole gateway: what counts as assigned and finished, its reward."""

import json
import re
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai")
from openai import AsyncOpenAI

from headrace.agents.environments.program_groups import GroupSettings, run_groups
from headrace.agents.environments.rollouts import AlwaysRoom
from headrace.agents.environments.sessions import Session, UnrecordedSessions, gateway_sessions
from headrace.agents.retrieval.index import RetrievalSettings, retriever_of
from headrace.agents.search.text.generate import generate
from headrace.agents.search.text.verify import Corpus
from headrace.agents.swarm.program import (
    DEEP,
    WIDE,
    Attempt,
    Program,
    SwarmSettings,
    about,
    normal,
    parser,
    swarm_tasks,
)
from headrace.schemas.events import EndStatus, Role
from headrace.schemas.records.trajectory import Trajectory
from headrace.streams.grouping.group_policy import parse_policies
from headrace.streams.rewards.swarm import ANNEALED_AT, FINISH_WEIGHT, PARALLEL_WEIGHT, SWARM
from tests.agents.environments.played import END, TURN, Logged
from tests.agents.gateway.running import running_gateway
from tests.agents.gateway.scripted_engine import FileCodec, Reply, ScriptedEngine
from tests.agents.gateway.tiny_chat_model import make_chat_model
from tests.agents.retrieval.endpoint_server import endpoint
from tests.agents.search.text.library import small_text

TEXT_ = small_text()
QUESTIONS = generate(TEXT_.facts, Corpus.of(TEXT_.documents), "sha", counts={1: 9, 2: 9, 3: 9}).tasks
TASKS = swarm_tasks(QUESTIONS, 2)
TASK = next(task for task in TASKS if task.source == WIDE)
SEARCHES, TALKS = "You find a fact and report it.", "You search for ever and never report."


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"name": tool, "arguments": arguments}


def turn_of(system: str, turn: int) -> list[dict[str, Any]] | str:
    """What the scripted model says in its ``turn``-th message of a conversation: calls, or a text."""
    if system == TALKS:
        return [call("search", query="more")]
    if system == SEARCHES:
        return [call("search", query="a fact")] if turn == 0 else "It is in the documentation."
    first, second = (task.answer for task in TASK.questions)
    turns: list[list[dict[str, Any]] | str] = [
        [
            call("create_subagent", name="finder", system_prompt=SEARCHES),
            call("create_subagent", name="talker", system_prompt=TALKS),
            call("assign_task", agent="nobody", prompt="This one is not created."),
        ],
        [
            call("assign_task", agent="finder", prompt="Find the first fact, please."),
            call("assign_task", agent="finder", prompt="Find the first fact, please."),
            call("assign_task", agent="talker", prompt="Find the second fact, please."),
        ],
        "I know enough.",
        [call("answer", answers=[first, f"not {second}"])],
    ]
    return turns[turn]


def test_tasks_are_wide_or_deep_and_scored_by_items() -> None:
    assert {task.source for task in TASKS} == {WIDE, DEEP}
    assert all(len(task.questions) == (2 if task.source == WIDE else 1) for task in TASKS)
    assert all((len(task.questions[0].hops) > 2) == (task.source == DEEP) for task in TASKS)
    assert len({task.task_id for task in TASKS}) == len(TASKS)
    first, second = (task.answer for task in TASK.questions)
    assert TASK.outcome([f" `{first}` ", second]) == 1.0
    assert TASK.outcome([first, "no"]) == 0.5
    assert TASK.outcome([first]) == pytest.approx(2 / 3)
    assert TASK.outcome([]) == TASK.outcome(["no", "no", first]) == 0.0
    assert normal("'a  b'.") == "a b"


@asynccontextmanager
async def model() -> Any:
    """An endpoint of OpenAI's API that follows the script; gives its address and the requests."""

    def answer(path: str, body: Any) -> Any:
        said = turn_of(body["messages"][0]["content"], sum(each["role"] == "assistant" for each in body["messages"]))
        message: dict[str, Any] = {"role": "assistant", "content": said if isinstance(said, str) else None}
        if not isinstance(said, str):
            message["tool_calls"] = [
                {"id": f"c{place}", "type": "function", "function": {"name": each["name"], "arguments": json.dumps(
                    each["arguments"])}}
                for place, each in enumerate(said)
            ]  # fmt: skip
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}

    async with endpoint(answer) as (_, url, asked):
        yield url, asked


async def test_sub_tasks_of_a_message_run_together_and_cost_as_much_as_the_slowest() -> None:
    retriever = await retriever_of(TEXT_.documents, RetrievalSettings())
    async with model() as (url, asked), AsyncOpenAI(api_key="k", base_url=f"{url}/v1") as client:
        sessions = UnrecordedSessions(f"{url}/v1")
        settings = SwarmSettings("m", steps=24, subagent_steps=5)
        attempt = Attempt(settings, client, sessions, retriever, Session("s", "t", f"{url}/v1"))
        status, answers = await attempt.run(TASK)
        assert (status, TASK.outcome(answers)) == (EndStatus.COMPLETED, 0.5)
        assert (attempt.assigned, attempt.finished, attempt.steps) == (3, 2, 4 + 5)
        (results,) = [
            [each["content"] for each in body["messages"] if each["role"] == "tool"]
            for body in asked
            if len(body["messages"]) > 10 and body["messages"][0]["content"] not in (SEARCHES, TALKS)
        ]
        assert results[2].startswith("error: there is no sub-agent nobody")
        assert results[3].startswith("It is in the documentation.")
        assert results[5] == "error: the sub-agent ran out of steps\n[17 steps left]"
        few = Attempt(SwarmSettings("m", steps=2), client, sessions, retriever, Session("s", "t", f"{url}/v1"))
        assert await few.run(TASK) == (EndStatus.BUDGET_EXHAUSTED, [])


def test_the_page_has_settings_of_toggle_that_are_accepted() -> None:
    page = (Path(__file__).parents[3] / "agents" / "swarm" / "README.md").read_text()
    (setting,) = re.findall(r"--set 'workers\.group_policies=(.*toggle.*)'", page)
    toggle = parse_policies(json.loads(setting)).of(SWARM.label).toggle
    assert toggle is not None
    assert toggle.source_budgets.keys() == {WIDE, DEEP}


def test_the_programs_defaults() -> None:
    options = parser().parse_args(["--corpus", "c", "--tasks", "t", "--gateway", "http://g", "--attempts", "8"])
    assert (options.steps, options.questions, options.attempts) == (24, 4, 8)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import_module("headrace.agents.gateway.answer_parser")  # imports vLLM, which takes longer than a gateway may
    return make_chat_model(tmp_path_factory.mktemp("tokenizer"))


class ScriptedModel(ScriptedEngine):
    """An engine that follows the script, with vLLM's form of tool calls."""

    def __init__(self, tokenizer: Path) -> None:
        super().__init__(codec=FileCodec(tokenizer))
        self._end = tuple(self.codec.encode(END))

    def reply_to(self, body: dict[str, Any]) -> Reply:
        prompt = self.codec.decode(body["token_ids"])
        system = prompt.partition("<|im_start|>system\n")[2].partition(END)[0]
        said = turn_of(system, prompt.count(TURN) - 1)
        calls = said if isinstance(said, str) else "\n".join(
            f"<tool_call>\n{json.dumps(each)}\n</tool_call>" for each in said
        )  # fmt: skip
        return Reply(calls, ends_with=self._end, chunk_tokens=8)


@pytest.mark.vllm
async def test_the_gateway_counts_what_was_assigned_and_what_finished(tokenizer: Path, tmp_path: Path) -> None:
    """vLLM's parser of tool calls runs in the gateway; no server of vLLM does."""
    parsers = {"tool_parser": "hermes", "model_path": str(tokenizer)}
    retriever = await retriever_of(TEXT_.documents, RetrievalSettings())
    async with (
        ScriptedModel(tokenizer) as engine,
        running_gateway(tmp_path, [engine.url], run="run", **parsers) as gateway,
        gateway_sessions(gateway.url) as sessions,
        AsyncOpenAI(api_key="k", base_url=f"{gateway.url}/v1") as client,
    ):
        program = Program(client, sessions, retriever, SwarmSettings("policy", subagent_steps=3, answer_tokens=512))
        await run_groups([TASK], GroupSettings(2), sessions, AlwaysRoom(), about=about, attempt=program.one)
    log = Logged(tmp_path)
    trajectories = [each for each in log.written["trajectories"] if isinstance(each, Trajectory)]
    mains = [each for each in trajectories if each.started is not None and each.started.role is Role.TRAINABLE]
    subs = [each for each in trajectories if each.started is not None and each.started.role is Role.FROZEN]
    assert [(each.subagents_assigned, each.subagents_finished) for each in mains] == [(3, 2)] * 2
    assert [each.critical_steps for each in mains] == [4 + 3] * 2
    assert sorted(str(log.ended[each.trajectory_id].status) for each in subs) == (
        ["completed"] * 4 + ["turns_exhausted"] * 2
    )
    assert {each.started.agent for each in mains if each.started} == {"swarm"}
    for each in mains:
        shaping = PARALLEL_WEIGHT * 3 / 10 + FINISH_WEIGHT * 2 / 3
        assert SWARM.score(each).total == pytest.approx(0.5 + shaping * (1 - 3 / ANNEALED_AT))  # by version 3
    assert sorted({str(each.reason) for each in log.rejections}) == ["frozen_role", "zero_variance_all_equal"]
