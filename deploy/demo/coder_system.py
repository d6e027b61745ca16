"""The coder, modelled on Cursor's Composer: it repairs small repositories in sandboxes and summarises its context."""

import logging
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from headrace.agents.coder import vocabulary as words
from headrace.agents.coder.demonstrations import HELD_OUT_FIRST, demonstrations
from headrace.agents.coder.harness import Limits
from headrace.agents.coder.rollouts import AGENT, CODER_TASKS, coder_agent
from headrace.agents.coder.tasks import Task
from headrace.agents.rollouts.attempts import Attempts, PolicyAttempts
from headrace.agents.rollouts.config import RolloutConfig
from headrace.agents.sandbox.local import Local
from headrace.agents.sandbox.overlay import Overlay
from headrace.agents.sandbox.protocol import Provider, ProviderUnavailable
from headrace.deploy.demo.system import Arm, BaseModel, RunningAttempts, System

log = logging.getLogger(__name__)


@asynccontextmanager
async def _provider(kept: Path | None) -> AsyncIterator[Provider]:
    """Provide ``overlay``, or ``local`` where the machine has no namespaces for it; in the folder ``kept``, or in a
    temporary one."""
    with tempfile.TemporaryDirectory(prefix="headrace-sandboxes-") as temporary:
        folder = kept or Path(temporary)
        try:
            provider: Overlay | Local = await Overlay.create(folder)
        except ProviderUnavailable as error:
            # The words of the grammar cannot reach the host; a policy with another vocabulary needs isolation.
            log.warning("sandboxes without isolation, because overlay does not work here: %s", error)
            provider = Local(folder, warn=False)
        try:
            yield provider
        finally:
            provider.store.close()


def _attempts(config: RolloutConfig, limits: Limits | None = None) -> RunningAttempts:
    @asynccontextmanager
    async def running() -> AsyncIterator[Attempts[Task]]:
        async with (
            _provider(config.sandboxes) as provider,
            PolicyAttempts(
                coder_agent(provider, limits, snapshots=config.sandboxes is not None),
                config.bootstrap,
                config.vllm_url,
                run=config.run,
                concurrency=config.concurrency,
            ) as attempts,
        ):
            yield attempts

    return running()


CODER = System(
    name="coder",
    about="a coder that repairs small repositories and summarises its context",
    tasks=CODER_TASKS,
    attempts=_attempts,
    agents=(AGENT,),
    has_sandboxes=True,
    base=Path(__file__).parents[2] / "agents" / "coder" / "base",
    base_model=BaseModel(
        vocabulary_size=len(words.VOCABULARY),
        end_id=words.END_ID,
        pad_id=words.PAD_ID,
        tokenizer=words.tokenizer_json,
        tokenizer_config=words.tokenizer_config,
        demonstrations=demonstrations,
        held_out_first=HELD_OUT_FIRST,
        episodes=8_000,
        steps=1_000,
        batch_size=24,
        tied=True,
        key_value_heads=3,
    ),
    # At 8e-4, and with attempts that begin two steps ahead, the reward fell for some steps in two of five runs; at 5e-4
    # throughout, the last version of one run of three was much worse than those before it.
    plan={
        "steps": 32,
        "max_steps_ahead": 1,
        "learning_rate": 6e-4,
        "last_rate": 0.1,
        "heldout_tasks": 64,
        "constant_length": 48,
    },
    arms={
        "without-summaries": Arm(
            "the same budget of context, and no summaries",
            attempts=lambda config: _attempts(config, Limits(summaries=0)),
        ),
    },
)
