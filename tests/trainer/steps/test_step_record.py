import math

from headrace.schemas.records.step import BatchRecipe
from headrace.trainer.batches.batch import make_batch
from headrace.trainer.checkpoints.position import Position
from headrace.trainer.progress.pace import Phase
from headrace.trainer.steps.gather import Gathered
from headrace.trainer.steps.step_record import loop_metrics, make_step
from tests.trainer.builders import admitted, segment, trajectory

RECIPE = BatchRecipe(format=2, advantage_scale="none")

GATHERED = Gathered(Position(version=1, offsets={}), wait_s=4.0, resolve_s=0.5)


def test_the_seconds_of_a_step_go_from_one_record_to_the_next():
    before = {Phase.WAITING: 9.0, Phase.TRAINING: 9.0, Phase.SAVING: 1.0, Phase.PUBLISHING: 2.0}
    metrics = loop_metrics(GATHERED, {"tokens_read": 300.0}, train_s=3.0, since_step_s=8.0, before_s=before)
    assert {name: value for name, value in metrics.items() if name.startswith("seconds_")} == {
        "seconds_step": 11.0, "seconds_save": 1.0, "seconds_publish": 2.0, "seconds_wait": 4.0, "seconds_resolve": 0.5,
        "seconds_train": 3.0,
    }  # fmt: skip
    assert metrics["tokens_per_second"] == 100.0


def test_the_first_step_of_a_process_has_saved_and_published_nothing_before_it():
    metrics = loop_metrics(GATHERED, {"tokens_read": 300.0}, train_s=3.0, since_step_s=8.0, before_s={})
    assert metrics["seconds_step"] == 8.0
    assert not {"seconds_save", "seconds_publish"} & set(metrics)


def test_a_metric_that_overflowed_is_left_out_of_the_record():
    groups = [admitted("g", trajectory("t", segment("cS")), advantages=[1.0])]
    metrics = {"loss": 0.5, "chi2": math.inf, "ess": math.nan}
    step = make_step(1, groups, make_batch(groups), metrics, run="r", config_sha256="", recipe=RECIPE)
    assert step.metrics == {"loss": 0.5}
