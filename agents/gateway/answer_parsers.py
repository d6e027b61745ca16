"""vLLM's parsers of one model, ready for its answers.

    parsers = AnswerParsers(ParserSettings("/models/qwen3", tool_parser="hermes", reasoning_parser="qwen3"))
    answer = parsers.start(Api.CHAT, body, prompt_ids, mint=mint)

Needs vLLM's package beside the gateway (its CPU build will do); it is imported when :class:`AnswerParsers` is made,
which takes seconds. Without parser names, text passes as text and vLLM is not imported.
"""

import json
import logging
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from headrace.agents.gateway.answer_parser import AnswerParser, Mint, NotParsed, Parsing
from headrace.agents.gateway.canonical import Api
from headrace.agents.gateway.generate_stream import TOKEN_NAME
from headrace.agents.gateway.parser_requests import names_a_tool, parser_request, read_by_parsers
from headrace.schemas.arrays import IntArray

_log = logging.getLogger(__name__)

REMEMBERED = 256
"""Largest number of requests whose form for the parsers is kept: one serves all calls of a conversation."""

LARGEST_REMEMBERED = 1024 * 1024
"""Largest request, in bytes of its tools and options, that is kept."""

_SCHEMA = {"type": "object", "properties": {}}
_TOOLS = {
    Api.CHAT: {"type": "function", "function": {"name": "any", "parameters": _SCHEMA}},
    Api.MESSAGES: {"name": "any", "input_schema": _SCHEMA},
    Api.RESPONSES: {"type": "function", "name": "any", "parameters": _SCHEMA},
}
"""A tool in the form of each API."""


@dataclass(frozen=True, slots=True)
class ParserSettings:
    """Names of vLLM's parsers, as its engines are started with them."""

    model_path: str
    """Folder of the model, for its tokenizer."""
    tool_parser: str | None = None
    """vLLM's ``--tool-call-parser``."""
    reasoning_parser: str | None = None
    """vLLM's ``--reasoning-parser``."""


class AnswerParsers:
    """The parsers of one model. Not for use from several threads at once."""

    def __init__(self, settings: ParserSettings) -> None:
        """Load the tokenizer and the parsers. Raises ``TypeError`` for names that vLLM does not know, and for parsers
        that do not fit the tokenizer."""
        self._parser: Any = None
        self._tokenizer: Any = None
        self._has_tool_parser = settings.tool_parser is not None
        self._has_reasoning_parser = settings.reasoning_parser is not None
        self._has_warned = False
        self._requests: OrderedDict[bytes, Any] = OrderedDict()
        if self._has_tool_parser or self._has_reasoning_parser:
            from vllm.parser import ParserManager
            from vllm.tokenizers import get_tokenizer

            self._tokenizer = get_tokenizer(settings.model_path)
            self._parser = ParserManager.get_parser(
                tool_parser_name=settings.tool_parser,
                reasoning_parser_name=settings.reasoning_parser,
                enable_auto_tools=self._has_tool_parser,
                model_name=settings.model_path,
                is_harmony=_model_type(settings.model_path) == "gpt_oss",
                tokenizer=self._tokenizer,
            )
            for api, tool in _TOOLS.items():
                # vLLM imports parts of itself on first use, for seconds.
                self._request(api, {"tools": [tool]})

    @property
    def remembered(self) -> int:
        """Number of requests whose form for the parsers is kept."""
        return len(self._requests)

    def start(
        self,
        api: Api,
        body: Mapping[str, Any],
        prompt_ids: IntArray,
        *,
        mint: Mint,
        choices: int = 1,
        top_logprobs: int | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> AnswerParser:
        """Return the parser of one answer.

        Args:
            api: The client's API; answers of Completions are not parsed.
            body: The client's request, decoded JSON.
            prompt_ids: int32, the prompt; from it parsers see whether the reasoning is open.
            mint: Makes the ids of tool calls.
            choices: Number of answers (``n``).
            top_logprobs: How many alternatives per token the client asked for; ``None``: no log-probabilities.
            chat_template_kwargs: Those that render used; by default the request's own.

        Raises:
            NotParsed: If vLLM finds the request invalid, which render would have refused.
        """
        if body.get("tools") and not self._has_tool_parser and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "a client offers tools, but no tool parser is set: the model's calls of them are answered as text. Set "
                "the name of vLLM's parser for this model (headrace up --set vllm.tool_parser=NAME, or the gateway's "
                "tool_parser beside a vLLM of your own)"
            )
        new, request = None, None
        if self._parser is not None and api is not Api.COMPLETIONS:
            request = self._request(api, body)
            new = partial(self._new, request, chat_template_kwargs)
        parsing = Parsing(
            mint,
            new,
            request,
            self.text_of,
            self._has_tool_parser,
            self._has_reasoning_parser,
            names_a_tool(body.get("tool_choice")),
            top_logprobs,
        )
        try:
            # Only vLLM's parsers look at the prompt.
            return AnswerParser(parsing, () if new is None else prompt_ids.tolist(), choices)
        except Exception as error:
            raise NotParsed(f"vLLM's parser does not take the request: {error!r}") from error

    def text_of(self, entry_token: str) -> str:
        """Return the text of a token that an engine names ``token_id:312``; any other text is returned as it is."""
        if self._tokenizer is None or not entry_token.startswith(TOKEN_NAME):
            return entry_token
        return str(self._tokenizer.decode([int(entry_token[len(TOKEN_NAME) :])]))

    def _request(self, api: Api, body: Mapping[str, Any]) -> Any:
        fields = read_by_parsers(api, body)
        try:
            key = api.encode() + msgspec.json.encode(fields)
            if (known := self._requests.get(key)) is not None:
                self._requests.move_to_end(key)
                return known
            request, parser = parser_request(api, fields), self._parser
            # As in vLLM's own rendering.
            if parser.always_adjust_request or parser.reasoning_parser_cls or request.tool_choice != "none":
                request = self._new(request).adjust_request(request)
        except Exception as error:
            raise NotParsed(f"vLLM's parser does not take the request: {error}") from error
        if len(key) <= LARGEST_REMEMBERED:
            self._requests[key] = request
            if len(self._requests) > REMEMBERED:
                self._requests.popitem(last=False)
        return request

    def _new(self, request: Any, chat_template_kwargs: Mapping[str, Any] | None = None) -> Any:
        if chat_template_kwargs is None:
            chat_template_kwargs = request.build_chat_params(None, "auto").chat_template_kwargs
        return self._parser(self._tokenizer, request.tools, chat_template_kwargs=dict(chat_template_kwargs))


def _model_type(model_path: str) -> str | None:
    try:
        config = json.loads((Path(model_path) / "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    return config.get("model_type") if isinstance(config, dict) else None
