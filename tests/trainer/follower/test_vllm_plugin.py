"""The plugin inside a real vLLM, on a model with an LM head of its own (test_follower.py has the tied one)."""

import asyncio
import hashlib
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.schemas.stamp import stamp_of, unverified_stamp
from headrace.trainer.follower.engine import VersionRefused, open_engine, score_all
from headrace.trainer.follower.swap import swap
from tests.trainer.serving import Server, serving
from tests.trainer.tiny import VOCABULARY, forward_logprobs, tiny_policy

pytestmark = pytest.mark.vllm

RUN = "run"

TOKENS = 1000
"""Tokens of an answer: it takes a few seconds, enough for a swap, and fits into the model's length."""

PROMPTS = [list(range(5, 45)), list(range(100, 220))]


@pytest.fixture(scope="module")
def policies(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policies")
    return [tiny_policy(folder / str(seed), seed=seed, tied=False) for seed in range(2)]


@pytest.fixture(scope="module")
def server(policies, tmp_path_factory):
    with serving(policies[0], tmp_path_factory.mktemp("vllm") / "vllm.log") as server:
        yield server


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def differences(found, expected):
    return [abs(a - b) for row, other in zip(found, expected, strict=True) for a, b in zip(row, other, strict=True)]


async def swap_in(server: Server, version: int, policy: Path) -> float:
    async with open_engine(server.url, timeout_s=60) as engine:
        file = policy / "model.safetensors"
        return await swap(engine, RUN, version, file, sha256(file))


async def scores(server: Server) -> list[list[float]]:
    async with open_engine(server.url, timeout_s=60) as engine:
        return await score_all(engine, PROMPTS)


async def test_after_a_swap_the_engine_answers_as_the_new_weights_do(server, policies):
    for version, policy in enumerate(policies):
        await swap_in(server, version, policy)
        expected = [forward_logprobs(policy, prompt) for prompt in PROMPTS]
        assert max(differences(await scores(server), expected)) < 1e-4
        sampled = server.generate(PROMPTS[0], max_tokens=20)
        assert sampled["weight_versions"] == [
            {"version": stamp_of(RUN, version), "start": 0, "end": len(sampled["token_ids"])},
        ]
    other = [forward_logprobs(policies[0], prompt) for prompt in PROMPTS]
    assert max(differences(await scores(server), other)) > 1


def answers_across_a_swap(server: Server, policies: list[Path]) -> list[tuple[int, Any]]:
    """Returns the answers to four requests that began under version 0 and ended under version 1, by their first tokens.

    On a busy machine one may end before all have begun, or before the swap: then all are repeated.
    """
    for _ in range(6):
        asyncio.run(swap_in(server, 0, policies[0]))
        answers: list[tuple[int, Any]] = []
        before = server.sampled_tokens()

        def ask(first: int, answers: list[tuple[int, Any]] = answers) -> None:
            answers.append((first, server.generate([first, 7, 8], max_tokens=TOKENS, ignore_eos=True)))

        askers = [threading.Thread(target=ask, args=(first,)) for first in (11, 12, 13, 14)]
        for asker in askers:
            asker.start()
        while not answers and (server.running() < len(askers) or server.sampled_tokens() < before + 100):
            time.sleep(0.05)
        asyncio.run(swap_in(server, 1, policies[1]))
        for asker in askers:
            asker.join()
        if all(len(answer["weight_versions"]) > 1 for _, answer in answers):
            return answers
    pytest.fail("six times a request was answered before the weights were swapped: the machine is too busy")


def test_requests_in_flight_continue_with_the_new_weights_and_name_both_versions(server, policies):
    answers = answers_across_a_swap(server, policies)
    assert len(answers) == 4
    for first, answer in answers:
        spans = answer["weight_versions"]
        assert [span["version"] for span in spans] == [stamp_of(RUN, 0), stamp_of(RUN, 1)]
        assert [spans[0]["start"], spans[1]["end"]] == [0, TOKENS]
        assert spans[0]["end"] == spans[1]["start"]
        sequence = [first, 7, 8, *answer["token_ids"]]
        recorded = [entry["logprob"] for entry in answer["logprobs"]["content"]]
        for span, policy in zip(spans, policies, strict=True):
            # Each token was sampled by exactly the weights that it is stamped with: no old keys and values.
            expected = forward_logprobs(policy, sequence)[2:][span["start"] : span["end"]]
            assert max(differences([recorded[span["start"] : span["end"]]], [expected])) < 1e-4


async def test_a_prefix_that_the_old_weights_computed_is_not_used_again(server, policies):
    prompt = [(7 * index) % VOCABULARY for index in range(200)]
    await swap_in(server, 0, policies[0])
    server.generate(prompt, max_tokens=1)
    await swap_in(server, 1, policies[1])
    answer = server.generate(prompt, max_tokens=1)
    expected = forward_logprobs(policies[1], [*prompt, *answer["token_ids"]])[-1]
    assert abs(answer["logprobs"]["content"][0]["logprob"] - expected) < 1e-4


@pytest.mark.parametrize("spoil", ["bytes", "format", "names", "outside"])
async def test_a_refused_file_leaves_an_engine_that_serves_and_names_no_version(server, policies, tmp_path, spoil):
    await swap_in(server, 0, policies[0])
    good = (policies[1] / "model.safetensors").read_bytes()
    file = tmp_path / "model.safetensors"
    file.write_bytes(good)
    digest = sha256(file)
    if spoil == "bytes":
        file.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    elif spoil == "format":
        file.write_bytes(b"not safetensors at all")
        digest = sha256(file)
    elif spoil == "names":
        file.write_bytes(good.replace(b"model.layers.0.", b"model.layers.9."))
        digest = sha256(file)
    async with open_engine(server.url, timeout_s=60) as engine:
        if spoil == "outside":
            outside = tmp_path / "elsewhere"
            outside.mkdir()
            (outside / "link.safetensors").symlink_to(file)
            file = outside / "link.safetensors"
        with pytest.raises(VersionRefused):
            await swap(engine, RUN, 1, file, digest)
        assert not await engine.is_paused()
        assert await engine.served() == unverified_stamp(RUN)
    assert len(server.generate([5, 6], max_tokens=5, ignore_eos=True)["token_ids"]) == 5
    # After any refusal, the next good version is loaded completely.
    await swap_in(server, 1, policies[1])
    expected = [forward_logprobs(policies[1], prompt) for prompt in PROMPTS]
    assert max(differences(await scores(server), expected)) < 1e-4


async def test_an_open_update_is_closed_by_the_next_swap(server, policies):
    async with open_engine(server.url, timeout_s=60) as engine:
        await engine.allow_folder(policies[1])
        await engine.pause()
        await engine.start_update()
        await engine.load(policies[1] / "model.safetensors", sha256(policies[1] / "model.safetensors"))
    await swap_in(server, 0, policies[0])
    expected = [forward_logprobs(policies[0], prompt) for prompt in PROMPTS]
    assert max(differences(await scores(server), expected)) < 1e-4


def test_the_plugin_needs_neither_kafka_nor_faust():
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['aiokafka', 'faust', 'headrace.schemas.kafka.clients'])); "
        "import headrace.trainer.follower.weight_transfer; "
        "import headrace.trainer.follower.vllm_plugin as p; p.register(); p.register()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
