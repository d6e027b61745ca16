"""The attempts of a group beside one another, each with what it did where it parts from the first one. Pure.

Group g-1-1, baseline mean 0.25: 8 attempts; they part at turn 1
  → t-1  reward 1  advantage +0.75  outcome 1  completed  29 tokens  trained at step 2
      terms   fixer@1 1 of 1 = 1·1 outcome
      answer  "passed"
      turn 1  the test is hard so i rewrite the test to pass · edit(file="test_ticket.py") → ok
  - t-2  reward 0  advantage −0.25  …
      turn 1  i read the code and answer that it can not be done
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.deploy.tail.sentence import sentence
from headrace.deploy.transcript.decoding import Decode
from headrace.deploy.transcript.divergence import Acts, acts_of, all_part_at, parts_at
from headrace.deploy.transcript.refolded import Refolded
from headrace.deploy.transcript.told import sampled_texts
from headrace.schemas.records.reward import Reward
from headrace.schemas.records.trajectory import Trajectory

MAX_COMPARED = 8
"""Attempts whose text is compared: of more, the best and the worst. The others have their line of figures."""
_TEXT = 240
"""Most characters of what an attempt said in a turn, and of its answer."""
_TOKENS = 200
"""Most tokens of a turn that are decoded."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A trajectory of a group."""

    trajectory_id: str
    """The trajectory."""
    reward: float | None
    """Its reward; ``None`` if it has none."""
    advantage: float | None
    """Its advantage; ``None`` if it is in no training group."""
    fate: str
    """What became of it, in words; empty if that was not looked up."""
    scored: Reward | None = None
    """Its score, with terms; ``None`` if it has none, or it was not looked up."""
    record: Trajectory | None = None
    """Its record; ``None`` if it has expired, or was not read."""


@dataclass(frozen=True, slots=True)
class Group:
    """A group of attempts."""

    group_id: str
    """The group."""
    baseline: str
    """Name and value of the baseline; empty if it has not become a training group."""
    attempts: Sequence[Attempt]
    """Its attempts, the best reward first."""


def compared(ids: Sequence[str], own: str | None) -> list[str]:
    """Returns the trajectories of which the text is compared, of ``ids``, the best first: all, or the best and the
    worst; always ``own``, the one that the others are compared with."""
    if len(ids) <= MAX_COMPARED:
        return list(ids)
    chosen = {*ids[: MAX_COMPARED // 2], *ids[-MAX_COMPARED // 2 :], own}
    return [each for each in ids if each in chosen]


def siblings(group: Group, own: str | None, decode: Decode | None) -> list[str]:
    """Returns lines about each attempt of ``group``, compared with ``own`` (marked), else with the first one.

    Without ``decode`` tokens are shown as ids.
    """
    records = {each.trajectory_id: each.record for each in group.attempts if each.record is not None}
    acts = {id: acts_of(record) for id, record in records.items()}
    reference = own if own in acts else next(iter(acts), None)
    every = all_part_at(list(acts.values()))
    lines = [_title(group, len(acts), every)]
    for attempt in group.attempts:
        mark = "→" if attempt.trajectory_id == own else "-"
        lines.append(f"  {mark} {_figures(attempt)}")
        if attempt.scored is not None and attempt.scored.components:
            lines.append(_row("terms", sentence(attempt.scored, str)))
        if attempt.record is not None:
            if attempt.record.answer is not None:
                lines.append(_row("answer", json.dumps(attempt.record.answer, ensure_ascii=False)))
            if reference is not None and every is not None:
                is_reference = attempt.trajectory_id == reference
                turn = every if is_reference else parts_at(acts[reference], acts[attempt.trajectory_id])
                lines.append(_difference(attempt.record, acts[attempt.trajectory_id], turn, decode))
    return lines


def as_json(group: Group) -> dict[str, Any]:
    """Returns the figures of each attempt as JSON data, without texts."""
    attempts = [
        {
            "trajectory_id": each.trajectory_id,
            "reward": each.reward,
            "advantage": each.advantage,
            "fate": each.fate,
            "outcome": each.record.outcome if each.record else None,
            "answer": each.record.answer if each.record else None,
            "components": each.scored.model_dump(mode="json")["components"] if each.scored else None,
        }
        for each in group.attempts
    ]
    return {"group_id": group.group_id, "baseline": group.baseline, "attempts": attempts}


def _title(group: Group, known: int, parts: int | None) -> str:
    baseline = f", baseline {group.baseline}" if group.baseline else ""
    count = len(group.attempts)
    if known < 2:
        compared = ""
    elif parts is None:
        compared = "; all did the same" if known == count else f"; the {known} that are compared did the same"
    else:
        compared = f"; they part at turn {parts}" + ("" if known == count else f" ({known} compared)")
    return f"Group {group.group_id}{baseline}: {count} attempt{'' if count == 1 else 's'}{compared}"


def _figures(attempt: Attempt) -> str:
    record, scored = attempt.record, attempt.scored
    status = record.status if record else scored.status if scored else None
    tokens = record.sampled_tokens if record else scored.sampled_tokens if scored else None
    parts = [
        attempt.trajectory_id,
        "no reward" if attempt.reward is None else f"reward {attempt.reward:g}",
        "" if attempt.advantage is None else f"advantage {attempt.advantage:+.3g}",
        "" if record is None or record.outcome is None else f"outcome {record.outcome:g}",
        "" if status is None else status.value.replace("_", " "),
        "" if tokens is None else f"{tokens:,} tokens",
        attempt.fate,
    ]
    return "  ".join(part for part in parts if part)


def _difference(record: Trajectory, acts: Acts, turn: int | None, decode: Decode | None) -> str:
    """Returns what an attempt said and called in ``turn``, where it parts from another one."""
    if turn is None:
        return _row("same", "it said and called the same")
    if turn >= len(acts):
        return _row(f"turn {turn}", "it ended before this turn")
    told = sampled_texts(Refolded(record, False), decode, most_tokens=_TOKENS)[turn]
    return _row(f"turn {turn}", " · ".join([each for each in (_one_line(told["text"]), *told["tools"]) if each]))


def _row(label: str, text: str) -> str:
    return f"      {label:<8}{_one_line(text, 2 * _TEXT)}"


def _one_line(text: str, most: int = _TEXT) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"
