"""The AsyncAPI 3.0 document of the topics, for catalogues and code generators, generated from topics and models.

Channels are topics and messages are types. Operations describe headrace itself: it receives what agents write and
sends everything else. The document is stored in ``schemas/asyncapi.json``; a test compares the file with the models.
"""

import json
from pathlib import Path
from typing import Any

from pydantic.json_schema import models_json_schema

import headrace
from headrace.schemas.examples import EXAMPLES
from headrace.schemas.headers import HEADERS, REQUIRED
from headrace.schemas.model import Record
from headrace.schemas.topics import EVENTS, FEEDBACK, MODELS, SDK_STATS, TOPICS, Topic

DOCUMENT = Path(__file__).parent / "asyncapi.json"
"""Path of the published document."""

FROM_AGENTS = (EVENTS, FEEDBACK, SDK_STATS)
"""Topics that agents write to."""

KAFKA_BINDING = "0.5.0"
"""Version of AsyncAPI's Kafka bindings."""

_HEADERS = "CloudEventsHeaders"


def asyncapi() -> dict[str, Any]:
    """Return the document. Payload schemas use AsyncAPI's own dialect (a superset of JSON Schema draft 07).

    Raises ``LookupError`` if a type has no example.
    """
    modes = [(model, "serialization") for model in MODELS.values()]
    _, definitions = models_json_schema(modes, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "headrace",
            "version": headrace.__version__,
            "description": "Agents' events and all records derived from them: trajectories, rewards, training groups, "
            "steps, weights. Records are CloudEvents 1.0 in Kafka's binary binding: attributes are headers, the value "
            "is JSON. Unknown fields may appear at any time. The version of a type is part of its name, and only a "
            "breaking change creates a new version. Read with isolation.level=read_committed.",
            "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {
            "local": {
                "host": "{bootstrap}",
                "protocol": "kafka",
                "description": "Kafka of a local stack; `headrace status` prints its address.",
                "variables": {"bootstrap": {"default": "localhost:9092"}},
            }
        },
        "channels": {topic.name: _channel(topic) for topic in TOPICS},
        "operations": {_operation_name(topic): _operation(topic) for topic in TOPICS},
        "components": {
            "messages": {name: _message(model) for name, model in sorted(MODELS.items())},
            "schemas": {
                _HEADERS: {
                    "type": "object",
                    "description": "CloudEvents attributes as Kafka headers; values are UTF-8.",
                    "properties": HEADERS,
                    "required": list(REQUIRED),
                },
                **definitions["$defs"],
            },
        },
    }


def render(document: dict[str, Any]) -> str:
    """Return the text of the published document. It is stable, so a diff shows what changed."""
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _channel(topic: Topic) -> dict[str, Any]:
    return {
        "address": topic.name,
        "description": f"{topic.about} Keyed by {topic.key}.",
        "messages": {model.TYPE: {"$ref": f"#/components/messages/{model.TYPE}"} for model in topic.models},
        "bindings": {
            "kafka": {
                "topic": topic.name,
                "partitions": topic.partitions,
                "topicConfiguration": {
                    "cleanup.policy": topic.configs["cleanup.policy"].split(","),
                    "retention.ms": topic.retention_ms,
                    "max.message.bytes": topic.max_bytes,
                },
                "bindingVersion": KAFKA_BINDING,
            }
        },
    }


def _operation_name(topic: Topic) -> str:
    return f"{'receive' if topic in FROM_AGENTS else 'send'}.{topic.name}"


def _operation(topic: Topic) -> dict[str, Any]:
    return {
        "action": "receive" if topic in FROM_AGENTS else "send",
        "channel": {"$ref": f"#/channels/{topic.name}"},
        "summary": "Written by agents, read by headrace." if topic in FROM_AGENTS else "Written by headrace.",
        "messages": [{"$ref": f"#/channels/{topic.name}/messages/{model.TYPE}"} for model in topic.models],
    }


def _message(model: type[Record]) -> dict[str, Any]:
    if model.TYPE not in EXAMPLES:
        raise LookupError(f"{model.TYPE} has no example: add one to schemas/examples.py, or examples to its fields")
    example = EXAMPLES[model.TYPE]
    message = example.message
    return {
        "name": model.TYPE,
        "title": model.__name__,
        "summary": (model.__doc__ or "").strip().partition("\n")[0],
        "contentType": "application/json",
        "headers": {"$ref": f"#/components/schemas/{_HEADERS}"},
        "payload": {"$ref": f"#/components/schemas/{model.__name__}"},
        "bindings": {
            "kafka": {"key": {"type": "string", "description": example.topic.key}, "bindingVersion": KAFKA_BINDING}
        },
        "examples": [
            {
                "name": "example",
                "headers": {name: content.decode() for name, content in message.headers},
                "payload": json.loads(message.value),
            }
        ],
    }
