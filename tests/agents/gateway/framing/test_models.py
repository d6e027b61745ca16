"""Answers about models and stored responses, read by the official clients' types."""

import json

from anthropic.types import MessageTokensCount, ModelInfo
from openai.types import Model
from openai.types.responses import CompactedResponse

from headrace.agents.gateway.answer import AnswerMeta, AnswerUsage
from headrace.agents.gateway.framing.models import ServedModel, model_body, models_body, token_count_body
from headrace.agents.gateway.framing.stored_responses import compacted_body, deleted_body

POLICY = ServedModel("policy", 1_790_000_000, max_tokens=32_768)
OTHER = ServedModel("other", 0)


def test_openais_form() -> None:
    body = json.loads(models_body((POLICY, OTHER), None))
    assert body == {"object": "list", "data": [json.loads(model_body(model, None)) for model in (POLICY, OTHER)]}
    assert Model.model_validate(body["data"][0], strict=True).id == "policy"
    assert body["data"] == [
        {"id": "policy", "object": "model", "created": 1_790_000_000, "owned_by": "headrace", "max_model_len": 32_768},
        {"id": "other", "object": "model", "created": 0, "owned_by": "headrace"},
    ]


def test_anthropics_form() -> None:
    body = json.loads(models_body((POLICY, OTHER), "2023-06-01"))
    assert (body["first_id"], body["last_id"], body["has_more"]) == ("policy", "other", False)
    assert body["data"][0] == json.loads(model_body(POLICY, "2023-06-01"))
    info = ModelInfo.model_validate(body["data"][0])
    assert (info.id, info.display_name, info.max_input_tokens) == ("policy", "policy", 32_768)
    assert body["data"][0]["created_at"] == "2026-09-21T14:13:20Z"


def test_no_models() -> None:
    assert json.loads(models_body((), "2023-06-01")) == {
        "data": [],
        "has_more": False,
        "first_id": None,
        "last_id": None,
    }


def test_count_tokens() -> None:
    assert MessageTokensCount.model_validate_json(token_count_body(12), strict=True).input_tokens == 12


def test_deletion() -> None:
    assert json.loads(deleted_body("resp_1")) == {"id": "resp_1", "object": "response", "deleted": True}


def test_compaction() -> None:
    body = compacted_body(
        AnswerMeta("resp_1", 17, "policy"), ["Hi", "And then?"], "enc_x", AnswerUsage(12, 7, cached=8)
    )
    *messages, last = json.loads(body)["output"]
    assert [(message["id"], message["role"], message["content"]) for message in messages] == [
        ("msg_1_0", "user", [{"type": "input_text", "text": "Hi"}]),
        ("msg_1_1", "user", [{"type": "input_text", "text": "And then?"}]),
    ]
    # The client's type of an output message knows only the assistant's, although the API returns the user's.
    compacted = CompactedResponse.model_validate({**json.loads(body), "output": [last]})
    assert last == {"id": "cmp_1", "type": "compaction", "encrypted_content": "enc_x"}
    assert (compacted.created_at, compacted.usage.total_tokens) == (17, 19)
