"""Steers one engine to the version that it should serve; without Kafka, which the process around it reads and writes.

It compares with the version that the engine reports, not with earlier actions, so that one rule covers a new version,
an engine that was restarted and a follower that was killed in the middle of a swap. The decisions are functions over
values: ``versions.py``, ``trust.py``, ``verdict.py``.
"""

import logging
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_exponential_jitter

from headrace.schemas.ids import derived_id, uuid7
from headrace.schemas.model import Record
from headrace.schemas.objects.store import ObjectMismatch, ObjectStore
from headrace.schemas.objects.unavailable import StoreUnavailable
from headrace.schemas.records.alert import Alert, Severity
from headrace.schemas.records.weights import Applied, Weights
from headrace.schemas.redaction import redacted_address
from headrace.schemas.stamp import Stamp, read_stamp, unverified_stamp
from headrace.schemas.topics import ALERTS, APPLIED, Topic
from headrace.trainer.follower.alerts import (
    CANARY_MISMATCH,
    ENGINE_FAILING,
    ENGINE_TAKEN,
    NO_GOOD_VERSION,
    STORE_FAILING,
    SWAP_REFUSED,
    WEIGHTS_GAP,
    WEIGHTS_MISSING,
    WEIGHTS_UNTRUSTED,
    WEIGHTS_UNUSABLE,
    follower_alert,
    record_alert_id,
)
from headrace.trainer.follower.config import FollowerConfig
from headrace.trainer.follower.engine import VersionRefused, VllmEngine, VllmEngineError
from headrace.trainer.follower.memory import write_memory
from headrace.trainer.follower.swap import release_unverified, score_canaries, swap
from headrace.trainer.follower.trust import leaves_a_gap, problem_with
from headrace.trainer.follower.verdict import LogprobRows, SwapEvidence, SwapVerdict, judge_swap, rms, rows_of
from headrace.trainer.follower.versions import (
    KnownVersions,
    add_version,
    mark_absent,
    mark_fetched,
    refuse,
    target_version,
)
from headrace.trainer.follower.weight_cache import LocalWeights, drop_old, fetch_weights

_UNTRUSTED_ALERTS = 10
"""Untrusted records for which a process publishes an alert each; further ones are only logged."""

_FIRST_RETRY_S, _LONGEST_RETRY_S = 1.0, 15.0
"""First and longest wait before missing objects are fetched again; each wait is twice the one before."""

logger = logging.getLogger(__name__)


Announce = Callable[[Topic, Record, str], Awaitable[None]]
"""Sends a record under an id to a topic, and returns once the broker has acknowledged it."""


@dataclass(frozen=True, slots=True)
class MissingObjects:
    """Objects of a version that are missing in the store."""

    since: float
    """Monotonic time at which they were first missing."""
    wait_s: float
    """Seconds between the last two attempts."""
    retry_at: float
    """Monotonic time of the next attempt."""


@dataclass(slots=True)
class Follower:
    """One engine and the known versions of its run. :meth:`reconcile` is called repeatedly."""

    config: FollowerConfig
    """Settings."""
    engine: VllmEngine
    """The engine."""
    announce: Announce
    """Sends records to ``applied`` and ``alerts``."""
    versions: KnownVersions
    """The known versions of the run; :meth:`consider` adds announced ones."""
    verified: str | None = None
    """Manifest hash of the served version, once this process has verified it; ``None`` if it must be verified."""
    reference: LocalWeights | None = None
    """The last version that this process verified."""
    usual: float | None = None
    """Smallest distance (nats, root mean square) of this engine from the trainer's log-probabilities so far."""
    failing_since: float | None = None
    """Monotonic time since which engine or store has been failing."""
    alerted: set[str] = field(default_factory=set)
    """Kinds of published alerts whose cause still exists."""
    store: ObjectStore | None = None
    """The configured object store, once it is opened."""
    missing: dict[str, MissingObjects] = field(default_factory=dict)
    """Manifest hash → the version's missing objects."""
    untrusted: int = 0
    """Number of untrusted records."""

    async def consider(self, pointer: Weights, place: str) -> None:
        """Add ``pointer``, the record at ``place`` of the log, to the known versions if it is trusted; else alert."""
        problem = problem_with(pointer, self.versions, store_url=self.config.store_url, trust=self.config.trust)
        if problem is not None:
            await self.report_untrusted(place, problem)
            return
        if pointer.sha256 in self.versions.absent:
            logger.info("version %d at %s was missing in the store before: it is skipped", pointer.version, place)
            return
        if leaves_a_gap(pointer, self.versions):
            newest = self.versions.known[-1].version
            message = f"Version {pointer.version} follows version {newest}: the records between are missing in the log."
            await self._alert(WEIGHTS_GAP, message, Severity.WARNING, place=place)
        self.versions = add_version(self.versions, pointer)

    async def report_untrusted(self, place: str, problem: str) -> None:
        """Report that the record at ``place`` of the log is ignored as untrusted."""
        self.untrusted += 1
        message = f"The record at {place} is not followed: {problem}. Find out who wrote it."
        if self.untrusted == _UNTRUSTED_ALERTS:
            message += " Further ones are only logged until the follower is started again."
        if self.untrusted > _UNTRUSTED_ALERTS:
            logger.error("%s", message)
            return
        await self._alert(WEIGHTS_UNTRUSTED, message, place=place)

    async def reconcile(self) -> None:
        """Make the engine serve the target version.

        Transient failures (of the engine or the store) are logged, published as an alert after a while, and retried by
        the next call. A version that cannot be served is refused with an alert, and the next best one replaces it
        immediately.
        """
        try:
            while not await self._step():
                pass
        except VllmEngineError as error:
            self.verified = None
            await self._failing(ENGINE_FAILING, f"vLLM at {redacted_address(self.config.engine_url)}", error)
        except (StoreUnavailable, OSError) as error:
            await self._failing(STORE_FAILING, "the object store of the weights", error)
        else:
            self.failing_since = None
            self.alerted -= {ENGINE_FAILING, STORE_FAILING}

    async def _step(self) -> bool:
        """Make one step towards the target; returns whether nothing is left to do."""
        now = time.monotonic()
        stamp = read_stamp(await self.engine.served())
        is_foreign = stamp.run not in (None, self.config.run)
        if is_foreign and stamp.run != self.config.take_over:
            return await self._leave_alone(stamp)
        self.alerted.discard(ENGINE_TAKEN)
        # A version stamped without a run is no known version.
        served = stamp.version if stamp.run == self.config.run else None
        # Available versions come first; only then are missing ones tried again.
        pointer = target_version(self.versions, self.missing)
        if pointer is None or (served == pointer.version and self.verified == pointer.sha256):
            pointer = target_version(
                self.versions, [sha256 for sha256, each in self.missing.items() if each.retry_at > now]
            )
        if pointer is not None and served == pointer.version and self.verified == pointer.sha256:
            return True
        if is_foreign and pointer is None:
            return True  # taken over once there is a version to serve
        # The served version is unverified: there is a new version, or the engine or this process was restarted.
        if await self.engine.is_paused():
            # A follower died in the middle of a swap. Release the waiting requests; a new swap comes next.
            self.verified = None
            await release_unverified(self.engine, self.config.run)
            served, stamp = None, Stamp(self.config.run)
        if pointer is None:
            self.verified = None
            return await self._without_target(stamp)
        try:
            local = await self._fetch(pointer)
        except FileNotFoundError as error:
            return await self._postpone(pointer, error)
        except (ObjectMismatch, ValueError) as error:
            return await self._refuse(pointer, WEIGHTS_UNUSABLE, f"the weights cannot be used: {error}")
        self.missing.pop(pointer.sha256, None)
        self.versions = mark_fetched(self.versions, pointer)
        self.verified = None
        if stamp.run != self.config.run:
            # Claims the engine for this run: other runs' followers leave it alone. Tokens name no version yet.
            await self.engine.label(unverified_stamp(self.config.run))
        try:
            return await self._apply(local, served=served)
        except VersionRefused as error:
            return await self._refuse(pointer, SWAP_REFUSED, f"the engine refused it: {error}")

    async def _apply(self, local: LocalWeights, *, served: int | None) -> bool:
        """Make the engine serve ``local``; if ``served`` is this version already, verify that first."""
        pointer, canaries = local.pointer, local.manifest.canaries
        new = rows_of([canary.logprobs for canary in canaries])
        tolerance, noise = self.config.canary_bounds(local.manifest.dtype)
        old = self._reference(local, served)
        before = await score_canaries(self.engine, canaries, 1 if old is None else 2)
        if old is not None and max(rms(each - old) for each in before) > tolerance:
            old = None  # the engine serves other weights than its stamp claims
        if served == pointer.version and rms(before[0] - new) <= noise:
            figures = float(np.nanmax(np.abs(before[0] - new))), rms(before[0] - new)
            return await self._accept(
                local, SwapVerdict(None, figures[1], figures[0], SwapEvidence.DISTANCE), swap_s=0.0
            )
        if self.reference is None or self.reference.pointer.version != served:
            self.usual = None  # the engine was restarted, perhaps with other settings
        swap_s = await swap(self.engine, pointer.run, pointer.version, local.file, local.sha256)
        try:
            after = await score_canaries(self.engine, canaries, len(before))
        except VllmEngineError:
            # The engine may keep sampling from unverified weights.
            with suppress(VllmEngineError):
                if await self._is_stamped(pointer):
                    await self.engine.label(unverified_stamp(pointer.run))
            raise
        verdict = judge_swap(
            new, before, after, old=old, exact=local.manifest.exact, usual=self.usual, tolerance=tolerance, noise=noise
        )
        if verdict.problem is None:
            return await self._accept(local, verdict, swap_s=swap_s)
        if not await self._is_stamped(pointer):
            # The engine was restarted or claimed during the comparison, which is void: the next call checks again.
            return True
        return await self._refuse(
            pointer,
            CANARY_MISMATCH,
            verdict.problem,
            canary_max_error=verdict.max_error if math.isfinite(verdict.max_error) else None,
            canary_rms_error=verdict.rms_error if math.isfinite(verdict.rms_error) else None,
            canary_position=verdict.position,
            canary_position_error=verdict.position_error,
        )

    def _reference(self, local: LocalWeights, served: int | None) -> LogprobRows | None:
        """Returns the trainer's log-probabilities under the version that the engine stamps; ``None`` if they are
        unknown, or if that version has the same weights."""
        canaries = local.manifest.canaries
        if served is None or served == local.pointer.version:
            return None
        if self.reference is not None and self.reference.pointer.version == served:
            if self.reference.sha256 == local.sha256:
                return None
            known = {bytes(each.token_ids): each.logprobs for each in self.reference.manifest.canaries}
            found = [known.get(bytes(each.token_ids)) for each in canaries]
        elif served == local.pointer.parent:
            found = [each.parent_logprobs for each in canaries]
        else:
            return None
        rows = [each for each in found if each is not None]
        return rows_of(rows) if len(rows) == len(canaries) else None

    async def _accept(self, local: LocalWeights, verdict: SwapVerdict, *, swap_s: float) -> bool:
        """Acknowledge a served and verified version; returns ``True``: nothing is left to do.

        ``swap_s`` is 0 if it was served already; then ``applied`` gets a record only if none was published before.
        """
        pointer = local.pointer
        if swap_s > 0 or self.versions.good != pointer.version:
            applied = Applied(
                run=pointer.run,
                engine=self.config.engine,
                version=pointer.version,
                download_s=local.download_s,
                swap_s=swap_s,
                canary_max_error=verdict.max_error,
                canary_rms_error=verdict.rms_error,
                canary_evidence=verdict.evidence,
                canary_position=verdict.position,
                canary_position_error=verdict.position_error,
            )
            # Each swap gets a record of its own, also that of a version which was served before.
            await self.announce(APPLIED, applied, uuid7())
        self.verified = pointer.sha256
        self.reference = local
        self.usual = verdict.rms_error if self.usual is None else min(self.usual, verdict.rms_error)
        if self.versions.good != pointer.version:
            self.versions = replace(self.versions, good=pointer.version)
            self._remember()
        self.alerted -= {NO_GOOD_VERSION, WEIGHTS_MISSING}
        drop_old(self.config.cache_dir, self.config.keep_versions, needed=[local.file])
        logger.info(
            "serving version %d: paused for %.3f s, error %.2g nats, accepted by %s",
            pointer.version, swap_s, verdict.rms_error, verdict.evidence,
        )  # fmt: skip
        return True

    async def _fetch(self, pointer: Weights) -> LocalWeights:
        """Returns the version on disk; corrupt objects are fetched again before the version counts as unusable."""
        if self.store is None:
            self.store = ObjectStore(self.config.store_url)
        async for attempt in AsyncRetrying(
            # Missing objects are retried by `_postpone`, while another version is served.
            retry=retry_if_exception(
                lambda error: (
                    isinstance(error, ObjectMismatch | StoreUnavailable | OSError)
                    and not isinstance(error, FileNotFoundError)
                )
            ),
            stop=stop_after_attempt(self.config.fetch_attempts),
            wait=wait_exponential_jitter(multiplier=0.1, max=2.0),
            reraise=True,
        ):
            with attempt:
                return await fetch_weights(pointer, self.store, self.config.cache_dir)
        raise AssertionError("tenacity gives a value or raises")

    async def _postpone(self, pointer: Weights, error: FileNotFoundError) -> bool:
        """Postpone a version with missing objects, or refuse it after ``fetch_patience_s``; returns ``False``."""
        now = time.monotonic()
        before = self.missing.get(pointer.sha256)
        since = before.since if before else now
        if now - since >= self.config.fetch_patience_s:
            del self.missing[pointer.sha256]
            problem = f"the weights were missing for {now - since:.0f} s: {error}"
            return await self._refuse(pointer, WEIGHTS_UNUSABLE, problem, refused=mark_absent)
        wait_s = min(2 * before.wait_s, _LONGEST_RETRY_S) if before else _FIRST_RETRY_S
        self.missing[pointer.sha256] = MissingObjects(since, wait_s, now + wait_s)
        logger.warning("version %d: %s; missing for %.0f s, trying again", pointer.version, error, now - since)
        if now - since >= self.config.failing_after_s and WEIGHTS_MISSING not in self.alerted:
            self.alerted.add(WEIGHTS_MISSING)
            message = (
                f"Version {pointer.version} is announced, and its objects have been missing for {now - since:.0f} s "
                f"({error}); it is refused after {self.config.fetch_patience_s:.0f} s (fetch_patience_s)."
            )
            await self._alert(WEIGHTS_MISSING, message, Severity.WARNING)
        return False

    async def _refuse(
        self,
        pointer: Weights,
        kind: str,
        problem: str,
        *,
        refused: Callable[[KnownVersions, Weights], KnownVersions] = refuse,
        **figures: float | None,
    ) -> bool:
        """Refuse the version for good, with an alert; returns ``False``: the engine needs another version."""
        if await self._is_stamped(pointer):
            await self.engine.label(unverified_stamp(pointer.run))
        self.versions = refused(self.versions, pointer)
        instead = target_version(self.versions)
        remedy = "no version is left to serve" if instead is None else f"version {instead.version} is served instead"
        message = f"Version {pointer.version}: {problem}; {remedy}."
        details = {"version": pointer.version, "manifest_sha256": pointer.sha256, **figures}
        alert = follower_alert(self.config, kind, message, Severity.CRITICAL, details)
        logger.error("%s", alert.message)
        await self.announce(ALERTS, alert, derived_id(Alert.TYPE, kind, alert.run, alert.source, pointer.sha256))
        self._remember()  # after the alert: a follower that dies in between publishes it again, with the same id
        return False

    def _remember(self) -> None:
        """Store the refused and served versions for the next process."""
        try:
            write_memory(self.config.cache_dir, self.config.run, self.config.engine, self.versions)
        except OSError as error:
            logger.warning(
                "refused and served versions cannot be stored: %s; a restarted follower tries them again", error
            )

    async def _is_stamped(self, pointer: Weights) -> bool:
        """Whether the engine stamps tokens as this version's."""
        return read_stamp(await self.engine.served()) == Stamp(pointer.run, pointer.version)

    async def _leave_alone(self, stamp: Stamp) -> bool:
        """Alert that the engine serves another run; returns ``True``: it is left alone as long as it does."""
        self.verified = None
        if ENGINE_TAKEN not in self.alerted:
            self.alerted.add(ENGINE_TAKEN)
            run = self.config.run
            message = (
                f"vLLM at {redacted_address(self.config.engine_url)} serves run {stamp.run!r}, and this follower is of "
                f"run {run!r}: the engine is left alone, so nothing samples for {run!r} there. Give each run an engine "
                f"of its own. If {stamp.run!r} is over, stop its follower and restart the engine, or set "
                f"take_over={stamp.run!r} for this follower."
            )
            logger.error("%s", message)
            await self._alert(ENGINE_TAKEN, message)
        return True

    async def _without_target(self, stamp: Stamp) -> bool:
        """Leave the engine running without a version to serve; its tokens are stamped as unverified."""
        if stamp.version is not None:
            await self.engine.label(unverified_stamp(self.config.run))
        if self.versions.known and NO_GOOD_VERSION not in self.alerted:
            self.alerted.add(NO_GOOD_VERSION)
            await self._alert(
                NO_GOOD_VERSION,
                f"Every known version of run {self.config.run!r} was refused: what {self.config.engine} samples names "
                "no version and will not be trained. Publish a new version.",
            )
        return True

    async def _failing(self, kind: str, what: str, error: Exception) -> None:
        now = time.monotonic()
        self.failing_since = now if self.failing_since is None else self.failing_since
        failing_s = now - self.failing_since
        logger.warning("%s has been failing for %.1f s: %s", what, failing_s, error)
        if failing_s >= self.config.failing_after_s and kind not in self.alerted:
            self.alerted.add(kind)
            message = f"{what} has been failing for {failing_s:.0f} s ({error}); still trying. Check that it runs."
            await self._alert(kind, message)

    async def _alert(
        self, kind: str, message: str, severity: Severity = Severity.CRITICAL, *, place: str | None = None
    ) -> None:
        """Publish an alert; about the record at ``place`` of the log only one, also after a restart."""
        id = uuid7() if place is None else record_alert_id(kind, self.config, place)
        await self.announce(ALERTS, follower_alert(self.config, kind, message, severity), id)
