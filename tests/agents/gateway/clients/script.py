"""An engine that plays a model for a program: which answer is due it sees in the prompt, so that retries, side calls
and restarts of the gateway do not confuse it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.agents.gateway.scripted_engine import FileCodec, Reply, ScriptedEngine

TURN = "<|im_start|>assistant"
TITLE = "Saying hello"
THOUGHT = "<think>\nThis is easy.\n</think>\n\n"


@dataclass(frozen=True, slots=True)
class Sampled:
    """What the engine was asked, and what it answered."""

    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    is_side: bool
    """Whether it was asked beside the program's conversation."""


class PlayedModel(ScriptedEngine):
    """The engine; templates and parsers are those of a real vLLM."""

    def __init__(self, answers: Sequence[str], model_dir: Path, upstream: str, **reply: Any) -> None:
        """``answers``: of the program's conversation, turn by turn. ``reply``: options of every ``Reply``."""
        codec = FileCodec(model_dir)
        super().__init__(codec=codec, upstream=upstream)
        self._answers = answers
        self._end = tuple(codec.encode("<|im_end|>"))
        self._options = reply
        self.played: dict[str, Sampled] = {}
        """By the id of the call."""

    def reply_to(self, body: dict[str, Any]) -> Reply:
        prompt = self.codec.decode(body["token_ids"])
        turn = self.turn_of(body["token_ids"])
        is_side = "title" in prompt.partition(TURN)[0] and not self._has_tools(prompt)
        text = THOUGHT + (TITLE if is_side else self._answers[min(turn, len(self._answers) - 1)])
        stop = next((each for each in body["sampling_params"].get("stop") or () if text.endswith(each)), None)
        shown = text.removesuffix(stop or "")
        end = tuple(self.codec.encode(stop)) if stop else self._end
        answer = (*self.codec.encode(shown), *end)
        self.played[body["request_id"]] = Sampled(tuple(body["token_ids"]), answer, is_side)
        return Reply(shown, ends_with=end, stop_reason=stop, chunk_tokens=8, **self._options)

    def turn_of(self, prompt_ids: Sequence[int]) -> int:
        """Number of answers in the prompt, which is the number of the one that is due."""
        return self.codec.decode(prompt_ids).count(TURN) - 1

    def _has_tools(self, prompt: str) -> bool:
        return '"parameters": {' in prompt
