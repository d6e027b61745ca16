"""Which log-probabilities an engine reports: of the distribution that it samples from, or the model's own.

No endpoint of vLLM tells (``--logprobs-mode``), so a request to the engine determines it, when it first matters. It is
determined again after the engine could not be reached, and after a minute: at the same address, an engine may have been
started anew with another mode, and its log-probabilities would be trained as what they are not.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from headrace.schemas.arrays import FloatArray
from headrace.schemas.events import LogprobsOf, Sampling

_log = logging.getLogger(__name__)

VALID_S: Final = 60.0
"""How long a mode counts as known, in seconds; vLLM takes about as long to start."""

Sample = Callable[[dict[str, Any]], Awaitable[FloatArray]]
"""Samples with the given ``sampling_params`` and returns the log-probabilities, (S,) float32."""


class LogprobsProbe:
    """Determines the mode of one engine."""

    def __init__(self, engine: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``engine``: its address, redacted, for the warning about an engine whose tokens will not be trained.
        ``clock``: the time in seconds."""
        self._engine = engine
        self._clock = clock
        self._mode: LogprobsOf | None = None
        self._until = float("-inf")
        self._lock = asyncio.Lock()

    def forget(self) -> None:
        """Ask again before the mode is used: the engine could not be reached, and may be another process now."""
        self._until = float("-inf")

    async def mode_for(self, sampling: Sampling, prompt: Sequence[int], sample: Sample) -> LogprobsOf | None:
        """Return which log-probabilities tokens sampled with ``sampling`` have. The engine is asked only if it matters.

        At temperature 1 without modifications both kinds are the same. Greedy decoding samples nothing: the mode stays
        as ``sampling`` states it.
        """
        if sampling.temperature == 1 and not (sampling.truncates or sampling.is_altered):
            return LogprobsOf.PROCESSED
        return sampling.logprobs if sampling.is_greedy else await self.mode(prompt, sample)

    async def mode(self, prompt: Sequence[int], sample: Sample) -> LogprobsOf:
        """Return the engine's mode; asked by sampling one token, which must be the first of ``prompt``.

        In the distribution that is sampled from, its log-probability is 0; in the model's own distribution it is not.
        """
        async with self._lock:
            if self._mode is None or self._clock() >= self._until:
                asked_at = self._clock()
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
                before, self._mode = self._mode, LogprobsOf.PROCESSED if processed else LogprobsOf.RAW
                self._until = asked_at + VALID_S
                if not processed and before is not LogprobsOf.RAW:
                    _log.warning(
                        "the engine at %s reports the model's log-probabilities and not those of the distribution that "
                        "it samples from: tokens at a temperature other than 1 are not trained; start vLLM with "
                        "--logprobs-mode processed_logprobs",
                        self._engine,
                    )
            return self._mode
