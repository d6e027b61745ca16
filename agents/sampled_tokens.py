"""What an answer of vLLM must satisfy so that its tokens can be trained: rules of all clients of engines."""

import math
from collections.abc import Iterable

from headrace.schemas.arrays import MAX_LOGPROB, FloatArray
from headrace.schemas.events import VersionSpan, tile
from headrace.schemas.stamp import read_stamp

GENERATE = "/inference/v1/generate"
"""vLLM's token-in-token-out endpoint (``--enable-scale-out``)."""


def check_logprobs(logprobs: FloatArray) -> None:
    """Raise ``ValueError`` if one of ``logprobs`` (float32, natural logarithms) is above 0 or not finite."""
    # Summed as doubles, float32 values cannot overflow: the sum is finite unless one of them is not.
    if not logprobs or (math.isfinite(sum(logprobs)) and max(logprobs) <= MAX_LOGPROB):
        return
    wrong = next(each for each in logprobs if not -math.inf < each <= MAX_LOGPROB)
    raise ValueError(
        f"{wrong:g} is reported as the log-probability of a token: start vLLM with --logprobs-mode processed_logprobs"
    )


def version_spans(reported: Iterable[tuple[str, int, int]], length: int) -> tuple[VersionSpan, ...]:
    """Return the run and the version that sampled each of ``length`` tokens.

    Args:
        reported: An engine's ``weight_versions``: stamp (:mod:`headrace.schemas.stamp`), first token, one past the last
            token. Nothing reported is one span of an unknown version.
        length: Number of sampled tokens.

    Raises:
        ValueError: If the spans do not cover each token exactly once, in order.
    """
    spans = tuple(
        VersionSpan(version=stamp.version, start=start, end=end, run=stamp.run)
        for text, start, end in reported
        for stamp in (read_stamp(text),)
    )
    if spans and not tile(spans, length):
        raise ValueError(f"weight_versions do not cover the {length} sampled tokens in order")
    if not spans and length:
        return (VersionSpan(version=None, start=0, end=length),)
    return spans
