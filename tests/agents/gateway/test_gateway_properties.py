"""Whatever several clients do to a gateway: what is recorded is what the engine was given and what it sampled, once."""

import asyncio
import copy
import tempfile
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.schemas.arrays import IntArray
from headrace.schemas.events import ModelCalled
from headrace.schemas.tokens import prefix_hash
from tests.agents.gateway.http_clients import CONVERSATIONS, ChatHttp, HttpClient, MessagesHttp, RecallingHttp
from tests.agents.gateway.running import Recorded, assert_exact, calls_in, recorded_in, running_gateway
from tests.agents.gateway.scripted_engine import Fault, Reply, ScriptedEngine, answering, until

RETRY = {"x-stainless-retry-count": "1"}

STEPS = (
    "turn",
    "turn",
    "turn",
    "edit",
    "drop",
    "fork",
    "retry",
    "repeat",
    "hang up",
    "parallel",
    "fault",
    "two choices",
)


@dataclass
class World:
    """The clients, and what they have received."""

    clients: list[HttpClient]
    engine: ScriptedEngine
    lost: set[str] = field(default_factory=set)
    """Ids of the calls whose answers did not arrive whole."""

    def ready(self, client: HttpClient) -> None:
        """Let the client's transcript end with something to be answered."""
        last = client.transcript[-1] if client.transcript else None
        if last is None or last.get("role") != "user":
            client.say(f"question {len(client.transcript)}")

    async def turn(self, client: HttpClient) -> None:
        self.ready(client)
        client.keep(await client.ask())

    async def step(self, name: str, client: HttpClient, choice: int) -> None:
        match name:
            case "turn":
                await self.turn(client)
            case "edit" if client.transcript:
                chosen = client.transcript[choice % len(client.transcript)]
                chosen["content"] = f"edited {choice}"
            case "drop" if len(client.transcript) > 2:
                del client.transcript[1 + choice % (len(client.transcript) - 1) :]
            case "fork" if len(self.clients) < 5:
                self.clients.append(copy.copy(client))
                self.clients[-1].transcript = copy.deepcopy(client.transcript)
                self.clients[-1].fields = dict(client.fields)
            case "retry":
                self.ready(client)
                first = await client.ask()
                sent = len(self.engine.requests)
                again = await client.ask(headers=RETRY)
                assert len(self.engine.requests) == sent
                # A retry receives what did not arrive: an earlier answer to the same request, if its client hung up.
                assert again == first or self.lost
                client.keep(again)
            case "repeat":
                self.ready(client)
                await client.ask()
                client.keep(await client.ask())
            case "hang up":
                await self.hang_up(client, choice)
            case "parallel":
                others = [copy.copy(client) for _ in range(3)]
                for number, other in enumerate(others):
                    other.transcript, other.fields = copy.deepcopy(client.transcript), dict(client.fields)
                    other.say(f"at once {number % 2}")
                await asyncio.gather(*(other.ask() for other in others))
            case "fault":
                self.engine.replies.insert(0, Reply("never whole at all", fault=Fault.ERROR_IN_STREAM, chunk_tokens=2))
                self.ready(client)
                sent = len(self.engine.requests)
                await client.gateway.post(client.path, client.body())
                self.lost |= {each["request_id"] for each in self.engine.requests[sent:]}
                client.keep(await client.ask(headers=RETRY))
            case "two choices" if client.api == "chat":
                self.ready(client)
                client.keep((await client.choices(n=2))[choice % 2])

    async def hang_up(self, client: HttpClient, after: int) -> None:
        self.ready(client)
        gateway, size, sent = client.gateway, 0, len(self.engine.requests)
        async with aiohttp.ClientSession() as http:
            body = client.body() | {"stream": True}
            async with http.post(gateway.url + client.path, json=body, headers=client.headers) as response:
                async for data in response.content.iter_any():
                    size += len(data)
                    if size > after * 40:
                        break
        await until(lambda: gateway.calls_in_flight == 0)
        self.lost |= {each["request_id"] for each in self.engine.requests[sent:]}


def tokens_of(events: list[Recorded]) -> dict[tuple[str, int | None], tuple[IntArray, ModelCalled]]:
    """Context of each call, by its id and choice."""
    ends: dict[tuple[str, int, str], IntArray] = {}
    found: dict[tuple[str, int | None], tuple[IntArray, ModelCalled]] = {}
    for event in sorted(events, key=lambda each: each.seq or 0):
        call = event.fact
        if isinstance(call, ModelCalled):
            assert call.context_ids is not None
            assert call.sampled_ids is not None
            assert call.call_id is not None
            place = (event.trajectory_id, call.prefix_length, call.prefix_sha256 or "")
            context = (ends[place] if call.prefix_length else array("i")) + call.context_ids
            tokens = context + call.sampled_ids
            ends[event.trajectory_id, len(tokens), prefix_hash(tokens)] = tokens
            assert (call.call_id, call.choice) not in found
            found[call.call_id, call.choice] = context, call
    return found


async def run(folder: Path, steps: list[tuple[str, int, int]], kinds: list[type[HttpClient]], shared: bool) -> None:
    replies = [Reply(f"answer {number} is that one {number}", chunk_tokens=2) for number in range(200)]
    async with answering(*replies) as engine, running_gateway(folder, [engine.url]) as gateway:
        clients = [
            kind(gateway, base="/s/shared" if shared else f"/s/{number}", streams=bool(number % 2))
            for number, kind in enumerate(kinds)
        ]
        world = World(clients, engine)
        for name, client, choice in steps:
            await world.step(name, world.clients[client % len(world.clients)], choice)
        for client in world.clients:
            await world.turn(client)
        assert gateway.calls_in_flight == 0
        whole = {each["request_id"]: each for each in engine.requests}
        sampled = {each["request_id"]: ids for each, ids in zip(engine.requests, engine.sampled, strict=True)}
    events = recorded_in(folder)
    assert_exact(events)
    found = tokens_of(events)
    for (call_id, _), (context, call) in found.items():
        prompt = array("i", whole[call_id]["token_ids"])
        if call.finish_reason == "abort":
            assert context[: len(prompt)] == prompt
            assert context[len(prompt) :].tolist() == sampled[call_id][: len(context) - len(prompt)]
        else:
            assert context == prompt
            assert call.sampled_ids == array("i", sampled[call_id])
    assert whole.keys() >= {call_id for call_id, _ in found}
    for call_id, request in whole.items():
        choices = sum(each == call_id for each, _ in found)
        assert choices == (request["sampling_params"].get("n") or 1) or (choices == 0 and call_id in world.lost)
    assert len(calls_in(events)) == len(found)


@given(
    steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 4), st.integers(0, 9)), max_size=10),
    kinds=st.lists(
        st.sampled_from([kind for kind in CONVERSATIONS if kind is not RecallingHttp]), min_size=1, max_size=3
    ),
    shared=st.booleans(),
)
@settings(max_examples=25)
def test_everything_that_was_sampled_is_recorded_once_as_it_was(
    steps: list[tuple[str, int, int]], kinds: list[type[HttpClient]], shared: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder), steps, kinds, shared))


def assert_runs(steps: list[tuple[str, int, int]], kinds: list[Any], folder: Path) -> None:
    asyncio.run(run(folder, steps, kinds, True))


def test_a_retry_receives_the_answer_that_a_client_hung_up_on(tmp_path: Path) -> None:
    for number, kind in enumerate(CONVERSATIONS):
        if kind is not RecallingHttp:
            assert_runs([("hang up", 0, 9), ("retry", 1, 0)], [kind, kind], tmp_path / str(number))


def test_a_retry_receives_no_answer_with_another_number_of_choices(tmp_path: Path) -> None:
    assert_runs([("two choices", 1, 0), ("fault", 0, 0)], [MessagesHttp, ChatHttp], tmp_path)


def test_one_of_everything(tmp_path: Path) -> None:
    for number, kind in enumerate(CONVERSATIONS):
        if kind is not RecallingHttp:
            assert_runs([(name, 0, number) for name in dict.fromkeys(STEPS)], [kind, kind], tmp_path / str(number))
