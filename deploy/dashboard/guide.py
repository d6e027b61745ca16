"""The guide of the first run: three ways to send something, as commands with this stack's addresses.

A page shows it while there is no data. ``tests/deploy/dashboard/test_guide.py`` runs the commands, the
gateway's against a server that only answers as it does.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.schemas.redaction import redacted_address

NO_KAFKA = "localhost:9092"
"""Shown where the dashboard does not know Kafka's address."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to send data."""

    name: str
    """Short name."""
    title: str
    """What you have."""
    about: str
    """What happens, in a sentence or two."""
    command: str
    """Lines for a shell."""


_SDK = """\
python - <<'END'
from headrace.agents.sdk import Headrace

headrace = Headrace("KAFKA", source="first-run")
for outcome in (0.0, 1.0):
    with headrace.trajectory(task_id="boots", agent="first-run", group_id="first-run", group_size=2) as t:
        t.model_called(model="any", messages=[{"role": "assistant", "content": "We have boots."}])
        t.end(answer="in stock", outcome=outcome)
END"""

_GATEWAY = """\
export OPENAI_BASE_URL=GATEWAY/v1 OPENAI_API_KEY=any
MODEL=$(curl -s $OPENAI_BASE_URL/models | python -c 'import json, sys; print(json.load(sys.stdin)["data"][0]["id"])')
curl -s $OPENAI_BASE_URL/chat/completions -H 'Content-Type: application/json' \\
  -d '{"model": "'$MODEL'", "max_tokens": 32, "messages": [{"role": "user", "content": "Do you have boots?"}]}'"""

_IMPORT = """\
cat > first-run.jsonl <<'END'
{"task_id": 1, "trial": 0, "reward": 0.0, "traj": [{"role": "assistant", "content": "We have no boots."}]}
{"task_id": 1, "trial": 1, "reward": 1.0, "traj": [{"role": "assistant", "content": "We have boots."}]}
END
headrace import first-run.jsonl --kafka KAFKA"""


_NO_GATEWAY = "This stack has none: it needs a model, and `headrace up --model-dir MODEL` starts both."


def ways(kafka: str | None, gateway: str | None) -> Sequence[Way]:
    """Returns the three ways. ``kafka``: ``host:port`` of the brokers; ``gateway``: URL of the stack's gateway, without
    one the page says how to get one. Passwords in the addresses are hidden.
    """
    broker = redacted_address(kafka) if kafka else NO_KAFKA
    return (
        Way(
            "sdk",
            "An agent in Python",
            "The SDK sends events in the background; while Kafka is away, they wait on disk. These two attempts at one "
            "task form a group.",
            _SDK.replace("KAFKA", broker),
        ),
        Way(
            "gateway",
            "A program on OpenAI's or Anthropic's API",
            "The gateway answers like the API and records exact tokens. "
            + ("Programs that read OPENAI_BASE_URL work unchanged." if gateway else _NO_GATEWAY),
            _GATEWAY.replace("GATEWAY", redacted_address(gateway)) if gateway else "headrace up --model-dir MODEL",
        ),
        Way(
            "import",
            "Recorded runs",
            "One JSON object per line, with messages in OpenAI's format. Importing a file again changes nothing.",
            _IMPORT.replace("KAFKA", broker),
        ),
    )
