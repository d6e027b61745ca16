"""A reward that runs what the model wrote: ``sys.exit`` costs one trajectory its total, and the worker continues."""

from pathlib import Path

import pytest

from headrace.schemas.records.reward import Reward
from headrace.schemas.topics import REWARDS, TRAJECTORIES
from headrace.schemas.wire import decode
from tests.streams.attempts import attempt, trajectory_message
from tests.streams.test_workers import produce, records, until, worker

REWARD = """
from headrace.streams.rewards.spec import RewardSpec, Term

def runs(trajectory):
    exec(trajectory.answer or "", {})
    return 1.0

SPEC = RewardSpec("program", 1, (Term("runs", runs, 1.0),))
"""


@pytest.mark.kafka
def test_an_exit_in_a_reward_is_a_label_and_an_interruption_ends_the_worker_with_status_1(
    kafka: str, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(REWARD)
    answers = {"leave-1": "", "leave-2": "import sys; sys.exit(0)", "leave-3": ""}
    answered = [trajectory_message(attempt(name, group=None, answer=text)) for name, text in answers.items()]
    spec = f"{tmp_path / 'program.py'}:SPEC"
    with worker(kafka, tmp_path, processors=["score"], rewards={"*": spec}) as child:
        produce(kafka, TRAJECTORIES, answered, partition=0)
        until(lambda: len(records(kafka, REWARDS, "leave-")) == 3, "all are scored", child.log)
        found = [decode(each.headers, each.value)[1] for each in records(kafka, REWARDS, "leave-")]
        reasons = {each.trajectory_id: each.unscored for each in found if isinstance(each, Reward)}
        assert reasons == {"leave-1": None, "leave-2": "runs_raised", "leave-3": None}
        produce(kafka, TRAJECTORIES, [trajectory_message(attempt("leave-4", answer="raise KeyboardInterrupt"))])
        assert child.wait(60) == 1
    assert "RuntimeError: score raised KeyboardInterrupt" in child.log.read_text()
