"""Which model serves a call, and what its prompt is; the engine is scripted."""

import asyncio
from array import array
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from headrace.agents.gateway.canonical import Api, BadRequest
from headrace.agents.gateway.engine_choice import EngineLimits
from headrace.agents.gateway.engine_errors import EngineError
from headrace.agents.gateway.engine_pool import EnginePool
from headrace.agents.gateway.engines import Engine
from headrace.agents.gateway.prompts import REFRESH_S, Prompts, UnknownModel
from tests.agents.gateway.scripted_engine import ScriptedEngine, ToyCodec, scripted, until


class Clock:
    """The time in seconds, as the test sets it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def prompts_of(
    *urls: str, clock: Clock | None = None, aliases: Mapping[str, str] | None = None
) -> AsyncIterator[Prompts]:
    limits = EngineLimits(first_rest_s=0.001, longest_rest_s=0.001)
    async with EnginePool([Engine(url) for url in urls], limits) as pool:
        prompts = Prompts(pool, aliases=aliases, clock=clock or Clock())
        yield prompts
        await prompts.close()


async def test_a_model_as_its_engine_has_it() -> None:
    async with scripted() as engine, prompts_of(engine.url) as prompts:
        model = await prompts.model("policy")
        assert (model.name, model.max_tokens) == ("policy", 4096)
        assert engine.codec.decode(model.closing) == "<|im_end|>\n"
        assert await prompts.models() == (model,)
        with pytest.raises(UnknownModel, match="'gpt' is not served: use one of policy"):
            await prompts.model("gpt")


async def test_aliases_stand_for_models() -> None:
    async with scripted() as engine:
        async with prompts_of(engine.url, aliases={"gpt": "policy", "old": "gone"}) as prompts:
            assert (await prompts.model("gpt")).name == "policy"
            with pytest.raises(UnknownModel, match="'other' is not served: use one of policy, gpt, or set an alias"):
                await prompts.model("other")
        async with prompts_of(engine.url, aliases={"*": "policy"}) as prompts:
            assert (await prompts.model("anything")).name == "policy"


@pytest.mark.parametrize("alias", ["old", "*"])
async def test_an_alias_of_a_model_that_is_not_served_is_named_and_not_recommended(alias: str) -> None:
    async with scripted() as engine, prompts_of(engine.url, aliases={alias: "gone"}) as prompts:
        with pytest.raises(UnknownModel) as raised:
            await prompts.model("old")
    assert str(raised.value) == (
        "the model 'old' is not served: gateway.model_aliases makes it 'gone', which no engine serves. Use policy"
    )


async def test_many_calls_ask_the_engines_once() -> None:
    async with scripted() as engine, prompts_of(engine.url) as prompts:
        first, *others = await asyncio.gather(*(prompts.model("policy") for _ in range(20)))
        assert all(each is first for each in others)
        assert len(engine.rendered) == 2


async def test_the_same_model_stays_the_same_when_it_is_looked_at_again() -> None:
    clock = Clock()
    async with scripted() as engine, prompts_of(engine.url, clock=clock) as prompts:
        first = await prompts.model("policy")
        clock.now = REFRESH_S + 1
        await prompts.model("policy")
        await until(lambda: len(engine.rendered) == 4)
        assert await prompts.model("policy") is first


async def test_while_no_engine_answers_what_is_known_counts() -> None:
    clock = Clock()
    async with ScriptedEngine() as engine:
        async with prompts_of(engine.url, clock=clock) as prompts:
            first = await prompts.model("policy")
            await engine.__aexit__(None, None, None)
            for number in range(3):
                clock.now = (number + 1) * (REFRESH_S + 1)
                assert await prompts.model("policy") is first
                await asyncio.sleep(0.05)
        await engine.__aenter__()


async def test_without_any_engine_the_reason_is_raised_until_one_comes() -> None:
    async with ScriptedEngine() as engine:
        url = engine.url
    async with prompts_of(url) as prompts:
        for _ in range(2):
            with pytest.raises(EngineError, match="engine"):
                await prompts.model("policy")
            with pytest.raises(EngineError):
                await prompts.models()


async def test_an_engine_that_hangs_keeps_nobody_waiting() -> None:
    clock, hangs = Clock(), asyncio.Event()
    async with ScriptedEngine() as engine:
        passed = engine._toy

        async def maybe(request: web.Request) -> web.Response:
            if hangs.is_set():
                await asyncio.Event().wait()
            return await passed(request)

        engine._toy = maybe  # type: ignore[method-assign]
        await engine.__aexit__(None, None, None)
        await engine.__aenter__()
        async with prompts_of(engine.url, clock=clock) as prompts:
            first = await prompts.model("policy")
            hangs.set()
            clock.now = REFRESH_S + 1
            async with asyncio.timeout(5):
                for _ in range(3):
                    assert await prompts.model("policy") is first
                    assert await prompts.models() == (first,)


async def test_a_model_that_is_new_is_found_at_once() -> None:
    clock = Clock()
    async with scripted() as engine, prompts_of(engine.url, clock=clock, aliases={"later": "policy"}) as prompts:
        known = await prompts.model("policy")
        prompts._models = {}  # as if the engine had not served it before
        prompts._models["other"] = known
        clock.now = REFRESH_S + 1
        assert (await prompts.model("later")).name == "policy"


@pytest.mark.parametrize(
    ("api", "body"),
    [
        (Api.MESSAGES, {"messages": [{"role": "user", "content": "Look at it."}], "max_tokens": 1}),
        (Api.CHAT, {"messages": [{"role": "user", "content": "Look at it."}]}),
        (Api.COMPLETIONS, {"prompt": "Look at it."}),
    ],
)
async def test_tokens_are_counted(api: Api, body: dict[str, Any]) -> None:
    async with scripted() as engine, prompts_of(engine.url) as prompts:
        counted = await prompts.count(api, {"model": "policy", **body})
        assert isinstance(engine.codec, ToyCodec)
        expected = (
            "Look at it."
            if api is Api.COMPLETIONS
            else "<|im_start|>user\nLook at it.<|im_end|>\n<|im_start|>assistant\n"
        )
        assert counted == len(engine.codec.encode(expected))
        with pytest.raises(UnknownModel):
            await prompts.count(api, {"model": "other", **body})
        with pytest.raises(BadRequest):
            await prompts.count(api, {"model": "policy"})


async def test_a_model_without_a_chat_template_serves_completions() -> None:
    async with ScriptedEngine() as engine:
        passed = engine._toy

        async def maybe(request: web.Request) -> web.Response:
            if "chat" in request.path:
                error = {"message": "no chat template", "type": "BadRequestError", "param": None, "code": 400}
                return web.json_response({"error": error}, status=400)
            return await passed(request)

        engine._toy = maybe  # type: ignore[method-assign]
        await engine.__aexit__(None, None, None)
        await engine.__aenter__()
        async with prompts_of(engine.url) as prompts:
            model = await prompts.model("policy")
            assert (model.template, model.closing) == ("", array("i"))
