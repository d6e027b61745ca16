"""Stored responses, compaction, models and the counting of tokens, over HTTP."""

import json
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from openai.types.responses import CompactedResponse

from headrace.schemas.events import ContextSummarized, ModelCalled, TrajectoryStarted
from tests.agents.gateway.http_clients import MessagesHttp, RecallingHttp, ResponsesHttp
from tests.agents.gateway.running import assert_exact, calls_in, recorded_in, running_gateway
from tests.agents.gateway.scripted_engine import answering

RETRY = {"x-stainless-retry-count": "1"}
SUMMARY = "The user asked twice, and was told One and Two; nothing is left to be done about the file."


@pytest.mark.parametrize("kind", [ResponsesHttp, RecallingHttp])
async def test_a_conversation_goes_on_after_its_compaction(tmp_path: Path, kind: type[ResponsesHttp]) -> None:
    async with (
        answering("One.", "Two.", SUMMARY, "Three.", "Four.") as engine,
        running_gateway(tmp_path, [engine.url]) as gateway,
    ):
        client = kind(gateway)
        await client.turn("a")
        await client.turn("b")
        asked = client.body()
        status, answer = await gateway.post("/s/s1/v1/responses/compact", asked)
        assert status == 200, answer
        assert CompactedResponse.construct(**answer).usage.output_tokens == len(engine.sampled[2])
        *users, item = answer["output"]
        texts = [each["content"][0]["text"] for each in users]
        assert texts == ["a", "b"]
        assert item["type"] == "compaction"
        assert SUMMARY not in json.dumps(answer)
        again = await gateway.post("/s/s1/v1/responses/compact", asked, headers=RETRY)
        assert again[0] == 200
        assert again[1]["output"] == answer["output"]
        assert again[1]["object"] == "response.compaction"
        assert len(engine.requests) == 3
        client.fields.pop("previous_response_id", None)
        client.transcript = list(answer["output"])
        assert await client.turn("c") == "Three."
        assert gateway.headers["x-headrace-outcome"] == "compaction"
        assert SUMMARY in engine.codec.decode(engine.requests[3]["token_ids"])
        assert await client.turn("d") == "Four."
        assert gateway.headers["x-headrace-outcome"] == "continuation"
        assert gateway.calls_in_flight == 0
    events = recorded_in(tmp_path)
    assert [type(each.fact) for each in events] == [
        TrajectoryStarted,
        *[ModelCalled] * 3,
        ContextSummarized,
        *[ModelCalled] * 2,
    ]
    assert assert_exact(events) == 2
    (summarized,) = (each.fact for each in events if isinstance(each.fact, ContextSummarized))
    assert summarized.summary == SUMMARY
    assert summarized.tokens_before == len(engine.requests[2]["token_ids"])
    assert summarized.tokens_after == len(engine.requests[3]["token_ids"])
    third = calls_in(events)[2]
    assert third.sampled_ids is not None
    assert third.sampled_ids.tolist() == engine.sampled[2]


async def test_a_forged_compaction_is_refused(tmp_path: Path) -> None:
    async with answering("One.") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        item = {"type": "compaction", "encrypted_content": "enc_" + "A" * 35}
        status, answer = await gateway.post("/v1/responses", {"model": "policy", "input": [item]})
        assert (status, answer["error"]["param"]) == (400, "input[0].encrypted_content")
        for wrong in ({}, {"input": 7}, {"input": [7]}):
            status, answer = await gateway.post("/v1/responses/compact", {"model": "policy", **wrong})
            assert status == (400 if wrong else 200), answer


async def test_stored_responses(tmp_path: Path) -> None:
    async with (
        answering("One.", "Two.", "Three.", "Four.") as engine,
        running_gateway(tmp_path, [engine.url]) as gateway,
    ):
        for streams in (False, True):
            client = ResponsesHttp(gateway, streams=streams)
            await client.turn("a")
            response = client.response
            found = await gateway.get(f"/v1/responses/{response['id']}")
            assert found == (200, response)
            body = {"model": "policy", "input": "b", "previous_response_id": response["id"]}
            status, data = await gateway.send("DELETE", f"/v1/responses/{response['id']}")
            assert (status, json.loads(data)["deleted"]) == (200, True)
            assert (await gateway.get(f"/v1/responses/{response['id']}"))[0] == 404
            assert (await gateway.send("DELETE", f"/v1/responses/{response['id']}"))[0] == 404
            status, answer = await gateway.post("/v1/responses", body)
            assert (status, answer["error"]["param"]) == (400, "previous_response_id")
            client = ResponsesHttp(gateway, streams=streams, fields={"store": False})
            await client.turn("c")
            assert client.response["store"] is False
            assert (await gateway.get(f"/v1/responses/{client.response['id']}"))[0] == 404
        status, answer = await gateway.post("/v1/responses", body | {"previous_response_id": "resp_x"})
        assert (status, answer["error"]["param"]) == (400, "previous_response_id")


async def test_a_deleted_response_stays_deleted_when_its_answer_is_sent_again(tmp_path: Path) -> None:
    async with answering("One.") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        client = ResponsesHttp(gateway).say("a")
        await client.ask()
        path = f"/v1/responses/{client.response['id']}"
        assert (await gateway.send("DELETE", path))[0] == 200
        await client.ask(headers=RETRY)
        assert (await gateway.get(path))[0] == 404


async def test_models_in_both_forms(tmp_path: Path) -> None:
    async with (
        answering() as engine,
        running_gateway(tmp_path, [engine.url], model_aliases={"gpt": "policy"}) as gateway,
    ):
        async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="k") as client:
            assert [model.id async for model in client.models.list()] == ["policy"]
            assert (await client.models.retrieve("policy")).id == "policy"
            with pytest.raises(openai.NotFoundError, match="not served"):
                await client.models.retrieve("other/model")
        async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key="k") as client:
            assert [model.id async for model in client.models.list()] == ["policy"]
            assert (await client.models.retrieve("policy")).type == "model"
            with pytest.raises(anthropic.NotFoundError, match="not served"):
                await client.models.retrieve("other/model")


@pytest.mark.parametrize(("aliases", "served"), [({"gpt-4o": "policy"}, "gpt-4o"), ({"*": "policy"}, "anything/else")])
async def test_aliases_of_models(tmp_path: Path, aliases: dict[str, str], served: str) -> None:
    async with (
        answering("One.", "Two.") as engine,
        running_gateway(tmp_path, [engine.url], model_aliases=aliases) as gateway,
    ):
        client = ResponsesHttp(gateway, fields={"model": served})
        await client.turn("a")
        assert client.response["model"] == served
        await client.turn("b")
        status, _ = await gateway.post("/v1/responses", {"model": "other", "input": "x"})
        assert status == (200 if "*" in aliases else 404)
        assert {each["model"] for each in engine.requests} == {"policy"}
    events = [each for each in recorded_in(tmp_path) if getattr(each.fact, "model", served) == served]
    assert assert_exact(events) == 1


async def test_tokens_are_counted_without_a_trace(tmp_path: Path) -> None:
    async with answering("One.") as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key="k") as client:
            message: Any = {"role": "user", "content": "Look at the file."}
            counted = await client.messages.count_tokens(model="policy", messages=[message])
            with pytest.raises(anthropic.NotFoundError):
                await client.messages.count_tokens(model="other", messages=[message])
            with pytest.raises(anthropic.BadRequestError):
                await client.messages.count_tokens(model="policy", messages=[])
        assert gateway.sessions == 0
        await MessagesHttp(gateway).say("Look at the file.").ask()
        assert counted.input_tokens == len(engine.requests[0]["token_ids"])


async def test_health_and_head(tmp_path: Path) -> None:
    async with answering() as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        assert await gateway.get("/health") == (200, {"status": "ok"})
        for path in ("/health", "/v1/models"):
            assert await gateway.send("HEAD", path) == (200, b"")


@pytest.mark.parametrize("streams", [False, True])
async def test_the_official_clients_hold_conversations(tmp_path: Path, streams: bool) -> None:
    texts = [f"Answer {number}." for number in range(6)]
    async with answering(*texts) as engine, running_gateway(tmp_path, [engine.url]) as gateway:
        async with openai.AsyncOpenAI(base_url=f"{gateway.url}/s/o/v1", api_key="k") as client:
            messages: list[Any] = []
            for expected in texts[:3]:
                messages.append({"role": "user", "content": expected + "?"})
                if streams:
                    async with client.chat.completions.stream(model="policy", messages=messages) as stream:
                        message = (await stream.get_final_completion()).choices[0].message
                else:
                    message = (
                        (await client.chat.completions.create(model="policy", messages=messages)).choices[0].message
                    )
                assert message.content == expected
                messages.append(message.model_dump(exclude_none=True))
        async with anthropic.AsyncAnthropic(base_url=f"{gateway.url}/s/a", api_key="k") as other:
            turns: list[Any] = []
            for expected in texts[3:]:
                turns.append({"role": "user", "content": expected + "?"})
                if streams:
                    async with other.messages.stream(model="policy", max_tokens=99, messages=turns) as events:
                        answer = await events.get_final_message()
                else:
                    answer = await other.messages.create(model="policy", max_tokens=99, messages=turns)
                assert answer.content[0].to_dict()["text"] == expected
                turns.append({"role": "assistant", "content": answer.to_dict()["content"]})
    events = recorded_in(tmp_path)
    assert len(calls_in(events)) == 6
    assert assert_exact(events) == 2
