"""Attribute names of the conventions that are read, and headrace's own.

``gen_ai.*`` are those of opentelemetry-semantic-conventions 0.66b2, which is experimental in that package and therefore
not imported by agents; the others are those of openinference-semantic-conventions 0.1.42. Tests compare both.
"""

from typing import Final

OPERATION: Final = "gen_ai.operation.name"
CONVERSATION: Final = "gen_ai.conversation.id"
AGENT_NAME: Final = "gen_ai.agent.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
SYSTEM_INSTRUCTIONS: Final = "gen_ai.system_instructions"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_RESULT: Final = "gen_ai.tool.call.result"

MODEL_OPERATIONS: Final = ("chat", "text_completion", "generate_content")
TOOL_OPERATION: Final = "execute_tool"
AGENT_OPERATION: Final = "invoke_agent"

SAMPLING: Final = {
    "gen_ai.request.temperature": "temperature",
    "gen_ai.request.top_p": "top_p",
    "gen_ai.request.top_k": "top_k",
    "gen_ai.request.max_tokens": "max_tokens",
    "gen_ai.request.seed": "seed",
    "gen_ai.request.presence_penalty": "presence_penalty",
    "gen_ai.request.frequency_penalty": "frequency_penalty",
}
"""Field of :class:`~headrace.schemas.events.Sampling` by attribute."""

SPAN_KIND: Final = "openinference.span.kind"
LLM_KIND: Final = "LLM"
TOOL_KIND: Final = "TOOL"
AGENT_KIND: Final = "AGENT"
SESSION: Final = "session.id"
OI_AGENT_NAME: Final = "agent.name"
OI_MODEL: Final = "llm.model_name"
OI_INVOCATION: Final = "llm.invocation_parameters"
OI_INPUT_MESSAGES: Final = "llm.input_messages"
OI_OUTPUT_MESSAGES: Final = "llm.output_messages"
OI_PROMPT_TOKENS: Final = "llm.token_count.prompt"
OI_COMPLETION_TOKENS: Final = "llm.token_count.completion"
OI_FINISH_REASON: Final = "llm.finish_reason"
OI_TOOL_NAME: Final = "tool.name"
OI_TOOL_CALL_ID: Final = "tool_call.id"
OI_TOOL_PARAMETERS: Final = "tool.parameters"
OI_INPUT: Final = "input.value"
OI_OUTPUT: Final = "output.value"

OWN: Final = "headrace."
"""Prefix of headrace's own attributes: no convention has names for what training needs."""

EXPORTED: Final = "headrace.trajectory_id"
"""Attribute of the spans that headrace itself exports of trajectories: they record no agent's work once more."""

TOKEN_FIELDS: Final = ("prefix_length", "prefix_sha256", "context_ids", "sampled_ids", "logprobs")
"""Fields of ``model.called`` that ``headrace.*`` attributes of a model call may give. ``headrace.version`` and
``headrace.version_run`` give the policy version that sampled all of the tokens, ``headrace.logprobs_mode`` their
distribution."""

START_FIELDS: Final = ("task_id", "group_id", "cohort_key", "agent", "run", "tenant", "harness_version")
"""Fields of ``trajectory.started`` that ``headrace.*`` attributes of any span of the trajectory may give; also
``headrace.group_size``, ``headrace.consent`` and ``headrace.outcome``."""

KEPT: Final = (
    "gen_ai.",
    "openinference.",
    "llm.",
    "tool.",
    "tool_call.",
    "agent.",
    "session.",
    "input.",
    "output.",
    OWN,
)
"""Prefixes of the attributes that are kept; all others are dropped on arrival."""
