"""The trainer's loop: reads groups, publishes steps and weights.

    gather → train → checkpoint → upload → announce → gather …

State is durable before it is published. A trainer that dies at any of the arrows resumes from its newest checkpoint and
the position next to it: it publishes those of their announcements that the log lacks. Anything else was never
published, and its groups are read again. So no group is trained twice and none is lost. A step that diverges is rolled
back in the same way: the checkpoint is loaded again, and the step's groups are rejected.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import ParamSpec, TypeVar

import torch

from headrace.schemas.objects.store import ObjectStore
from headrace.schemas.records.alert import Alert
from headrace.schemas.records.group import Reason
from headrace.schemas.records.step import Budget, Step
from headrace.schemas.records.weights import Weights
from headrace.trainer.admission.admission import AdmissionRules
from headrace.trainer.admission.budget import budget_at
from headrace.trainer.admission.intake import Intake, open_intake
from headrace.trainer.admission.pause_reader import PauseReader, open_pause_reader
from headrace.trainer.announcements.announcement import PublishedPosition, announcement
from headrace.trainer.batches.batch import make_batch
from headrace.trainer.batches.recipe import prepare_groups
from headrace.trainer.checkpoints.checkpoint import Checkpoint, CheckpointError, exclusive, load_newest
from headrace.trainer.checkpoints.position import Position, position_of, read_position
from headrace.trainer.checkpoints.save import save_checkpoint
from headrace.trainer.config import TrainerConfig as TrainerConfig
from headrace.trainer.coordination.follow import follow
from headrace.trainer.coordination.lead import Leader
from headrace.trainer.learning.alarms import watch
from headrace.trainer.learning.divergence import TrainingDiverged, norm_limit, with_norm
from headrace.trainer.learning.learner import Learner
from headrace.trainer.learning.plausibility import ImplausibleLogprobs
from headrace.trainer.model.load import longest_sequence, vocabulary_size
from headrace.trainer.parallel.ranks import ALONE, Ranks
from headrace.trainer.progress.lines import Lines
from headrace.trainer.progress.pace import Phase
from headrace.trainer.progress.progress import Progress
from headrace.trainer.publishing.announcer import Announcer, newest_published
from headrace.trainer.publishing.publisher import Publisher
from headrace.trainer.retries.retrier import Retrier
from headrace.trainer.retries.retry import Interrupted
from headrace.trainer.step_effects import Effect, StepEffectCallback, ignore_effect
from headrace.trainer.steps.gather import Gathered, Gatherer
from headrace.trainer.steps.rejections import skipped, without_members
from headrace.trainer.steps.step_record import loop_metrics, make_step
from headrace.trainer.weights.signing import SigningKey, is_signed_by, load_or_create_key

_log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


async def run_trainer(
    config: TrainerConfig,
    *,
    stop: asyncio.Event,
    ready: Callable[[], None],
    reached: StepEffectCallback = ignore_effect,
    progress: Progress | None = None,
    ranks: Ranks = ALONE,
) -> None:
    """Train until ``stop``; after ``config.steps`` steps wait for it. By default progress is logged, a line per step.

    Of several ``ranks``, rank 0 runs the loop; the others follow its orders and ignore ``stop``. All raise ``RankLost``
    if one of them ends. Raises :class:`CheckpointError` if checkpoints and log do not belong together,
    ``TrainerReplaced`` if another trainer of the run has started, :class:`TrainingDiverged` (after an alert) if too
    many consecutive steps were skipped; ``CheckpointNotWritten``, ``StoreUnavailable`` and ``LogUnavailable`` if a
    disk, the object store or the broker was unavailable for longer than ``config.outages`` allows; ``StoreUnsuitable``
    if the object store overwrites existing objects.
    """
    torch.set_num_threads(config.threads)
    torch.manual_seed(config.seed)  # torch's own initial seed is random
    if not ranks.leads:
        ready()
        return await asyncio.to_thread(follow, config.learner, ranks)
    progress = progress or Progress([Lines()])
    leader = Leader(ranks)
    with exclusive(config.checkpoint_dir), suppress(Interrupted):
        checkpoint = load_newest(config.checkpoint_dir, config.run)
        key = load_or_create_key(config.signing_key_file)
        async with leader.heartbeats():
            learner = await asyncio.to_thread(
                leader.open_learner, config.learner, checkpoint.path if checkpoint else None
            )
            answer_s = config.outages.answer_s
            async with AsyncExitStack() as stack:
                announcer = Announcer(config.bootstrap, config.run, answer_s=answer_s)
                stack.push_async_callback(announcer.close)
                retrier = Retrier(config.outages, announcer.announce, stop, progress, run=config.run)
                stack.push_async_callback(retrier.close)
                is_own = own_versions(checkpoint, key)
                # Checked before the run is claimed, because a claim fences the run's current trainer. And checked
                # again before the claim is committed, because another trainer may have begun the run meanwhile.
                published = await retrier.for_log(
                    lambda: newest_published(config.bootstrap, config.run, is_trusted=is_own, takes_over=False)
                )
                require_consistent(checkpoint, published, config)
                await retrier.for_log(
                    lambda: announcer.open(lambda known: require_consistent(checkpoint, known, config))
                )
                intake = await retrier.for_log(
                    lambda: stack.enter_async_context(
                        open_intake(
                            config.bootstrap,
                            run=config.run,
                            window=config.duplicate_window,
                            answer_s=answer_s,
                            retry=retrier.for_log,
                        )
                    )
                )
                pauses = await retrier.for_log(
                    lambda: stack.enter_async_context(
                        open_pause_reader(config.bootstrap, run=config.run, answer_s=answer_s, retry=retrier.for_log)
                    )
                )
                store = ObjectStore(config.store_url)
                publisher = Publisher(announcer, store, retrier, reached)
                trainer = Trainer(config, leader, learner, intake, pauses, publisher, store, key, reached, progress)
                published = await retrier.for_log(
                    lambda: newest_published(config.bootstrap, config.run, is_trusted=is_own)
                )
                try:
                    await trainer.resume(checkpoint, published)
                    ready()
                    while not stop.is_set() and (config.steps is None or trainer.version < config.steps):
                        await trainer.step(stop)
                    progress.enter(Phase.DONE)
                    await stop.wait()
                finally:
                    await trainer.close()


def require_consistent(
    checkpoint: Checkpoint | None, published: PublishedPosition | None, config: TrainerConfig
) -> None:
    """Raises :class:`CheckpointError` if the newest ``checkpoint`` does not belong to the run whose last published
    position is ``published``: it is missing, or older, or newer by more than one version."""
    if checkpoint is None:
        if published is not None:
            raise CheckpointError(
                f"the log holds version {published.version} of run {config.run!r} and checkpoint_dir "
                f"{config.checkpoint_dir} is empty: restore the checkpoints or choose another run"
            )
        return
    if checkpoint.state.version - (-1 if published is None else published.version) not in (0, 1):
        raise CheckpointError(
            f"the newest usable checkpoint in {config.checkpoint_dir} is of version {checkpoint.state.version}, "
            f"the log holds version {published and published.version} of run {config.run!r}: they do not belong "
            "together; restore the missing checkpoint, or choose another run"
        )


def own_versions(checkpoint: Checkpoint | None, key: SigningKey) -> Callable[[Weights], bool]:
    """Returns which ``Weights`` records are the run's own: those signed with ``key`` or with the key of ``checkpoint``.

    Without a checkpoint all records count: a run is not begun if its name is in use by any producer.
    """
    if checkpoint is None:
        return lambda weights: True
    before = checkpoint.state.pointer()
    keys = {key.public, before.signed_by if before else ""}
    return lambda weights: any(is_signed_by(weights, each) if each else not weights.signature for each in keys)


class Trainer:
    """Advances one run, step by step."""

    def __init__(
        self,
        config: TrainerConfig,
        leader: Leader,
        learner: Learner,
        intake: Intake,
        pauses: PauseReader,
        publisher: Publisher,
        store: ObjectStore,
        key: SigningKey,
        reached: StepEffectCallback,
        progress: Progress,
    ) -> None:
        """A trainer without a position: call :meth:`resume` first."""
        self._config = config
        self._leader = leader
        self._learner = learner
        self._intake = intake
        self._pauses = pauses
        self._publisher = publisher
        self._store = store
        self._key = key
        self._reached = reached
        self._progress = progress
        self._checkpoint: Checkpoint
        self._position: Position
        # One thread for torch: each thread that calls it would hold its own pool of workers.
        self._torch = ThreadPoolExecutor(1, thread_name_prefix="torch")
        rules = AdmissionRules(
            run=config.run,
            max_staleness=config.max_staleness,
            vocabulary_size=vocabulary_size(learner.model),
            max_positions=longest_sequence(learner.model),
            bounds=config.admission,
        )
        self._gatherer = Gatherer(
            intake,
            rules,
            self._commit_position,
            progress,
            groups_per_step=config.groups_per_step,
            paused_now=pauses.current,
        )

    @property
    def version(self) -> int:
        """The policy version that is trained next."""
        return self._position.version

    async def resume(self, checkpoint: Checkpoint | None, published: PublishedPosition | None) -> None:
        """Resume from ``checkpoint``, or begin with version 0, and publish what the log, at ``published``, lacks."""
        config = self._config
        require_consistent(checkpoint, published, config)
        if checkpoint is None:
            checkpoint = await self._save_base()
        ahead = checkpoint.state.version - (-1 if published is None else published.version)
        self._checkpoint, self._position = checkpoint, read_position(checkpoint, published, config.sha256())
        unpublished = published is None or self._position.as_published > published
        await self._publisher.decide(commit=not unpublished)
        if ahead:
            await self._publisher.publish(checkpoint)
        elif checkpoint.state.version == 0:
            # The log's version 0 may be another trainer's, if both began the run: both must be equal then.
            await self._publisher.upload(checkpoint)
        if unpublished:
            await self._publisher.publish_position(self._position)
        # Published at every start: the settings may have changed since.
        news: list[Budget | Weights] = [budget_at(self.version, config.budget)]
        pointer = checkpoint.state.pointer()
        if pointer is not None and pointer.signed_by != self._key.public:
            news.append(self._key.sign(pointer))  # with a new key, because followers stop trusting the old one
        await self._publisher.publish_all([announcement(each, run=config.run) for each in news])
        self._stop_if_diverged()
        await self._pauses.start()
        await self._intake.start(self._position.offsets)
        self._progress.begin(self.version, config.groups_per_step)
        _log.info("run %s resumes from version %d", config.run, self.version)

    async def step(self, stop: asyncio.Event) -> None:
        """Make one step, from gathering to announcing. A ``stop`` while gathering leaves the state unchanged."""
        self._progress.enter(Phase.WAITING)
        gathered = await self._gatherer.gather(self._position, stop)
        if gathered is None:
            return
        settings, tries = self._config.divergence, 0
        if gathered.position.attempts > settings.max_attempts:
            why = f"{settings.max_attempts} processes died while they trained them, by a signal or out of memory"
            await self._skip(gathered, Reason.CRASHED, why)
            return
        if self.version + 1 != self._config.steps:
            self._gatherer.prefetch(self.version)
        while isinstance(made := await self._train(gathered), TrainingDiverged):
            tries += 1
            _log.warning("%s; the step is rolled back", made)
            del self._learner  # before the next one is loaded: memory may hold only one
            self._learner = await self._in_thread(
                self._leader.open_learner, self._config.learner, self._checkpoint.path
            )
            if tries > settings.retries:
                await self._skip(gathered, Reason.DIVERGED, f"{made}, tried {tries} times")
                return
        if isinstance(made, ImplausibleLogprobs):
            # The next step begins with the remaining members, and with other groups for those without any.
            await self._commit_position(
                without_members(gathered.position, gathered.groups, made.trajectories, run=self._config.run)
            )
            return
        checkpoint, step = made
        self._progress.enter(Phase.PUBLISHING)
        await self._publisher.publish(checkpoint)
        self._checkpoint, self._position = checkpoint, self._begin(checkpoint)
        self._progress.stepped(step.version, step.metrics)

    async def close(self) -> None:
        """Cancel work that was begun and not published."""
        await self._gatherer.close()

    async def _train(self, gathered: Gathered) -> tuple[Checkpoint, Step] | TrainingDiverged | ImplausibleLogprobs:
        """Train and save a step on the groups; returns an error if the step diverged or members are implausible."""
        config, version, before = self._config, self.version + 1, self._checkpoint.state
        batch = make_batch(
            prepare_groups(gathered.groups, config.recipe, step=version),
            max_hinted_turns=config.recipe.max_hinted_turns,
        )
        norms = before.norms_under(config.sha256())
        limit = norm_limit(norms, config.divergence, max_grad_norm=config.max_grad_norm)
        self._progress.enter(Phase.TRAINING)
        try:
            metrics = await self._in_thread(self._learner.step, batch, self.version, norm_limit=limit)
            metrics |= loop_metrics(
                gathered,
                metrics,
                train_s=self._progress.since_s,
                since_step_s=self._progress.since_step_s,
                before_s=self._progress.newest_s,
            )
            self._reached(Effect.TRAINED, version)
            step = make_step(
                version,
                gathered.groups,
                batch,
                metrics,
                run=config.run,
                config_sha256=config.sha256(),
                recipe=config.recipe,
            )
            alerts, alarms = watch(metrics, before.alarms, config.alarms, run=config.run, step=version)
            news: list[Step | Budget | Alert] = [step, budget_at(version, config.budget), *alerts]
            write = partial(
                save_checkpoint,
                self._learner,
                config.checkpoints,
                self._store,
                self._key,
                version=version,
                offsets=gathered.offsets,
                alarms=alarms,
                grad_norms=with_norm(norms, metrics["grad_norm"], config.divergence),
                announcements=[announcement(each, run=config.run) for each in news],
                parent=self._checkpoint.manifest(),
                on_effect=lambda effect: self._reached(effect, version),
            )
            self._progress.enter(Phase.SAVING)
            checkpoint = await self._publisher.save(partial(self._in_thread, write), version)
        except (TrainingDiverged, ImplausibleLogprobs) as error:
            return error.with_traceback(None)  # its frames would keep the learner alive
        return checkpoint, step

    async def _skip(self, gathered: Gathered, reason: Reason, why: str) -> None:
        """Reject the groups and move the position past them."""
        position = skipped(
            gathered.position, gathered.groups, reason, why,
            run=self._config.run, max_skipped=self._config.divergence.max_skipped,
        )  # fmt: skip
        await self._commit_position(position)
        self._stop_if_diverged()

    async def _commit_position(self, position: Position) -> None:
        await self._publisher.commit_position(self._checkpoint, position)
        self._position = position

    def _begin(self, checkpoint: Checkpoint) -> Position:
        return position_of(checkpoint.state).model_copy(update={"config_sha256": self._config.sha256()})

    def _stop_if_diverged(self) -> None:
        if self._position.skipped >= self._config.divergence.max_skipped:
            raise TrainingDiverged(
                f"{self._position.skipped} consecutive steps after version {self.version} were skipped (see the "
                f"alerts); the checkpoint of version {self.version} is unchanged: restart with other settings, such as "
                "a lower learning_rate or a higher max_skipped"
            )

    async def _save_base(self) -> Checkpoint:
        self._progress.enter(Phase.SAVING)
        write = partial(
            save_checkpoint,
            self._learner,
            self._config.checkpoints,
            self._store,
            self._key,
            version=0,
            offsets={},
            alarms={},
            announcements=[],
            on_effect=lambda effect: self._reached(effect, 0),
        )
        return await self._publisher.save(partial(self._in_thread, write), 0)

    async def _in_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a long computation outside the event loop, so that the Kafka clients stay alive."""
        return await asyncio.get_running_loop().run_in_executor(self._torch, partial(function, *args, **kwargs))
