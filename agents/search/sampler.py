"""Samples the reference agent for a trainer that runs on its own, beside a stack, until SIGINT or SIGTERM.

python -m headrace.agents.search.sampler --kafka 127.0.0.1:9092 --vllm http://127.0.0.1:8000 --run laptop
"""

import argparse
import asyncio
import logging
import signal
from collections.abc import Sequence

from headrace.agents.rollouts.attempts import PolicyAttempts
from headrace.agents.rollouts.config import RolloutConfig
from headrace.agents.rollouts.sampler import run_rollouts
from headrace.agents.search.rollouts import SEARCH_TASKS, search_agent


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kafka", metavar="HOST:PORT", required=True)
    parser.add_argument("--vllm", metavar="URL", required=True, help="the stack's engine")
    parser.add_argument("--run", default="default", help="training run, that of the stack and the trainer")
    parser.add_argument("--seed", type=int, default=0, help="selects the training tasks")
    parser.add_argument("--concurrency", type=int, default=64, help="attempts in flight")
    return parser


def config_of(argv: Sequence[str] | None = None) -> RolloutConfig:
    """Return the sampler's settings."""
    options = parser().parse_args(argv)
    return RolloutConfig(
        options.kafka, options.vllm, run=options.run, seed=options.seed, concurrency=options.concurrency
    )


async def sample(config: RolloutConfig) -> None:
    """Sample groups within the trainer's budget, until a signal; attempts in flight are completed."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    attempts = PolicyAttempts(
        search_agent(), config.bootstrap, config.vllm_url, run=config.run, concurrency=config.concurrency
    )
    async with attempts:
        await run_rollouts(config, SEARCH_TASKS, attempts, stop=stop)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(sample(config_of()))
