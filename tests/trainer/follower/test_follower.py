"""The follower between a real broker and a real vLLM, on a model whose head is tied to its embeddings."""

import asyncio
import math
import os
import shutil
import signal
import subprocess
import sys
from array import array
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from safetensors.torch import load_file, save_file

from headrace.agents.policy import PolicyClient
from headrace.schemas.events import Sampling
from headrace.schemas.ids import uuid7
from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.reading import read_to_end
from headrace.schemas.kafka.sending import send
from headrace.schemas.objects.store import ObjectStore, file_sha256
from headrace.schemas.records.alert import Alert, Severity
from headrace.schemas.records.weights import Canary, Weights
from headrace.schemas.topics import ALERTS, APPLIED, WEIGHTS
from headrace.schemas.wire import decode, record_message
from headrace.trainer.follower.alerts import CANARY_MISMATCH, ENGINE_TAKEN, WEIGHTS_UNTRUSTED
from headrace.trainer.follower.config import FollowerConfig
from headrace.trainer.follower.follower import announcer, run_follower
from headrace.trainer.loop import TrainerConfig, run_trainer
from headrace.trainer.weights.canary import make_prompts
from headrace.trainer.weights.publish import make_manifest, make_pointer, upload
from headrace.trainer.weights.signing import SigningKey, load_or_create_key
from tests.trainer.builders import UNCHECKED
from tests.trainer.feed import feed_groups
from tests.trainer.serving import Server, serving
from tests.trainer.tiny import VOCABULARY, forward_logprobs, tiny_policy

pytestmark = [pytest.mark.kafka, pytest.mark.vllm]

KEY = SigningKey(Ed25519PrivateKey.generate())

PROMPTS = make_prompts(VOCABULARY, seed=1)

FORGETFUL_PLUGIN = """
from pathlib import Path
from headrace.trainer.follower import weight_transfer

def register():
    remake, forget = weight_transfer.remake_lm_heads, Path(__file__).with_name("forget")
    weight_transfer.remake_lm_heads = lambda model: None if forget.exists() else remake(model)
"""

DIES_IN_THE_SWAP = """
import asyncio, os, signal, sys
from pathlib import Path
from headrace.trainer.follower.engine import VllmEngine
from headrace.trainer.follower.config import FollowerConfig
from headrace.trainer.follower.follower import run_follower

async def die(self, *arguments):
    os.kill(os.getpid(), signal.SIGKILL)

VllmEngine.finish_update = die
bootstrap, run, url, cache, store, key = sys.argv[1:]
config = FollowerConfig(bootstrap, run, url, "engine", Path(cache), store, (key,))
asyncio.run(run_follower(config, stop=asyncio.Event(), ready=lambda: None))
"""


@pytest.fixture(scope="module")
def policies(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policies")
    return [tiny_policy(folder / str(seed), seed=seed) for seed in range(3)]


@pytest.fixture(scope="module")
def plugins(tmp_path_factory):
    """A plugin that does not update the LM head while the file ``forget`` is next to it, like vLLM itself."""
    folder = tmp_path_factory.mktemp("plugins")
    (folder / "forgetful.py").write_text(FORGETFUL_PLUGIN)
    installed = folder / "forgetful-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: forgetful\nVersion: 1\n")
    (installed / "entry_points.txt").write_text("[vllm.general_plugins]\nforgetful = forgetful:register\n")
    return folder


@pytest.fixture(scope="module")
def server(policies, plugins, tmp_path_factory):
    with serving(policies[0], tmp_path_factory.mktemp("vllm") / "vllm.log", plugins) as server:
        yield server


@dataclass
class Scene:
    """One training run on the module's broker and engine."""

    bootstrap: str
    run: str
    server: Server
    folder: Path

    @property
    def config(self) -> FollowerConfig:
        return FollowerConfig(
            self.bootstrap, self.run, self.server.url, "engine", self.folder / "cache", self.store_url, (KEY.public,)
        )

    @property
    def store_url(self) -> str:
        return f"file://{self.folder}/objects"

    async def publish(self, version: int, file: Path, truth: Path) -> None:
        """Publish ``file``, with canaries computed from the model directory ``truth``."""
        store = ObjectStore(self.store_url)
        canaries = [
            Canary(token_ids=prompt, logprobs=array("f", forward_logprobs(truth, prompt))) for prompt in PROMPTS
        ]
        parent = version - 1 if version else None
        manifest = make_manifest(file, run=self.run, version=version, parent=parent, tensors=1, canaries=canaries)
        await upload(store, manifest, file)
        await self.send(make_pointer(store, manifest, step=version, key=KEY))

    async def send(self, pointer: Weights) -> None:
        """Write ``pointer`` to the log, as any client with write access can."""
        message = record_message(pointer, id=uuid7(), key=self.run, source="t", time_ms=0, subject="t")
        async with open_producer(self.bootstrap) as producer:
            await (await send(producer, WEIGHTS, message))

    async def records(self, topic):
        found = [decode(record.headers, record.value)[1] async for record in read_to_end(self.bootstrap, topic)]
        return [record for record in found if record.run == self.run]

    async def applied(self) -> list[int]:
        return [record.version for record in await self.records(APPLIED)]

    async def until_applied(self, *versions: int) -> None:
        async with asyncio.timeout(60):
            while True:
                if await self.applied() == list(versions):
                    return
                await asyncio.sleep(0.2)

    def engine_says(self, path: str):
        return httpx.get(self.server.url + path, timeout=120).json()


@pytest.fixture
def scene(kafka, server, request, tmp_path):
    server.stamp("default")  # as after a restart: the previous test used another run
    return Scene(kafka, request.node.name, server, tmp_path)


@asynccontextmanager
async def following(config: FollowerConfig):
    stop, ready = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(run_follower(config, stop=stop, ready=ready.set))
    try:
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait({task, waiting}, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        assert ready.is_set(), task
        yield
    finally:
        stop.set()
        await asyncio.wait_for(task, 60)


def weights(policy: Path) -> Path:
    return policy / "model.safetensors"


async def served_as(server: Server, policy: Path) -> bool:
    """Whether a continuation that the engine samples has the log-probabilities of ``policy``."""
    prompt = [9, 8, 7]
    answer = await asyncio.to_thread(server.generate, prompt, max_tokens=20, ignore_eos=True)
    expected = forward_logprobs(policy, [*prompt, *answer["token_ids"]])[2:]
    recorded = [entry["logprob"] for entry in answer["logprobs"]["content"]]
    return max(abs(a - b) for a, b in zip(recorded, expected, strict=True)) < 1e-4


async def test_each_new_version_is_served_compared_and_acknowledged(scene, policies):
    await scene.publish(0, weights(policies[0]), policies[0])
    async with following(scene.config):
        await scene.until_applied(0)
        await scene.publish(1, weights(policies[1]), policies[1])
        await scene.until_applied(0, 1)
        assert await served_as(scene.server, policies[1])
    assert scene.engine_says("/weight_info") == {"weight_version": f"{scene.run}/1"}
    assert await scene.records(ALERTS) == []
    for applied in await scene.records(APPLIED):
        assert applied.canary_max_error < 1e-4
        assert applied.swap_s > 0


async def test_what_the_trainer_trains_the_engine_serves(scene, policies, tmp_path):
    await feed_groups(scene.bootstrap, list("abcd"), run=scene.run)
    places = {"checkpoint_dir": tmp_path / "checkpoints", "store_url": scene.store_url, "signing_key": tmp_path / "key"}
    settings = TrainerConfig(
        scene.bootstrap,
        scene.run,
        policies[0],
        **places,
        groups_per_step=2,
        max_staleness=9,
        threads=1,
        steps=2,
        plausibility=UNCHECKED,
    )
    stop = asyncio.Event()
    trusted = replace(scene.config, trust=(load_or_create_key(tmp_path / "key").public,))
    training = asyncio.create_task(run_trainer(settings, stop=stop, ready=lambda: None))
    async with following(trusted):
        async with asyncio.timeout(60):
            while True:
                if 2 in await scene.applied():
                    break
                await asyncio.sleep(0.2)
        trained = tmp_path / "trained"
        shutil.copytree(policies[0], trained)
        shutil.copyfile(tmp_path / f"objects/weights/{scene.run}/00000002/model.safetensors", weights(trained))
        assert await served_as(scene.server, trained)
        assert not await served_as(scene.server, policies[0])
    stop.set()
    await asyncio.wait_for(training, 60)
    # The trainer does warn: the log-probabilities in the test's groups are invented.
    assert [alert for alert in await scene.records(ALERTS) if alert.source != "trainer"] == []


async def test_weights_silently_omitted_by_a_swap_are_detected_and_the_last_good_version_is_restored(
    scene, policies, tmp_path
):
    # vLLM silently keeps the old tensors that a checkpoint lacks.
    partial = tmp_path / "partial.safetensors"
    save_file({name: t for name, t in load_file(weights(policies[1])).items() if "layers.2.mlp" not in name}, partial)
    await scene.publish(0, weights(policies[0]), policies[0])
    async with following(scene.config):
        await scene.until_applied(0)
        await scene.publish(1, partial, policies[1])
        await scene.until_applied(0, 0)
        assert await served_as(scene.server, policies[0])
        (alert,) = await scene.records(ALERTS)
        assert alert.kind == CANARY_MISMATCH
        assert alert.details["version"] == 1
        assert not math.isclose(0, alert.details["canary_max_error"], abs_tol=0.02)
    async with following(scene.config):
        await asyncio.sleep(1)  # A restarted follower does not try the bad version again …
        await scene.publish(2, weights(policies[2]), policies[2])
        await scene.until_applied(0, 0, 2)  # … and is not blocked by it.
    assert len(await scene.records(ALERTS)) == 1


async def test_a_head_that_silently_keeps_the_old_weights_is_detected(scene, policies, plugins):
    await scene.publish(0, weights(policies[0]), policies[0])
    async with following(scene.config):
        await scene.until_applied(0)
        (plugins / "forget").touch()
        await scene.publish(1, weights(policies[1]), policies[1])
        async with asyncio.timeout(60):
            while True:
                if alerts := await scene.records(ALERTS):
                    break
                await asyncio.sleep(0.1)
        (plugins / "forget").unlink()
        await scene.publish(2, weights(policies[2]), policies[2])
        await scene.until_applied(0, 0, 2)
    assert [(alert.kind, alert.details["version"]) for alert in alerts] == [(CANARY_MISMATCH, 1)]
    assert await served_as(scene.server, policies[2])


async def test_after_a_kill_between_pause_and_resume_the_next_follower_recovers_the_engine(scene, policies):
    await scene.publish(5, weights(policies[1]), policies[1])
    config = scene.config
    arguments = [scene.bootstrap, scene.run, scene.server.url, str(config.cache_dir), config.store_url, *config.trust]
    killed = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", DIES_IN_THE_SWAP, *arguments], timeout=120, env=os.environ
    )
    assert killed.returncode == -signal.SIGKILL
    assert scene.engine_says("/is_paused") == {"is_paused": True}
    waiting = asyncio.create_task(asyncio.to_thread(scene.server.generate, [5, 6], max_tokens=5))
    async with following(scene.config):
        await scene.until_applied(5)
    assert (await waiting)["token_ids"]
    assert scene.engine_says("/is_paused") == {"is_paused": False}
    assert await served_as(scene.server, policies[1])


async def test_an_engine_that_was_restarted_is_given_its_version_again(scene, policies):
    await scene.publish(3, weights(policies[2]), policies[2])
    async with following(scene.config):
        await scene.until_applied(3)
        scene.server.kill()
        await asyncio.sleep(2)
        await asyncio.to_thread(scene.server.start)
        await scene.until_applied(3, 3)
    assert await served_as(scene.server, policies[2])


async def test_forged_versions_raise_alerts_are_never_fetched_and_block_no_valid_one(scene, policies, tmp_path):
    await scene.publish(0, weights(policies[0]), policies[0])
    honest = await scene.records(WEIGHTS)
    forged_store = ObjectStore(f"file://{tmp_path}/forged")
    canaries = [Canary(token_ids=PROMPTS[0], logprobs=array("f", forward_logprobs(policies[1], PROMPTS[0])))]
    file = weights(policies[1])
    made = make_manifest(file, run=scene.run, version=2**62, parent=2**62 - 1, tensors=1, canaries=canaries)
    await upload(forged_store, made, file)
    thief = SigningKey(Ed25519PrivateKey.generate())
    # A forged refusal has no effect either: the follower stores its own.
    details = {"engine": "engine", "manifest_sha256": honest[0].sha256, "version": 0}
    refusal = Alert(
        run=scene.run, source="anybody", kind=CANARY_MISMATCH, severity=Severity.CRITICAL, message="", details=details
    )
    async with open_producer(scene.bootstrap) as producer:
        await announcer(producer, scene.config)(ALERTS, refusal, uuid7())
    async with following(scene.config):
        await scene.until_applied(0)
        await scene.send(make_pointer(forged_store, made, step=2**62, key=thief))
        await scene.send(make_pointer(forged_store, made, step=2**62, key=thief).model_copy(update={"version": 1}))
        await scene.send(honest[0].model_copy(update={"version": 1, "parent": 0, "step": 1}))
        await scene.publish(1, weights(policies[2]), policies[2])
        await scene.until_applied(0, 1)
        assert await served_as(scene.server, policies[2])
    alerts = await scene.records(ALERTS)
    assert [alert.kind for alert in alerts] == [CANARY_MISMATCH] + [WEIGHTS_UNTRUSTED] * 3
    assert {file.stem for file in (scene.folder / "cache").glob("*.safetensors")} == {
        file_sha256(weights(policies[each])) for each in (0, 2)
    }


async def test_an_engine_serves_one_run_and_its_answers_name_it(scene, policies, tmp_path):
    other = Scene(scene.bootstrap, f"{scene.run}-other", scene.server, tmp_path / "other")
    other.folder.mkdir()
    await scene.publish(0, weights(policies[0]), policies[0])
    await other.publish(0, weights(policies[1]), policies[1])
    async with following(scene.config), PolicyClient(scene.server.url) as policy:
        await scene.until_applied(0)
        async with following(other.config), asyncio.timeout(60):
            while True:
                if alerts := await other.records(ALERTS):
                    break
                await asyncio.sleep(0.1)
        assert [alert.kind for alert in alerts] == [ENGINE_TAKEN]
        assert await other.applied() == []
        answer = await policy.generate([5, 6, 7], Sampling(temperature=1.0, max_tokens=8))
        assert {(span.run, span.version) for span in answer.version_spans} == {(scene.run, 0)}
        assert await served_as(scene.server, policies[0])
    async with following(replace(other.config, take_over=scene.run)), PolicyClient(scene.server.url) as policy:
        await other.until_applied(0)
        answer = await policy.generate([5, 6, 7], Sampling(temperature=1.0, max_tokens=8))
        assert {(span.run, span.version) for span in answer.version_spans} == {(other.run, 0)}
        assert await served_as(scene.server, policies[1])
