"""The policy client: required content of an answer, retries, and the real engine."""

import asyncio
import json
import math
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from headrace.agents.policy import PolicyClient, PolicyError, parse_completion
from headrace.agents.sampled_tokens import GENERATE
from headrace.schemas.events import Sampling, VersionSpan
from tests.local_server import serving

NO_LOGPROBS = [7.25, math.nan, -math.inf, math.inf]
"""Invalid log-probabilities: logits (vLLM's ``--logprobs-mode raw_logits``) and results of broken weights."""


def answer(**changes: Any) -> bytes:
    """An answer of vLLM with three tokens of two versions."""
    choice = {
        "token_ids": [5, 6, 2],
        "logprobs": {"content": [{"token_id": i, "logprob": -0.5} for i in (5, 6, 2)]},
        "weight_versions": [{"version": "3", "start": 0, "end": 2}, {"version": "4", "start": 2, "end": 3}],
        "finish_reason": "stop",
    }
    return json.dumps({"choices": [choice | changes]}).encode()


def test_ids_logprobs_and_versions_are_parsed_together() -> None:
    completion = parse_completion(answer(), 0.5)
    assert completion.token_ids == array("i", [5, 6, 2])
    assert completion.logprobs == array("f", [-0.5] * 3)
    spans = (VersionSpan(version=3, start=0, end=2), VersionSpan(version=4, start=2, end=3))
    assert (completion.version_spans, completion.finish_reason, completion.latency_s) == (spans, "stop", 0.5)


def test_a_version_that_is_not_reported_is_unknown() -> None:
    unknown = (VersionSpan(version=None, start=0, end=3),)
    assert parse_completion(answer(weight_versions=None), 0).version_spans == unknown
    named = [{"version": "default", "start": 0, "end": 3}]
    assert parse_completion(answer(weight_versions=named), 0).version_spans == unknown


def test_spans_name_the_run_whose_version_the_engine_served() -> None:
    stamps = [{"version": "a/3", "start": 0, "end": 1}, {"version": "b/3", "start": 1, "end": 2}]
    spans = parse_completion(answer(weight_versions=[*stamps, {"version": "4", "start": 2, "end": 3}]), 0).version_spans
    assert [(span.version, span.run) for span in spans] == [(3, "a"), (3, "b"), (4, None)]


@pytest.mark.parametrize(
    "changes",
    [
        {"logprobs": None},
        {"logprobs": {"content": [{"token_id": i, "logprob": -0.5} for i in (6, 2)]}},
        {"logprobs": {"content": [{"token_id": i, "logprob": -0.5} for i in (6, 5, 2)]}},
        {"token_ids": "abc"},
        {"weight_versions": [{"version": "1", "start": -1, "end": 3}]},
        {"weight_versions": [{"version": "1", "start": 0, "end": 2}]},
        {"weight_versions": [{"version": "1", "start": 0, "end": 2}, {"version": "2", "start": 1, "end": 3}]},
        {"weight_versions": [{"version": "1", "start": 0, "end": 3}, {"version": "2", "start": 3, "end": 3}]},
        *({"logprobs": {"content": [{"token_id": i, "logprob": each} for i in (5, 6, 2)]}} for each in NO_LOGPROBS),
    ],
)
def test_an_answer_that_could_not_be_trained_on_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(PolicyError):
        parse_completion(answer(**changes), 0)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"choices": []}', b'{"choices": [7]}'])
def test_an_answer_of_another_form_is_refused(body: bytes) -> None:
    with pytest.raises(PolicyError, match="cannot be read"):
        parse_completion(body, 0)


def test_an_aborted_answer_without_tokens_is_an_answer() -> None:
    empty = parse_completion(
        answer(token_ids=[], logprobs={"content": []}, weight_versions=[], finish_reason="abort"), 0
    )
    assert (len(empty.token_ids), empty.version_spans, empty.finish_reason) == (0, (), "abort")


HANG_UP = 0
"""In a script: close the connection without an answer."""


@asynccontextmanager
async def engine(
    *script: int, logprob: float = -0.5, logprobs: Sequence[float] = (), **settings: Any
) -> AsyncIterator[tuple[PolicyClient, list[Any]]]:
    """A client and its requests to a server that answers with the statuses of ``script`` and then succeeds.

    ``logprobs``: of the first answer, and of all others; by default ``logprob``.
    """
    requests: list[Any] = []
    statuses = list(script)
    reported = [*logprobs] or [logprob]

    async def handle(request: web.Request) -> web.Response:
        requests.append(await request.json())
        status = statuses.pop(0) if statuses else 200
        if status == HANG_UP:
            assert request.transport is not None
            request.transport.abort()
        logprob = reported.pop(0) if len(reported) > 1 else reported[0]
        content = {"logprobs": {"content": [{"token_id": i, "logprob": logprob} for i in (5, 6, 2)]}}
        return web.Response(status=status or 200, body=answer(**content) if status == 200 else b"no")

    app = web.Application()
    app.router.add_post(GENERATE, handle)
    async with serving(app) as url, PolicyClient(f"{url}/", **settings) as client:
        yield client, requests


async def test_the_request_contains_every_sampling_parameter() -> None:
    async with engine() as (policy, requests):
        await policy.generate(array("i", [1, 2]), Sampling(max_tokens=4, temperature=0.0, top_k=-1), stop_token_ids=[9])
    assert requests == [
        {
            "model": "policy",
            "token_ids": [1, 2],
            "sampling_params": {
                "temperature": 0.0,
                "top_p": 1.0,
                "top_k": 0,
                "min_p": 0.0,
                "presence_penalty": 0.0,
                "frequency_penalty": 0.0,
                "repetition_penalty": 1.0,
                "min_tokens": 0,
                "seed": None,
                "stop_token_ids": [9],
                "logprobs": 0,
                "detokenize": False,
                "max_tokens": 4,
            },
        }
    ]


@pytest.mark.parametrize(("logprob", "mode"), [(0.0, "processed"), (-0.5, "raw"), (-1e-5, "raw")])
async def test_the_kind_of_log_probabilities_is_requested_once_and_only_if_it_matters(
    logprob: float, mode: str
) -> None:
    async with engine(logprob=logprob) as (policy, requests):
        plain = await policy.generate([1, 2], Sampling())
        assert (plain.sampling, len(requests)) == (Sampling(temperature=1.0, logprobs="processed"), 1)
        warm, cold = [await policy.generate([1, 2], Sampling(temperature=t)) for t in (1.3, 0.6)]
    assert (warm.sampling, cold.sampling) == tuple(Sampling(temperature=t, logprobs=mode) for t in (1.3, 0.6))
    assert [each["sampling_params"]["temperature"] for each in requests] == [1.0, 1.0, 1.3, 0.6]
    assert [each["sampling_params"].get("allowed_token_ids") for each in requests] == [None, [1], None, None]
    assert warm.sampling.is_unknown == (mode == "raw")


@pytest.mark.parametrize("failure", [HANG_UP, 503])
async def test_the_kind_of_log_probabilities_is_that_of_the_engine_that_sampled(failure: int) -> None:
    async with engine(200, failure, logprobs=[0.0, -0.5]) as (policy, _):
        completion = await policy.generate([1, 2], Sampling(temperature=0.7))
    assert completion.sampling is not None
    assert completion.sampling.logprobs == "raw"


async def test_unsupported_sampling_parameters_are_refused() -> None:
    async with engine() as (policy, _):
        for sampling in (Sampling(altered_by=["logit_bias"]), Sampling(temperature=1.0, logit_bias={"1": 5})):
            with pytest.raises(ValueError, match="does not support the sampling parameters logit_bias"):
                await policy.generate([1], sampling)


async def test_requests_are_retried_while_an_engine_restarts() -> None:
    async with engine(HANG_UP, 503, 429) as (policy, requests):
        completion = await policy.generate([1], Sampling())
    assert len(completion.token_ids) == 3
    assert len(requests) == 4


async def test_an_engine_that_stays_unavailable_is_an_error_after_a_while() -> None:
    async with PolicyClient("http://127.0.0.1:9", retry_for_s=0.3) as policy:
        with pytest.raises(PolicyError, match=r"no answer from the policy at http://127\.0\.0\.1:9"):
            await policy.generate([1], Sampling())


@pytest.mark.parametrize(("status", "message"), [(400, "refused"), (404, "--enable-scale-out")])
async def test_a_refusal_is_not_retried(status: int, message: str) -> None:
    async with engine(status) as (policy, requests):
        with pytest.raises(PolicyError, match=message):
            await policy.generate([1], Sampling())
    assert len(requests) == 1


@pytest.mark.vllm
class TestRealEngine:
    """vLLM with headrace's plugin, on the base model."""

    async def test_it_samples_what_was_asked_for(self, vllm: Any) -> None:
        async with PolicyClient(vllm.url) as policy:
            completion = await policy.generate([1, 5, 9, 7], Sampling(max_tokens=12, seed=1))
        assert 1 <= len(completion.token_ids) <= 12
        assert len(completion.logprobs) == len(completion.token_ids)
        assert all(logprob <= 0 for logprob in completion.logprobs)
        assert completion.version_spans[-1].end == len(completion.token_ids)
        assert completion.finish_reason in ("stop", "length")

    async def test_a_stop_token_is_part_of_what_was_sampled(self, vllm: Any) -> None:
        async with PolicyClient(vllm.url) as policy:
            free = await policy.generate([1, 5, 9, 7], Sampling(max_tokens=8, temperature=0))
            stop = free.token_ids[2] if len(free.token_ids) > 2 else free.token_ids[-1]
            stopped = await policy.generate([1, 5, 9, 7], Sampling(max_tokens=8, temperature=0), stop_token_ids=[stop])
        assert stopped.finish_reason == "stop"
        assert stopped.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]

    async def test_greedy_sampling_gives_the_same_twice_and_a_seed_does_too(self, vllm: Any) -> None:
        async with PolicyClient(vllm.url) as policy:
            for sampling in (Sampling(max_tokens=8, temperature=0), Sampling(max_tokens=8, seed=7)):
                one, two = [await policy.generate([1, 5, 9, 7], sampling) for _ in range(2)]
                assert one.token_ids == two.token_ids

    async def test_logprobs_are_those_of_the_model_at_temperature_one(self, vllm: Any) -> None:
        """Compared with a plain forward pass of the same weights."""
        torch = pytest.importorskip("torch")
        transformers = pytest.importorskip("transformers")
        prompt = [1, 5, 9, 7, 3]
        async with PolicyClient(vllm.url) as policy:
            completion = await policy.generate(prompt, Sampling(max_tokens=16, seed=3))
        model = transformers.AutoModelForCausalLM.from_pretrained(vllm.model_dir, dtype=torch.float32)
        with torch.no_grad():
            logits = model(torch.tensor([prompt + list(completion.token_ids)])).logits[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1).gather(-1, torch.tensor(list(completion.token_ids))[:, None])[:, 0]
        assert completion.logprobs.tolist() == pytest.approx(expected.tolist(), abs=1e-3)

    @pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
    async def test_the_trainer_scores_what_was_sampled_at_its_temperature(self, vllm: Any, temperature: float) -> None:
        torch = pytest.importorskip("torch")
        from headrace.trainer.batches.packing import pack
        from headrace.trainer.model.load import load_model
        from headrace.trainer.model.logprobs import token_logprobs

        prompts = [[1, 5, 9, 7, start] for start in range(20, 36)]
        async with PolicyClient(vllm.url) as policy:
            asked = [policy.generate(prompt, Sampling(max_tokens=24, temperature=temperature)) for prompt in prompts]
            completions = await asyncio.gather(*asked)
        assert {each.sampling.logprobs for each in completions if each.sampling} == {"processed"}
        sequences = [
            ([*prompt, *each.token_ids], [0] * len(prompt) + [1] * len(each.token_ids))
            for prompt, each in zip(prompts, completions, strict=True)
        ]
        recorded = torch.tensor([value for each in completions for value in each.logprobs])
        model = load_model(vllm.model_dir)

        def ratios(at: float) -> Any:
            with torch.no_grad():
                return (token_logprobs(model, pack(sequences, [at] * len(recorded))).logprobs - recorded).exp()

        assert (ratios(temperature) - 1).abs().max() < 1e-3
        assert temperature == 1 or (ratios(1.0) - 1).abs().max() > 0.1

    async def test_a_context_that_is_too_long_is_refused_in_words(self, vllm: Any) -> None:
        async with PolicyClient(vllm.url) as policy:
            with pytest.raises(PolicyError, match="refused"):
                await policy.generate([1] * 5_000, Sampling(max_tokens=8))

    async def test_a_model_that_is_not_served_is_named(self, vllm: Any) -> None:
        async with PolicyClient(vllm.url, model="other") as policy:
            with pytest.raises(PolicyError, match="'other'"):
                await policy.generate([1], Sampling(max_tokens=8))
