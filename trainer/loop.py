"""The trainer: groups in, steps and weights out.

    gather → train → checkpoint → upload → announce → gather …

What was done is durable before it is said. A trainer that dies at any of the arrows goes on from its newest checkpoint:
what that one holds and the log does not yet know is said then; what it does not hold was never said, and its groups are
read again. So no group is trained twice and none is lost.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ParamSpec, TypeVar

import torch

from headrace.schemas.records import Alert, Reason, Severity, Step, Weights
from headrace.trainer.admission.admission import AdmissionRules, admit, places_to_read
from headrace.trainer.admission.intake import Arrival, Intake, open_intake
from headrace.trainer.announce import Announcement, Announcer, announcement, newest_announced, open_announcer
from headrace.trainer.batches.advantages import scale_advantages, shuffle_advantages
from headrace.trainer.batches.batch import AdmittedGroup, make_batch
from headrace.trainer.checkpoints.checkpoint import (
    Checkpoint,
    CheckpointError,
    CheckpointState,
    CheckpointWriter,
    exclusive,
    load_newest,
)
from headrace.trainer.config import TrainerConfig as TrainerConfig
from headrace.trainer.learning.learner import Learner, TrainingDiverged
from headrace.trainer.model.load import load_model, longest_sequence, vocabulary_size
from headrace.trainer.weights.publish import make_manifest, make_pointer, upload
from headrace.trainer.weights.store import ObjectStore

_log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_POLL_S = 0.2
_MANY_REJECTIONS = 1000
"""Rejections held for the next step's transaction. They may be said earlier: the same version and group give the same
rejection, under the same id, however often a restart says it."""

Reached = Callable[[str, int], None]
"""Told of each arrow passed, with the version: ``trained``, ``checkpointed``, ``uploaded``, ``announced``."""


def _not_told(arrow: str, version: int) -> None:
    """Nobody asked."""


@dataclass(slots=True)
class _Gathered:
    """What a step waits for."""

    groups: list[AdmittedGroup] = field(default_factory=list)
    said: list[Announcement] = field(default_factory=list)
    """Rejections, and alerts of records that could not be read."""
    offsets: dict[int, int] = field(default_factory=dict)
    rejected: int = 0
    wait_s: float = 0.0
    resolve_s: float = 0.0


async def run_trainer(
    config: TrainerConfig, *, stop: asyncio.Event, ready: Callable[[], None], reached: Reached = _not_told
) -> None:
    """Train until ``stop``; after ``config.steps`` steps wait for it.

    Raises :class:`CheckpointError` where checkpoints and log do not belong together, ``TrainerReplaced`` where another
    trainer of the run has started, :class:`TrainingDiverged` (after an alert) where the loss is no longer a number.
    """
    torch.set_num_threads(config.threads)
    with exclusive(config.checkpoint_dir):
        checkpoint = load_newest(config.checkpoint_dir, config.run)
        model_dir = checkpoint.model_dir if checkpoint else config.model_dir
        model = await asyncio.to_thread(load_model, model_dir, device=config.device, dtype=config.dtype)
        reference = None
        if config.kl.needs_base:
            reference = await asyncio.to_thread(load_model, config.model_dir, device=config.device, dtype=config.dtype)
        learner = Learner(model, config, reference)
        if checkpoint:
            learner.restore_optimizer(checkpoint.optimizer_tensors())
        async with (
            open_announcer(config.bootstrap, config.run) as announcer,
            open_intake(config.bootstrap, run=config.run, window=config.duplicate_window) as intake,
        ):
            trainer = Trainer(config, learner, announcer, intake, ObjectStore(config.store_url), reached)
            await trainer.resume(checkpoint)
            ready()
            while not stop.is_set() and (config.steps is None or trainer.version < config.steps):
                await trainer.step(stop)
            await stop.wait()


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
    ) -> None:
        """A trainer that has not taken up position: :meth:`resume` comes first."""
        self.version = 0
        self._config = config
        self._learner = learner
        self._announcer = announcer
        self._intake = intake
        self._advantage_scale = config.chosen_loss().advantage_scale
        self._store = store
        self._reached = reached
        self._offsets: dict[int, int] = {}
        # One thread for torch: each thread that calls it would hold a team of workers of its own.
        self._torch = ThreadPoolExecutor(1, thread_name_prefix="torch")
        self._rules = AdmissionRules(
            run=config.run,
            max_staleness=config.max_staleness,
            vocabulary_size=vocabulary_size(learner.model),
            max_positions=longest_sequence(learner.model),
        )

    async def resume(self, checkpoint: Checkpoint | None) -> None:
        """Go on from ``checkpoint``, or begin with version 0, and say what the log does not know yet."""
        known = await newest_announced(self._config.bootstrap, self._config.run)
        if checkpoint is None:
            if known is not None:
                raise CheckpointError(
                    f"the log knows version {known} of run {self._config.run!r} and checkpoint_dir "
                    f"{self._config.checkpoint_dir} is empty: restore the checkpoints or choose another run"
                )
            checkpoint = await self._or_alert(self._in_thread(self._save, 0, {}, []), [])
        self.version, self._offsets = checkpoint.state.version, dict(checkpoint.state.offsets)
        unsaid = self.version - (-1 if known is None else known)
        if unsaid not in (0, 1):
            raise CheckpointError(
                f"the newest usable checkpoint in {self._config.checkpoint_dir} is of version {self.version}, the "
                f"log knows version {known} of run {self._config.run!r}: they do not belong together; restore "
                "the missing checkpoint, or choose another run"
            )
        await self._say(checkpoint, announce=unsaid == 1)
        await self._intake.start(self._offsets)
        _log.info("run %s goes on from version %d", self._config.run, self.version)

    async def step(self, stop: asyncio.Event) -> None:
        """One step, from gathering to announcing. A ``stop`` while gathering leaves everything as it was."""
        gathered = await self._gather(stop)
        if gathered is None:
            return
        version = self.version + 1
        # The batch's order must not depend on which partition answered first.
        groups = sorted(gathered.groups, key=lambda group: (group.reference.partition, group.reference.offset))
        if self._config.shuffle_advantages:
            groups = shuffle_advantages(groups, seed=self._config.seed, step=version)
        batch = make_batch(scale_advantages(groups, self._advantage_scale))
        started = time.monotonic()
        metrics = await self._or_alert(self._in_thread(self._learner.step, batch, self.version), groups)
        train_s = time.monotonic() - started
        self._reached("trained", version)
        metrics |= {
            "seconds_wait": gathered.wait_s,
            "seconds_resolve": gathered.resolve_s,
            "seconds_train": train_s,
            "tokens_per_second": metrics["tokens_read"] / max(train_s, 1e-9),
            "rejected": float(gathered.rejected),
        }
        step = Step(
            run=self._config.run,
            step=version,
            version=version,
            groups=[group.as_trained() for group in groups],
            config_sha256=self._config.sha256(),
            data_sha256=batch.sha256(),
            metrics=metrics,
        )
        said = [announcement(step, run=self._config.run), *gathered.said]
        checkpoint = await self._or_alert(self._in_thread(self._save, version, gathered.offsets, said), groups)
        self._reached("checkpointed", version)
        await self._say(checkpoint, announce=True)
        self.version, self._offsets = version, gathered.offsets
        _log.info(
            "step %d: %d groups, reward %.3f, loss %.4f, %.2f s training after %.2f s waiting",
            version, len(groups), metrics["reward_mean"], metrics["loss"], train_s, gathered.wait_s,
        )  # fmt: skip

    async def _gather(self, stop: asyncio.Event) -> _Gathered | None:
        """Enough admitted groups for a step and what became of the others; ``None`` where ``stop`` comes first."""
        gathered = _Gathered(offsets=dict(self._offsets))
        while (missing := self._config.groups_per_step - len(gathered.groups)) > 0:
            if stop.is_set():
                return None
            started = time.monotonic()
            arrivals = await self._intake.next_arrivals(missing, timeout_s=_POLL_S)
            gathered.wait_s += time.monotonic() - started
            started = time.monotonic()
            await self._admit(arrivals, gathered)
            gathered.resolve_s += time.monotonic() - started
            # A sampler may be waiting to hear what became of its work before it begins more, and we for that.
            if gathered.said and (not arrivals or len(gathered.said) >= _MANY_REJECTIONS):
                await self._announcer.announce(gathered.said)
                gathered.said.clear()
        return gathered

    async def _admit(self, arrivals: list[Arrival], gathered: _Gathered) -> None:
        groups = [(arrival.reference, arrival.group) for arrival in arrivals if arrival.group is not None]
        places = {place for _, group in groups for place in places_to_read(group, self._rules, self.version)}
        trajectories = await self._intake.resolve(places)
        for reference, group in groups:
            admitted, rejections = admit(group, reference, trajectories, self._rules, self.version)
            gathered.rejected += len(rejections)
            gathered.said += [announcement(rejection, run=self._config.run) for rejection in rejections]
            lost = [rejection.trajectory_id for rejection in rejections if rejection.reason == Reason.UNRESOLVED]
            if lost:
                _log.warning("group %s: no usable record of %s in trajectories", group.group_id, ", ".join(lost))
            if admitted is not None:
                gathered.groups.append(admitted)
        for arrival in arrivals:
            gathered.offsets[arrival.reference.partition] = arrival.reference.offset + 1
            if arrival.problem is not None:
                where = f"training {arrival.reference.partition}:{arrival.reference.offset}"
                gathered.said.append(self._alert("unreadable_group", f"{where} cannot be read: {arrival.problem}"))

    async def _or_alert(self, work: Coroutine[Any, Any, T], groups: list[AdmittedGroup]) -> T:
        """The result of ``work``; where training diverged, an alert that names its groups, and the error."""
        try:
            return await work
        except TrainingDiverged as error:
            await self._announcer.announce([self._alert("training_diverged", str(error), groups)])
            raise

    async def _in_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run what takes long beside the event loop, so that the Kafka clients stay alive."""
        return await asyncio.get_running_loop().run_in_executor(self._torch, partial(function, *args, **kwargs))

    def _save(self, version: int, offsets: dict[int, int], said: list[Announcement]) -> Checkpoint:
        """Make version ``version`` durable, together with all that must be said of it."""
        config = self._config
        writer = CheckpointWriter(config.checkpoint_dir, version)
        weights = writer.write_model(self._learner.model, tokenizer_from=config.model_dir)
        manifest = make_manifest(
            weights,
            run=config.run,
            version=version,
            parent=version - 1 if version else None,
            tensors=len(self._learner.model.state_dict()),
            canaries=self._learner.canaries(seed=version),
        )
        pointer: Weights = make_pointer(self._store, manifest, step=version)
        state = CheckpointState(
            run=config.run,
            version=version,
            offsets=offsets,
            announcements=[*said, announcement(pointer, run=config.run)],
        )
        return writer.commit(state, manifest, self._learner.optimizer_tensors(), keep=config.keep_checkpoints)

    async def _say(self, checkpoint: Checkpoint, *, announce: bool) -> None:
        """Upload the version and tell of it; what stands already stays."""
        await upload(self._store, checkpoint.manifest(), checkpoint.weights)
        self._reached("uploaded", checkpoint.state.version)
        if announce:
            await self._announcer.announce(checkpoint.state.announcements)
            self._reached("announced", checkpoint.state.version)

    def _alert(self, kind: str, message: str, groups: Sequence[AdmittedGroup] = ()) -> Announcement:
        alert = Alert(
            run=self._config.run,
            source="trainer",
            kind=kind,
            severity=Severity.CRITICAL,
            message=message,
            details={"version": self.version, "groups": [group.group_id for group in groups]},
        )
        return announcement(alert, run=self._config.run)
