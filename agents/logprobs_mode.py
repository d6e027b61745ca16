"""Which log-probabilities an engine reports: of the distribution that it samples from, or the model's own.

No endpoint of vLLM tells (``--logprobs-mode``), so one request per engine determines it, when it first matters.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from headrace.schemas.arrays import FloatArray
from headrace.schemas.events import LogprobsOf, Sampling

_log = logging.getLogger(__name__)

Sample = Callable[[dict[str, Any]], Awaitable[FloatArray]]
"""Samples with the given ``sampling_params`` and returns the log-probabilities, (S,) float32."""


class LogprobsProbe:
    """Determines the mode of one engine, once."""

    def __init__(self, engine: str) -> None:
        """``engine``: its address, redacted, for the warning about an engine whose tokens will not be trained."""
        self._engine = engine
        self._mode: LogprobsOf | None = None
        self._lock = asyncio.Lock()

    async def mode_for(self, sampling: Sampling, prompt: Sequence[int], sample: Sample) -> LogprobsOf | None:
        """Return which log-probabilities tokens sampled with ``sampling`` have. The engine is asked only if it matters.

        At temperature 1 without modifications both kinds are the same. Greedy decoding samples nothing: the mode stays
        as ``sampling`` states it.
        """
        if sampling.temperature == 1 and not (sampling.truncates or sampling.is_altered):
            return LogprobsOf.PROCESSED
        return sampling.logprobs if sampling.is_greedy else await self.mode(prompt, sample)

    async def mode(self, prompt: Sequence[int], sample: Sample) -> LogprobsOf:
        """Return the engine's mode; asked once, by sampling one token, which must be the first of ``prompt``.

        In the distribution that is sampled from, its log-probability is 0; in the model's own distribution it is not.
        """
        async with self._lock:
            if self._mode is None:
                logprobs = await sample(
                    {
                        "temperature": 1.0,
                        "max_tokens": 1,
                        "allowed_token_ids": [int(prompt[0])],
                        "ignore_eos": True,
                        "logprobs": 0,
                        "detokenize": False,
                    }
                )
                processed = len(logprobs) > 0 and all(each > -1e-6 for each in logprobs)
                self._mode = LogprobsOf.PROCESSED if processed else LogprobsOf.RAW
                if not processed:
                    _log.warning(
                        "the engine at %s reports the model's log-probabilities and not those of the distribution that "
                        "it samples from: tokens at a temperature other than 1 are not trained; start vLLM with "
                        "--logprobs-mode processed_logprobs",
                        self._engine,
                    )
            return self._mode
