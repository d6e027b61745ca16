"""The trainer: groups in, steps and weights out.

    gather → train → checkpoint → upload → announce → gather …

What was done is durable before it is said. A trainer that dies at any of the arrows goes on from its newest checkpoint:
what that one holds and the log does not yet know is said then; what it does not hold was never said, and its groups are
read again. So no group is trained twice and none is lost.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

import torch

from headrace.schemas.records import Alert, Budget, Step
from headrace.trainer.admission.admission import AdmissionRules
from headrace.trainer.admission.budget import budget_at
from headrace.trainer.admission.intake import Intake, open_intake
from headrace.trainer.alerts import trainer_alert
from headrace.trainer.announce import Announcer, announcement, newest_announced, open_announcer
from headrace.trainer.batches.batch import AdmittedGroup, make_batch
from headrace.trainer.batches.recipe import prepare_groups
from headrace.trainer.checkpoints.checkpoint import Checkpoint, CheckpointError, exclusive, load_newest
from headrace.trainer.checkpoints.save import save_checkpoint
from headrace.trainer.config import TrainerConfig as TrainerConfig
from headrace.trainer.effects import Effect, Reached, tell_nobody
from headrace.trainer.gather import Gatherer
from headrace.trainer.learning.alarms import watch
from headrace.trainer.learning.divergence import TrainingDiverged
from headrace.trainer.learning.learner import Learner
from headrace.trainer.model.layers import prepare_layers
from headrace.trainer.model.load import load_model, longest_sequence, vocabulary_size
from headrace.trainer.progress.lines import Lines
from headrace.trainer.progress.pace import Phase
from headrace.trainer.progress.progress import Progress
from headrace.trainer.step_record import batch_recipe, loop_metrics, make_step
from headrace.trainer.weights.publish import upload
from headrace.trainer.weights.store import ObjectStore

_log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


async def run_trainer(
    config: TrainerConfig,
    *,
    stop: asyncio.Event,
    ready: Callable[[], None],
    reached: Reached = tell_nobody,
    progress: Progress | None = None,
) -> None:
    """Train until ``stop``; after ``config.steps`` steps wait for it. Without a ``progress`` the log has a line a step.

    Raises :class:`CheckpointError` where checkpoints and log do not belong together, ``TrainerReplaced`` where another
    trainer of the run has started, :class:`TrainingDiverged` (after an alert) where the loss is no longer a number.
    """
    torch.set_num_threads(config.threads)
    progress = progress or Progress([Lines()])
    with exclusive(config.checkpoint_dir):
        checkpoint = load_newest(config.checkpoint_dir, config.run)
        learner = await asyncio.to_thread(_open_learner, config, checkpoint)
        async with (
            open_announcer(config.bootstrap, config.run) as announcer,
            open_intake(config.bootstrap, run=config.run, window=config.duplicate_window) as intake,
        ):
            trainer = Trainer(config, learner, announcer, intake, ObjectStore(config.store_url), reached, progress)
            try:
                await trainer.resume(checkpoint)
                ready()
                while not stop.is_set() and (config.steps is None or trainer.version < config.steps):
                    await trainer.step(stop)
                progress.enter(Phase.DONE)
                await stop.wait()
            finally:
                await trainer.close()


def _open_learner(config: TrainerConfig, checkpoint: Checkpoint | None) -> Learner:
    """A learner that goes on from ``checkpoint``, or begins with the base model."""
    model_dir = checkpoint.model_dir if checkpoint else config.model_dir
    model = load_model(model_dir, device=config.device, dtype=config.dtype)
    prepare_layers(model, config.layers)
    reference = None
    if config.kl.needs_base:
        reference = load_model(config.model_dir, device=config.device, dtype=config.dtype)
    learner = Learner(model, config, reference)
    if checkpoint:
        learner.read_optimizer(checkpoint.optimizer_dir)
    return learner


class Trainer:
    """One run's position, and what moves it on."""

    def __init__(
        self,
        config: TrainerConfig,
        learner: Learner,
        announcer: Announcer,
        intake: Intake,
        store: ObjectStore,
        reached: Reached,
        progress: Progress,
    ) -> None:
        """A trainer that has not taken up position: :meth:`resume` comes first."""
        self.version = 0
        self._config = config
        self._learner = learner
        self._announcer = announcer
        self._intake = intake
        self._store = store
        self._reached = reached
        self._progress = progress
        self._offsets: dict[int, int] = {}
        self._alarms: dict[str, int] = {}
        # One thread for torch: each thread that calls it would hold a team of workers of its own.
        self._torch = ThreadPoolExecutor(1, thread_name_prefix="torch")
        rules = AdmissionRules(
            run=config.run,
            max_staleness=config.max_staleness,
            vocabulary_size=vocabulary_size(learner.model),
            max_positions=longest_sequence(learner.model),
            bounds=config.admission,
        )
        self._gatherer = Gatherer(intake, announcer, rules, progress, groups_per_step=config.groups_per_step)

    async def resume(self, checkpoint: Checkpoint | None) -> None:
        """Go on from ``checkpoint``, or begin with version 0, and say what the log does not know yet."""
        known = await newest_announced(self._config.bootstrap, self._config.run)
        if checkpoint is None:
            if known is not None:
                raise CheckpointError(
                    f"the log knows version {known} of run {self._config.run!r} and checkpoint_dir "
                    f"{self._config.checkpoint_dir} is empty: restore the checkpoints or choose another run"
                )
            self._progress.enter(Phase.SAVING)
            checkpoint = await self._or_alert(
                self._in_thread(
                    save_checkpoint, self._learner, self._config, self._store, version=0, offsets={}, alarms={}, said=[]
                ),
                [],
            )
        self.version, self._offsets = checkpoint.state.version, dict(checkpoint.state.offsets)
        self._alarms = checkpoint.state.alarms
        unsaid = self.version - (-1 if known is None else known)
        if unsaid not in (0, 1):
            raise CheckpointError(
                f"the newest usable checkpoint in {self._config.checkpoint_dir} is of version {self.version}, the "
                f"log knows version {known} of run {self._config.run!r}: they do not belong together; restore "
                "the missing checkpoint, or choose another run"
            )
        await self._publish(checkpoint, announce=unsaid == 1)
        # Said at every start: the settings may have changed since the log was told.
        await self._announcer.announce([announcement(budget_at(self.version, self._config), run=self._config.run)])
        await self._intake.start(self._offsets)
        self._progress.begin(self.version, self._config.groups_per_step)
        _log.info("run %s goes on from version %d", self._config.run, self.version)

    async def step(self, stop: asyncio.Event) -> None:
        """One step, from gathering to announcing. A ``stop`` while gathering leaves everything as it was."""
        self._progress.enter(Phase.WAITING)
        gathered = await self._gatherer.gather(self._offsets, self.version, stop)
        if gathered is None:
            return
        version = self.version + 1
        if version != self._config.steps:
            self._gatherer.look_ahead(self.version)
        groups = prepare_groups(gathered.groups, batch_recipe(self._config), step=version)
        batch = make_batch(groups)
        self._progress.enter(Phase.TRAINING)
        metrics = await self._or_alert(self._in_thread(self._learner.step, batch, self.version), groups)
        metrics |= loop_metrics(gathered, metrics, self._progress.since_s, self._progress.last_s)
        self._reached(Effect.TRAINED, version)
        step = make_step(self._config, version, groups, batch, metrics)
        alerts, alarms = watch(metrics, self._alarms, self._config.alarms, run=self._config.run, step=version)
        news: list[Step | Budget | Alert] = [step, budget_at(version, self._config), *alerts]
        self._progress.enter(Phase.SAVING)
        checkpoint = await self._or_alert(
            self._in_thread(
                save_checkpoint,
                self._learner,
                self._config,
                self._store,
                version=version,
                offsets=gathered.offsets,
                alarms=alarms,
                said=[*(announcement(each, run=self._config.run) for each in news), *gathered.said],
                told=lambda effect: self._reached(effect, version),
            ),
            groups,
        )
        await self._publish(checkpoint, announce=True)
        self.version, self._offsets, self._alarms = version, gathered.offsets, alarms
        self._progress.stepped(version, metrics)

    async def close(self) -> None:
        """Let go of what was begun and not told."""
        await self._gatherer.close()

    async def _publish(self, checkpoint: Checkpoint, *, announce: bool) -> None:
        """Upload the version and tell of it; what stands already stays."""
        self._progress.enter(Phase.PUBLISHING)
        await upload(self._store, checkpoint.manifest(), checkpoint.weights)
        self._reached(Effect.UPLOADED, checkpoint.state.version)
        if announce:
            await self._announcer.announce(checkpoint.state.announcements)
            self._reached(Effect.ANNOUNCED, checkpoint.state.version)

    async def _or_alert(self, work: Coroutine[Any, Any, T], groups: Sequence[AdmittedGroup]) -> T:
        """The result of ``work``; where training diverged, an alert that names its groups, and the error."""
        try:
            return await work
        except TrainingDiverged as error:
            alert = trainer_alert(
                "training_diverged", str(error), run=self._config.run, version=self.version, groups=groups
            )
            await self._announcer.announce([alert])
            raise

    async def _in_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run what takes long beside the event loop, so that the Kafka clients stay alive."""
        return await asyncio.get_running_loop().run_in_executor(self._torch, partial(function, *args, **kwargs))
