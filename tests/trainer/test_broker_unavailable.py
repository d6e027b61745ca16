"""A broker that is unavailable for longer than any client's timeout: the trainer resumes bit-identically."""

import asyncio
import threading
from collections import defaultdict
from contextlib import asynccontextmanager

import pytest
import torch
from aiokafka.errors import KafkaTimeoutError

from headrace.schemas.records.alert import Alert, Severity
from headrace.schemas.records.weights import Weights
from headrace.schemas.topics import ALERTS, BUDGET, STEPS, WEIGHTS
from headrace.trainer.announcements.announcement import PublishedPosition, announcement
from headrace.trainer.checkpoints.checkpoint import load_newest
from headrace.trainer.learning.optimizer_state import read_state
from headrace.trainer.loop import run_trainer
from headrace.trainer.progress.progress import Progress
from headrace.trainer.publishing.announcer import Announcer, newest_published
from headrace.trainer.retries.broker import LogUnavailable
from headrace.trainer.retries.retry import OutageSettings
from tests.trainer.feed import feed_groups, records
from tests.trainer.running import payloads, train_until, trainer_config

pytestmark = pytest.mark.kafka

QUICK = OutageSettings(first_wait_s=0.1, longest_wait_s=0.5, alert_after_s=1.0, answer_s=2.0)
"""Requests time out after 2 s, transactions after 4 s."""
AWAY_S = 8.0
GROUPS = list("abcdefgh")


@pytest.fixture
def config(kafka, base, tmp_path):
    def _config(run, **settings):
        return trainer_config(kafka, run, base, tmp_path, **({"outages": QUICK} | settings))

    return _config


class RecordingWatcher:
    """Records progress."""

    def __init__(self):
        self.announced, self.outages, self.longest_s = defaultdict(asyncio.Event), [], 0.0

    def changed(self, progress):
        if progress.outage:
            self.outages.append(progress.outage)
            self.longest_s = max(self.longest_s, progress.outage_s)

    def stepped(self, step, metrics):
        self.announced[step].set()


@asynccontextmanager
async def training(config, reached=lambda *_: None, seen=None):
    """Run the trainer, and stop it at the end."""
    stop, ready = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(
        run_trainer(config, stop=stop, ready=ready.set, reached=reached, progress=Progress([seen] if seen else []))
    )
    try:
        yield stop, ready, task
    finally:
        stop.set()
        await asyncio.wait_for(task, 60)


async def until_step(seen, step, task):
    """Wait until ``step`` is announced, without a broker; raises the trainer's error if it ends."""
    announced = asyncio.ensure_future(seen.announced[step].wait())
    await asyncio.wait({announced, task}, timeout=120, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        await task
    assert announced.done(), f"step {step} was never announced"


async def published(kafka, run, folder):
    """Returns the records of ``run`` and its newest checkpoint, without names and times."""
    steps, weights = [payloads(await records(kafka, topic, run)) for topic in (STEPS, WEIGHTS)]
    budgets = {each.version for each in payloads(await records(kafka, BUDGET, run))}
    checkpoint = load_newest(folder / run, run)
    return (
        [(step.step, step.data_sha256, [group.group_id.rpartition("/")[2] for group in step.groups]) for step in steps],
        [(each.version, each.step) for each in weights],
        budgets,
        tuple(await newest_published(kafka, run)),
        read_state(checkpoint.optimizer_dir, {}),
        [*checkpoint.manifest().files.values()],
    )


def away(broker, how):
    """Stop the broker immediately; it is restarted some time later in any case."""
    if how == "frozen":
        broker.freeze()
        back = threading.Timer(AWAY_S, broker.freeze, (False,))
    else:
        broker.kill()
        back = threading.Timer(AWAY_S, broker.start)
    back.start()
    return back


async def test_an_unavailable_broker_changes_no_bit_of_the_training_and_the_log(running_kafka, kafka, config, tmp_path):
    for run in ("calm", "away"):
        await feed_groups(kafka, GROUPS[:6], run=run, story="story")
    faults = {("sent", 1): "frozen", ("sent", 2): "killed"}
    backs, seen = [], RecordingWatcher()

    def reached(effect, making):
        if how := faults.pop((effect, making), None):
            backs.append(away(running_kafka, how))

    async with training(config("away"), reached, seen) as (_, _, task):
        await until_step(seen, 3, task)
        backs.append(away(running_kafka, "frozen"))  # while it waits for groups
        await asyncio.to_thread(backs[-1].join)
        await running_kafka.stays_listed()
        for run in ("calm", "away"):
            await feed_groups(kafka, GROUPS[6:], run=run, story="story")
        await until_step(seen, 4, task)
    assert not faults
    await train_until(config("calm"), 4)

    *calm, calm_state, calm_files = await published(kafka, "calm", tmp_path)
    *found, state, files = await published(kafka, "away", tmp_path)
    assert found == calm
    assert [step for step, *_ in found[0]] == [1, 2, 3, 4]
    assert files == calm_files
    assert state.keys() == calm_state.keys()
    assert [name for name in state if not torch.equal(state[name], calm_state[name])] == []

    kinds = [each.kind for each in payloads(await records(kafka, ALERTS, "away"))]
    assert 1 <= kinds.count("log_unavailable") <= len(backs)
    calm_kinds = [each.kind for each in payloads(await records(kafka, ALERTS, "calm"))]
    assert [kind for kind in kinds if kind != "log_unavailable"] == calm_kinds
    assert all("Kafka at" in outage for outage in seen.outages)
    assert seen.longest_s > QUICK.alert_after_s


async def test_a_stop_during_an_outage_ends_the_trainer_and_a_restart_resumes(running_kafka, kafka, config):
    await feed_groups(kafka, GROUPS[:4], run="stopped")
    stopped = asyncio.Event()

    def reached(effect, making):
        if (effect, making) == ("sent", 1):
            running_kafka.freeze()
            stopped.set()

    try:
        async with training(config("stopped"), reached) as (_, _, _):
            await stopped.wait()
    finally:
        running_kafka.freeze(False)
        await running_kafka.stays_listed()
    await train_until(config("stopped"), 2)
    assert [step.step for step in payloads(await records(kafka, STEPS, "stopped"))] == [1, 2]


async def test_after_the_retry_limit_the_error_names_the_broker(running_kafka, kafka, config):
    # Five seconds for an answer are enough to start on a busy machine.
    outages = OutageSettings(0.1, 0.2, alert_after_s=1.0, patience_s=0.5, answer_s=5.0)
    ready = asyncio.Event()
    task = asyncio.create_task(run_trainer(config("gone", outages=outages), stop=asyncio.Event(), ready=ready.set))
    try:
        await asyncio.wait_for(ready.wait(), 60)
        running_kafka.freeze()
        with pytest.raises(LogUnavailable, match=f"Kafka at {kafka} is unavailable: cannot read groups"):
            await asyncio.wait_for(task, 60)
    finally:
        running_kafka.freeze(False)
        await running_kafka.stays_listed()


async def test_a_committed_announcement_without_acknowledgement_is_not_repeated(kafka):
    announcer = Announcer(kafka, "unheard", answer_s=30.0)
    try:
        weights = Weights(
            run="unheard", version=0, parent=None, step=0, manifest_uri="m", sha256="", kind="anchor", size=0
        )
        warning = Alert(run="unheard", source="t", kind="k", severity=Severity.WARNING, message="m")
        for said, record in ((PublishedPosition(0), weights), (PublishedPosition(0, 1), warning)):
            news = [announcement(record, run="unheard")]
            if announcer._producer is None:
                await announcer.open()
            client = announcer._producer.kafka
            commit = client.commit_transaction

            async def commit_unconfirmed(commit=commit):
                await commit()
                raise KafkaTimeoutError

            client.commit_transaction = commit_unconfirmed
            with pytest.raises(LogUnavailable):
                await announcer.announce(news, position=said, offsets={1: 7})
            await announcer.announce(news, position=said, offsets={1: 7})
    finally:
        await announcer.close()
    assert len(await records(kafka, WEIGHTS, "unheard")) == len(await records(kafka, ALERTS, "unheard")) == 1
    assert await newest_published(kafka, "unheard") == PublishedPosition(0, 1)
