"""Parses a judge's answers into its verdict: strictly, with a label if there is no score.

{"score": 4}    4    ```json {"score": 4} ```        a score
"I'd say 4"     {"score": "4"}    7 out of 5          judge_unreadable
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.streams.rewards.judge import DISAGREEMENT, Combination, Judge, Scale
from headrace.streams.rewards.spec import Verdict

TIMEOUT = "judge_timeout"
"""No answer in time, retries included."""
ERROR = "judge_error"
"""The endpoint refused, failed or could not be reached."""
UNREADABLE = "judge_unreadable"
"""The answer is not a score on the scale."""
NOTHING_TO_JUDGE = "nothing_to_judge"
"""The trajectory has neither task, messages, tools nor answer."""

MAX_ANSWER_CHARS = 100_000
"""A longer answer is not read."""

_FENCE, _LANGUAGE = "```", "json"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one question: a text, or the reason for its absence as a label."""

    rubric: str
    """Name of the rubric."""
    text: str | None
    """The judge's text."""
    label: str | None = None
    """``judge_timeout`` or ``judge_error``."""


def verdict(judge: Judge, answers: Sequence[Answer]) -> Verdict:
    """Returns the value in [0, 1] of ``answers`` (one per rubric), with each rubric's share of the scale.

    If one rubric has no score, the judge has no value: the mean of the others would answer a different question.
    """
    if not answers:
        return Verdict(None, NOTHING_TO_JUDGE)
    label: str | None = None
    shares: dict[str, float] = {}
    for answer in answers:
        score = None if answer.text is None else read_score(answer.text, judge.scale)
        if score is None:
            label = label or answer.label or UNREADABLE
        else:
            shares[answer.rubric] = judge.scale.share(score)
    if label is None and shares.keys() != {rubric.name for rubric in judge.rubrics}:
        raise ValueError(f"judge {judge.name!r} was asked {sorted(shares)}: an answer to each of its rubrics is needed")
    if label is not None:
        return Verdict(None, label, shares)
    values = list(shares.values())
    value = min(values) if judge.combination is Combination.MIN else math.fsum(values) / len(values)
    spread = {DISAGREEMENT: max(values) - min(values)} if len(values) > 1 else {}
    return Verdict(value, None, shares | spread)


def read_score(text: str, scale: Scale) -> float | None:
    """Parse the score in ``text``: a JSON number, or an object with a number ``score``; ``None`` for anything else."""
    if len(text) > MAX_ANSWER_CHARS:
        return None
    try:
        parsed = json.loads(_unfenced(text.strip()))
    except (ValueError, RecursionError):
        return None
    score = parsed.get("score") if isinstance(parsed, dict) else parsed
    # True is an int in Python but not a score. Python's JSON accepts NaN, which is on no scale.
    if isinstance(score, bool) or not isinstance(score, int | float) or not scale.lowest <= score <= scale.highest:
        return None
    return None if scale.whole and score != int(score) else float(score)


def _unfenced(text: str) -> str:
    """Returns ``text`` without a Markdown fence around it. Takes linear time, unlike a regular expression."""
    if len(text) < 2 * len(_FENCE) or not (text.startswith(_FENCE) and text.endswith(_FENCE)):
        return text
    return text[len(_FENCE) : -len(_FENCE)].removeprefix(_LANGUAGE)
