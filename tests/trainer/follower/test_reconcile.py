import asyncio
import hashlib
import time

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from headrace.schemas.objects.store import ObjectStore
from headrace.schemas.records.alert import Alert
from headrace.schemas.records.weights import Applied, Canary, Weights
from headrace.schemas.stamp import unverified_stamp
from headrace.trainer.follower.alerts import (
    CANARY_MISMATCH,
    ENGINE_FAILING,
    ENGINE_TAKEN,
    NO_GOOD_VERSION,
    STORE_FAILING,
    SWAP_REFUSED,
    WEIGHTS_MISSING,
    WEIGHTS_UNTRUSTED,
    WEIGHTS_UNUSABLE,
)
from headrace.trainer.follower.config import FollowerConfig
from headrace.trainer.follower.memory import memory_file, read_memory
from headrace.trainer.follower.reconcile import Follower
from headrace.trainer.follower.versions import KnownVersions, add_version
from headrace.trainer.weights.publish import make_manifest, make_pointer, upload
from headrace.trainer.weights.published import manifest_path
from headrace.trainer.weights.signing import SigningKey
from tests.s3proxy.server import BUCKET
from tests.trainer.fake_engine import FakeEngine

KEY = SigningKey(Ed25519PrivateKey.generate())


class Scene:
    """A follower of a fake engine, and all records that it sent."""

    def __init__(self, folder, url=None, run="run", **versions):
        self.folder = folder
        self.run = run
        self.store = ObjectStore(url or f"file://{folder}/objects")
        self.fake = FakeEngine()
        self.announced = []
        self.ids = []
        self.cache = folder / "cache"
        self.patience_s = 600.0
        self.restart(**versions)

    def restart(self, known=(), take_over=None, **versions):
        """Start a new follower process on the state of the old one."""
        config = FollowerConfig(
            "", self.run, "http://engine", "engine-1", self.cache, self.store.url, (KEY.public,),
            fetch_attempts=1, keep_versions=2, fetch_patience_s=self.patience_s, take_over=take_over,
        )  # fmt: skip
        self.follower = Follower(
            config, self.fake.client(), self.announce, KnownVersions(known=tuple(known), **versions)
        )

    async def announce(self, topic, record, id):
        assert type(record) in topic.models
        self.announced.append(record)
        self.ids.append(id)

    async def publish(self, version, value=None, said=None, parent_value=None, learnt=True):
        """Version ``version`` whose weights are ``value``; its canary says they are ``said``, and its parent's were
        ``parent_value``."""
        value = float(version + 1) if value is None else value
        file = self.folder / f"{version}.txt"
        file.write_text(str(value))
        logprob = -(value if said is None else said)
        before = None if parent_value is None else [-parent_value] * 2
        canaries = [Canary(token_ids=[1, 2, 3], logprobs=[logprob, logprob], parent_logprobs=before)]
        parent = version - 1 if version else None
        manifest = make_manifest(
            file, run=self.run, version=version, parent=parent, tensors=1, canaries=canaries,
            dtype="float32", exact=True,
        )  # fmt: skip
        await upload(self.store, manifest, file)
        pointer = make_pointer(self.store, manifest, step=version, key=KEY)
        if learnt:
            self.follower.versions = add_version(self.follower.versions, pointer)
        return pointer

    def applied(self):
        return [record.version for record in self.announced if isinstance(record, Applied)]

    def alerts(self):
        return [record.kind for record in self.announced if isinstance(record, Alert)]


@pytest.fixture
def scene(tmp_path):
    return Scene(tmp_path)


async def test_a_version_is_swapped_in_compared_and_only_then_acknowledged(scene):
    await scene.publish(0)
    await scene.follower.reconcile()
    assert scene.fake.stamp == "run/0"
    assert scene.fake.weights == 1.0
    order = [path for path in scene.fake.requests if path not in ("/weight_info", "/is_paused")]
    assert order == [
        "/update_weight_version",  # from here on the engine is claimed for this run
        "/inference/v1/generate",
        "/init_weight_transfer_engine",
        "/pause",
        "/start_weight_update",
        "/update_weights",
        "/finish_weight_update",
        "/reset_prefix_cache",
        "/resume",
        "/inference/v1/generate",
    ]
    (applied,) = scene.announced
    assert (applied.run, applied.engine, applied.version) == ("run", "engine-1", 0)
    assert applied.canary_max_error < 1e-6
    assert applied.swap_s > 0


async def test_nothing_is_done_while_nothing_changes(scene):
    await scene.publish(0)
    await scene.follower.reconcile()
    before = len(scene.fake.requests)
    await scene.follower.reconcile()
    assert scene.fake.requests[before:] == ["/weight_info"]


async def test_versions_that_were_overtaken_are_skipped(scene):
    for version in range(4):
        await scene.publish(version)
    await scene.follower.reconcile()
    assert scene.applied() == [3]


async def test_an_engine_that_was_restarted_gets_its_version_again(scene):
    await scene.publish(4)
    await scene.follower.reconcile()
    scene.fake.stamp, scene.fake.weights = "default", 0.0
    await scene.follower.reconcile()
    assert (scene.fake.stamp, scene.fake.weights) == ("run/4", 5.0)
    assert scene.applied() == [4, 4]


async def test_an_empty_swap_raises_an_alert_and_the_last_good_version_is_restored(scene):
    await scene.publish(0)
    await scene.follower.reconcile()
    await scene.publish(1)
    scene.fake.deaf = True
    await scene.follower.reconcile()
    assert scene.alerts() == [CANARY_MISMATCH]
    assert scene.applied() == [0, 0]
    assert (scene.fake.stamp, scene.fake.weights, scene.fake.paused) == ("run/0", 1.0, False)


async def test_an_empty_swap_is_detected_even_if_a_step_moves_less_than_the_tolerance(scene):
    await scene.publish(0, 1.0)
    await scene.follower.reconcile()
    await scene.publish(1, 1.004)
    scene.fake.deaf = True
    await scene.follower.reconcile()
    assert scene.alerts() == [CANARY_MISMATCH]
    scene.fake.deaf = False
    await scene.publish(2, 1.005)
    await scene.follower.reconcile()
    assert scene.applied()[-1] == 2


@pytest.mark.parametrize("deaf", [False, True])
async def test_an_empty_swap_is_detected_after_skipped_versions_too(scene, deaf):
    await scene.publish(0, 1.0)
    await scene.follower.reconcile()
    await scene.publish(1, 1.0001, parent_value=1.0)
    await scene.publish(2, 1.0002, parent_value=1.0001)
    scene.fake.deaf = deaf
    await scene.follower.reconcile()
    assert scene.applied() == ([0, 0] if deaf else [0, 2])
    assert scene.alerts() == ([CANARY_MISMATCH] if deaf else [])
    if not deaf:
        applied = scene.announced[-1]
        assert applied.canary_evidence == "position"
        assert applied.canary_position == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("deaf", [False, True])
async def test_a_restarted_follower_knows_the_version_before_from_the_new_ones_canaries(scene, deaf):
    first = await scene.publish(0, 1.0)
    await scene.follower.reconcile()
    second = await scene.publish(1, 1.0001, parent_value=1.0)
    scene.restart(known=[first, second], good=0)
    scene.fake.deaf = deaf
    await scene.follower.reconcile()
    assert scene.alerts() == ([CANARY_MISMATCH] if deaf else [])
    assert (scene.applied()[-1] == 1) is not deaf


async def test_the_same_weights_under_a_new_number_are_accepted(scene):
    await scene.publish(0, 1.0)
    await scene.follower.reconcile()
    await scene.publish(1, 1.0, parent_value=1.0)
    await scene.follower.reconcile()
    assert scene.applied() == [0, 1]
    assert scene.announced[-1].canary_evidence == "distance"


async def test_a_refused_version_is_not_tried_again_and_a_newer_one_is(scene):
    await scene.publish(0)
    await scene.follower.reconcile()
    await scene.publish(1, said=7.0)
    await scene.follower.reconcile()
    before = len(scene.fake.requests)
    await scene.follower.reconcile()
    assert scene.fake.requests[before:] == ["/weight_info"]
    await scene.publish(2)
    await scene.follower.reconcile()
    assert scene.applied() == [0, 0, 2]
    assert scene.alerts() == [CANARY_MISMATCH]


async def test_a_restarted_follower_remembers_what_it_refused_in_a_private_file(scene):
    good = await scene.publish(0)
    await scene.follower.reconcile()
    bad = await scene.publish(1, said=9.0)
    await scene.follower.reconcile()
    assert scene.alerts() == [CANARY_MISMATCH]
    file = memory_file(scene.cache, "run", "engine-1")
    assert file.stat().st_mode & 0o777 == 0o600
    kept = read_memory(scene.cache, "run", "engine-1")
    assert kept == KnownVersions(refused=frozenset({bad.sha256}), good=0)
    assert read_memory(scene.cache, "run", "engine-2") == KnownVersions()
    scene.restart(known=[good, bad], refused=kept.refused, good=kept.good)
    await scene.follower.reconcile()
    assert scene.alerts() == [CANARY_MISMATCH]
    assert scene.fake.stamp == "run/0"


@pytest.mark.parametrize(
    "held",
    [
        None,
        "",
        "{",
        "[]",
        '{"refused": "a", "absent": [], "good": 0}',
        '{"refused": [], "absent": [], "good": "1"}',
        "\xff",
    ],
)
async def test_without_a_readable_file_no_version_is_refused(scene, held):
    bad = await scene.publish(1, said=9.0)
    await scene.follower.reconcile()
    file = memory_file(scene.cache, "run", "engine-1")
    file.unlink()
    if held is not None:
        file.write_text(held, encoding="latin-1")
    assert read_memory(scene.cache, "run", "engine-1") == KnownVersions()
    scene.restart(known=[bad])
    await scene.follower.reconcile()
    assert scene.alerts().count(CANARY_MISMATCH) == 2
    assert read_memory(scene.cache, "run", "engine-1").refused == {bad.sha256}


async def test_a_state_file_that_cannot_be_written_blocks_no_version(scene, caplog):
    memory_file(scene.cache, "run", "engine-1").mkdir(parents=True)
    await scene.publish(0)
    await scene.follower.reconcile()
    await scene.follower.reconcile()
    assert scene.applied() == [0]
    assert "cannot be stored" in caplog.text


async def test_replayed_versions_of_an_earlier_instance_block_no_version(scene, monkeypatch):
    async def replay(version):
        path = f"{scene.store.url}/{manifest_path('run', version)}"
        sha256 = hashlib.sha256(f"earlier {version}".encode()).hexdigest()
        pointer = Weights(
            run="run", version=version, parent=version - 1, kind="anchor", manifest_uri=path, sha256=sha256, size=10,
            step=version,
        )  # fmt: skip
        await scene.follower.consider(KEY.sign(pointer), f"weights-0@{version}")

    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    await scene.publish(0)
    await scene.follower.reconcile()
    for version in range(400, 500):
        await replay(version)
    for version in (1, 2):  # while they are retried …
        await scene.follower.consider(await scene.publish(version, learnt=False), "weights-0@500")
        await scene.follower.reconcile()
        now += 1
    assert scene.applied() == [0, 1, 2]
    for _ in range(100):
        now += 20
        await scene.follower.reconcile()
    assert not scene.follower.missing
    assert len(scene.follower.versions.absent) == 100
    await replay(450)  # … and once they are marked as absent
    await scene.follower.consider(await scene.publish(3, learnt=False), "weights-0@600")
    await scene.follower.reconcile()
    assert scene.applied() == [0, 1, 2, 3]
    assert WEIGHTS_UNTRUSTED not in scene.alerts()
    kept = read_memory(scene.cache, "run", "engine-1")
    assert kept.absent == scene.follower.versions.absent
    assert kept.good == 3


async def test_the_same_refusal_has_the_same_id(scene):
    bad = await scene.publish(1, said=9.0)
    await scene.follower.reconcile()
    scene.restart(known=[bad])
    await scene.follower.reconcile()
    ids = [id for id, record in zip(scene.ids, scene.announced, strict=True) if record.kind == CANARY_MISMATCH]
    assert len(ids) == 2
    assert len(set(ids)) == 1


async def test_without_a_good_version_tokens_name_none_and_one_alert_is_raised(scene):
    await scene.publish(0, said=9.0)
    await scene.follower.reconcile()
    await scene.follower.reconcile()
    assert scene.fake.stamp == unverified_stamp("run")
    assert scene.alerts() == [CANARY_MISMATCH, NO_GOOD_VERSION]


@pytest.mark.parametrize("damage", ["corrupt", "corrupt manifest"])
async def test_objects_that_differ_from_the_published_ones_never_reach_the_engine(scene, damage):
    await scene.publish(0)
    await scene.follower.reconcile()
    await scene.publish(1)
    name = "manifest.json" if damage == "corrupt manifest" else "model.safetensors"
    stored = scene.folder / "objects" / "weights" / "run" / "00000001" / name
    stored.write_bytes(b"9" * stored.stat().st_size)
    swaps = scene.fake.requests.count("/pause")
    await scene.follower.reconcile()
    assert scene.alerts() == [WEIGHTS_UNUSABLE]
    assert scene.fake.stamp == "run/0"
    assert scene.applied() == [0]
    assert scene.fake.requests.count("/pause") == swaps


@pytest.mark.parametrize("name", ["model.safetensors", "manifest.json"])
async def test_a_missing_object_is_retried_while_the_version_before_is_served(scene, monkeypatch, name):
    await scene.publish(0)
    await scene.follower.reconcile()
    await scene.publish(1)
    stored = scene.folder / "objects" / "weights" / "run" / "00000001" / name
    hidden = stored.rename(scene.folder / "hidden")
    began = now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    while now - began < 60:
        await scene.follower.reconcile()
        now += 0.5
    assert scene.alerts() == [WEIGHTS_MISSING]
    assert scene.fake.stamp == "run/0"
    assert scene.fake.requests.count("/pause") == 1
    hidden.rename(stored)
    now += 20
    await scene.follower.reconcile()
    assert scene.applied() == [0, 1]
    assert scene.fake.stamp == "run/1"
    assert not scene.follower.missing


async def test_an_object_that_is_missing_for_too_long_refuses_its_version(scene, monkeypatch):
    scene.patience_s = 60.0
    scene.restart()
    await scene.publish(0)
    await scene.follower.reconcile()
    await scene.publish(1)
    (scene.folder / "objects" / "weights" / "run" / "00000001" / "model.safetensors").unlink()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    for _ in range(10):
        await scene.follower.reconcile()
        now += 16
    assert scene.alerts() == [WEIGHTS_MISSING, WEIGHTS_UNUSABLE]
    assert scene.applied() == [0]
    await scene.publish(2)
    await scene.follower.reconcile()
    assert scene.applied() == [0, 2]


async def test_an_engine_without_a_version_gets_an_older_one_while_the_newest_is_missing(scene):
    await scene.publish(0)
    await scene.publish(1)
    (scene.folder / "objects" / "weights" / "run" / "00000001" / "manifest.json").unlink()
    await scene.follower.reconcile()
    assert scene.applied() == [0]


async def test_a_version_that_the_engine_refuses_is_replaced_by_the_last_good_one(scene):
    await scene.publish(0)
    await scene.follower.reconcile()
    await scene.publish(1)

    scene.fake.picky = {2.0}
    await scene.follower.reconcile()
    assert scene.alerts() == [SWAP_REFUSED]
    assert (scene.fake.stamp, scene.fake.weights) == ("run/0", 1.0)


async def test_an_engine_that_dies_during_the_swap_is_retried_and_the_version_not_refused(scene):
    await scene.publish(0)
    scene.fake.failing["/update_weights"] = 500
    scene.fake.healthy = False
    await scene.follower.reconcile()
    assert scene.announced == []
    scene.fake.failing.clear()
    scene.fake.healthy, scene.fake.updating, scene.fake.paused = True, False, False
    await scene.follower.reconcile()
    assert scene.applied() == [0]


@pytest.mark.parametrize("rows", [None, [], [None, {}], [None, {"2": {"logprob": None}}, {"3": {"logprob": 1}}], 7])
async def test_an_engine_that_fails_to_score_after_a_swap_names_no_version(scene, rows):
    await scene.publish(0)
    await scene.follower.reconcile()
    await scene.publish(1)
    honest = scene.fake.inference_v1_generate

    def answer(body, query):
        return httpx.Response(200, json={"prompt_logprobs": rows}) if scene.fake.weights == 2.0 else honest(body, query)

    scene.fake.inference_v1_generate = answer
    await scene.follower.reconcile()
    assert (scene.applied(), scene.fake.stamp, scene.fake.paused) == ([0], unverified_stamp("run"), False)
    scene.fake.inference_v1_generate = honest
    await scene.follower.reconcile()
    assert (scene.applied(), scene.fake.stamp, scene.alerts()) == ([0, 1], "run/1", [])


@pytest.mark.parametrize("path", ["weight_info", "is_paused", "reset_prefix_cache", "inference_v1_generate"])
@pytest.mark.parametrize("said", [{}, [], None, "no"])
async def test_a_malformed_answer_does_not_end_the_follower(scene, path, said, monkeypatch):
    await scene.publish(0)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    setattr(scene.fake, path, lambda body, query: httpx.Response(200, json=said))
    await scene.follower.reconcile()
    now += 31
    await scene.follower.reconcile()
    assert (scene.applied(), scene.alerts()) == ([], [ENGINE_FAILING])


async def test_an_engine_that_does_not_answer_raises_one_alert_after_a_while(scene, monkeypatch):
    await scene.publish(0)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    scene.fake.failing["/weight_info"] = httpx.ConnectError("refused")
    await scene.follower.reconcile()
    assert scene.announced == []
    now += 31
    await scene.follower.reconcile()
    await scene.follower.reconcile()
    assert scene.alerts() == [ENGINE_FAILING]
    scene.fake.failing.clear()
    await scene.follower.reconcile()
    assert scene.applied() == [0]


async def test_an_unavailable_store_is_retried_and_the_version_not_refused(scene, monkeypatch):
    await scene.publish(0)
    await scene.follower.reconcile()
    await scene.publish(1)
    objects = scene.folder / "objects"
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr("headrace.trainer.follower.reconcile.fetch_weights", _unreachable)
    await scene.follower.reconcile()
    now += 31
    await scene.follower.reconcile()
    assert scene.alerts() == [STORE_FAILING]
    monkeypatch.undo()
    assert objects.exists()
    await scene.follower.reconcile()
    assert scene.applied() == [0, 1]


async def _unreachable(pointer, store, folder):
    raise ConnectionResetError("the store went away")


async def test_after_a_death_between_pause_and_resume_the_next_follower_resumes_the_engine(scene):
    await scene.publish(0)
    await scene.follower.reconcile()
    pointer = await scene.publish(1)
    scene.fake.paused = scene.fake.updating = True
    scene.restart(known=[pointer], good=0)
    await scene.follower.reconcile()
    assert (scene.fake.stamp, scene.fake.weights, scene.fake.paused, scene.fake.updating) == (
        "run/1", 2.0, False, False,
    )  # fmt: skip
    assert scene.applied() == [0, 1]


async def test_a_paused_engine_is_resumed_even_without_any_version(scene):
    scene.fake.paused = True
    scene.fake.stamp = "3"
    await scene.follower.reconcile()
    assert not scene.fake.paused
    assert scene.fake.stamp == unverified_stamp("run")


async def test_a_restarted_follower_compares_what_is_served_and_swaps_nothing(scene):
    pointer = await scene.publish(3)
    await scene.follower.reconcile()
    scene.restart(known=[pointer], good=3)
    pauses = scene.fake.requests.count("/pause")
    await scene.follower.reconcile()
    assert scene.fake.requests.count("/pause") == pauses
    assert scene.applied() == [3]


async def test_a_swap_is_acknowledged_after_its_follower_died_before_doing_so(scene):
    pointer = await scene.publish(3)
    await scene.follower.reconcile()
    scene.announced.clear()
    scene.restart(known=[pointer], good=2)
    await scene.follower.reconcile()
    assert scene.applied() == [3]


async def test_a_version_stamped_without_a_run_is_not_taken_for_this_runs(scene):
    scene.fake.stamp, scene.fake.weights = "0", 42.0
    await scene.publish(0)
    await scene.follower.reconcile()
    assert (scene.fake.stamp, scene.fake.weights) == ("run/0", 1.0)
    assert scene.alerts() == []
    assert scene.applied() == [0]


@pytest.mark.parametrize("stamp", ["other/0", "other/7", unverified_stamp("other")])
@pytest.mark.parametrize("paused", [False, True])
async def test_an_engine_that_serves_another_run_is_left_alone_with_one_alert(scene, stamp, paused):
    scene.fake.stamp, scene.fake.weights, scene.fake.paused = stamp, 42.0, paused
    await scene.publish(0)
    await scene.follower.reconcile()
    await scene.follower.reconcile()
    assert (scene.fake.stamp, scene.fake.weights, scene.fake.paused) == (stamp, 42.0, paused)
    assert set(scene.fake.requests) == {"/weight_info"}
    (alert,) = scene.announced
    assert (alert.kind, alert.severity) == (ENGINE_TAKEN, "critical")
    assert "'other'" in alert.message
    assert "take_over='other'" in alert.message


async def test_an_engine_that_no_longer_serves_another_run_is_claimed(scene):
    scene.fake.stamp = "other/0"
    await scene.publish(0)
    await scene.follower.reconcile()
    scene.fake.stamp = "default"
    await scene.follower.reconcile()
    assert (scene.fake.stamp, scene.alerts(), scene.applied()) == ("run/0", [ENGINE_TAKEN], [0])
    scene.fake.stamp = "other/1"
    await scene.follower.reconcile()
    assert (scene.fake.stamp, scene.alerts()) == ("other/1", [ENGINE_TAKEN] * 2)


@pytest.mark.parametrize(("run", "taken"), [("other", True), ("third", False)])
async def test_an_engine_is_taken_over_only_from_the_named_run(scene, run, taken):
    scene.fake.stamp, scene.fake.weights = "other/5", 42.0
    scene.restart(take_over=run)
    await scene.follower.reconcile()
    assert scene.fake.stamp == "other/5"  # nothing to serve yet
    await scene.publish(0)
    await scene.follower.reconcile()
    assert (scene.fake.stamp, scene.fake.weights) == (("run/0", 1.0) if taken else ("other/5", 42.0))
    assert scene.alerts() == ([] if taken else [ENGINE_TAKEN])


async def test_two_followers_that_find_the_same_fresh_engine_do_not_both_serve_it(scene, tmp_path):
    (tmp_path / "second").mkdir()
    second = Scene(tmp_path / "second", run="other")
    second.fake = scene.fake
    second.restart()
    await scene.publish(0)
    await second.publish(0, 7.0)

    started = []

    def meanwhile():  # the first follower scores canaries, before its swap
        scene.fake.failing.clear()
        started.append(asyncio.get_running_loop().create_task(second.follower.reconcile()))

    scene.fake.failing["/inference/v1/generate"] = meanwhile
    await scene.follower.reconcile()
    await asyncio.gather(*started)
    assert (scene.fake.stamp, scene.applied()) == ("run/0", [0])
    assert (second.alerts(), second.applied()) == ([ENGINE_TAKEN], [])


async def test_an_engine_claimed_during_a_swap_does_not_refuse_the_version(scene):
    await scene.publish(0)

    def taken():
        if scene.fake.stamp == "run/0":
            scene.fake.stamp, scene.fake.weights = "other/3", 42.0

    scene.fake.failing["/inference/v1/generate"] = taken
    await scene.follower.reconcile()
    scene.fake.failing.clear()
    await scene.follower.reconcile()
    assert (scene.fake.stamp, scene.alerts(), scene.applied()) == ("other/3", [ENGINE_TAKEN], [])
    scene.fake.stamp = "default"
    await scene.follower.reconcile()
    assert scene.applied() == [0]


async def test_an_engine_that_restarts_during_the_comparison_does_not_refuse_the_version(scene):
    await scene.publish(0)

    def crash():
        if scene.fake.stamp == "run/0":
            scene.fake.stamp, scene.fake.weights = "default", 42.0
            scene.fake.failing.clear()

    scene.fake.failing["/inference/v1/generate"] = crash
    await scene.follower.reconcile()
    assert scene.announced == []
    await scene.follower.reconcile()
    assert scene.applied() == [0]


async def test_only_the_last_few_versions_stay_on_disk(scene):
    for version in range(5):
        await scene.publish(version)
        await scene.follower.reconcile()
    assert len(list(scene.cache.glob("*.safetensors"))) == 2
    assert scene.applied() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "settings",
    [
        {"canary_tolerance": 0},
        {"canary_tolerance": float("nan")},
        {"keep_versions": 0},
        {"trust": ()},
        {"trust": ("0",)},
        {"run": "../up"},
        {"take_over": "../up"},
        {"take_over": "run"},
        {"store_url": "http://host/objects"},
        {"fetch_patience_s": float("nan")},
    ],
)
def test_settings_that_would_verify_nothing_are_refused(tmp_path, settings):
    with pytest.raises(ValueError, match=next(iter(settings))):
        FollowerConfig(
            **{"bootstrap": "", "run": "run", "engine_url": "http://engine", "engine": "engine", "cache_dir": tmp_path}
            | {"store_url": "file:///objects", "trust": (KEY.public,)}
            | settings
        )


@pytest.mark.s3
@pytest.mark.parametrize("trouble", ["no server", "no bucket", "wrong credentials"])
async def test_a_version_on_s3_is_not_refused_for_errors_of_its_store(s3, tmp_path, monkeypatch, trouble):
    scene = Scene(tmp_path, s3.url(trouble.replace(" ", "-")))
    await scene.publish(0)
    await scene.follower.reconcile()
    await scene.publish(1)
    bucket, hidden = s3.objects / BUCKET, s3.objects / "hidden"
    with monkeypatch.context() as patch:
        if trouble == "no server":
            s3.kill()
        elif trouble == "no bucket":
            bucket.rename(hidden)
        else:
            patch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
            scene.follower.store = None  # credentials are read when the store is opened
        await scene.follower.reconcile()
        assert scene.follower.failing_since is not None
    if trouble == "no server":
        s3.start()
        await s3.until_serves()
    elif trouble == "no bucket":
        hidden.rename(bucket)
    else:
        scene.follower.store = None
    await scene.follower.reconcile()
    assert scene.applied() == [0, 1]
    assert scene.alerts() == []
