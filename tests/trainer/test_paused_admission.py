"""An alert pauses the admission of a task source of a live trainer, and somebody resumes it."""

import pytest

from headrace.schemas.events import TrajectoryStarted
from headrace.schemas.kafka.clients import open_producer
from headrace.schemas.kafka.sending import send
from headrace.schemas.records.alert import Alert
from headrace.schemas.records.group import Reason, Stage
from headrace.schemas.topics import ALERTS, REJECTED, STEPS
from headrace.streams.processors.watch import episode_message
from tests.trainer.admission.test_pauses import NONE, OPENED, RESUME, SEEN, alert
from tests.trainer.builders import member, training_group
from tests.trainer.feed import attempt, feed_trajectories, hash_of, records, send_groups
from tests.trainer.running import payloads, train_until, trainer_config

pytestmark = pytest.mark.kafka

RUN = "paused"


async def tell(kafka: str, *alerts: Alert) -> None:
    async with open_producer(kafka) as producer:
        for each in alerts:
            await (await send(producer, ALERTS, episode_message(each, 1_700_000_000_000)))


async def feed(kafka: str, groups: dict[str, str]) -> None:
    """Write a group of two for each name, whose task is from the given source."""
    attempts = {
        name: [
            attempt(f"{RUN}/{name}/{i}", run=RUN, seed=hash_of(name, i)).model_copy(
                update={"started": TrajectoryStarted(task_id="task", agent="search", run=RUN, task={"source": source})}
            )
            for i in range(2)
        ]
        for name, source in groups.items()
    }
    places = await feed_trajectories(kafka, [each for members in attempts.values() for each in members])
    await send_groups(
        kafka,
        [
            training_group(
                f"{RUN}/{name}",
                [
                    member(each, advantage=i - 0.5, reward=float(i), at=places[each.trajectory_id])
                    for i, each in enumerate(members)
                ],
                run=RUN,
            )
            for name, members in attempts.items()
        ],
    )


async def test_groups_of_a_paused_source_are_rejected_until_somebody_resumes_it(kafka, base, tmp_path):
    config = trainer_config(kafka, RUN, base, tmp_path)
    await tell(kafka, alert(OPENED, run=RUN), alert(OPENED, run="another", source="papers"))
    await feed(kafka, {"t0": "tickets", "p0": "papers", "t1": "tickets", "p1": "papers"})
    await train_until(config, 1)
    await tell(kafka, alert(SEEN, NONE, run=RUN))
    await feed(kafka, {"t2": "tickets", "p2": "papers", "p3": "papers"})
    await train_until(config, 2)  # another process, which reads all alerts again
    await tell(kafka, alert(SEEN, RESUME, run=RUN))
    await feed(kafka, {"t3": "tickets", "t4": "tickets"})
    await train_until(config, 3)

    rejected = payloads(await records(kafka, REJECTED, RUN))
    assert {(each.stage, each.reason) for each in rejected} == {(Stage.ADMISSION, Reason.ADMISSION_PAUSED)}
    assert sorted(each.trajectory_id for each in rejected) == [
        f"{RUN}/{name}/{i}" for name in ("t0", "t1", "t2") for i in range(2)
    ]
    steps = payloads(await records(kafka, STEPS, RUN))
    trained = [sorted(name for group in step.groups for name in group.trajectory_ids) for step in steps]
    assert trained == [
        [f"{RUN}/{name}/{i}" for name in names for i in range(2)]
        for names in (("p0", "p1"), ("p2", "p3"), ("t3", "t4"))
    ]
