"""Records the spans of real instrumentations as OTLP/JSON, for the tests next to it.

An agent calls OpenAI's client twice, the second time streaming, and a tool in between; a scripted server answers. Run
it in an environment with openai and the instrumentation:

    pip install openai opentelemetry-exporter-otlp-proto-http \
        opentelemetry-instrumentation-openai-v2 openinference-instrumentation-openai
    python tests/agents/otel/record_spans.py gen_ai tests/agents/otel/recorded/gen_ai.json
    python tests/agents/otel/record_spans.py openinference tests/agents/otel/recorded/openinference.json
"""

import base64
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any

QUESTION = "What is the weather in Paris?"
ARGUMENTS = '{"city": "Paris"}'
RESULT = "18 degrees"
ANSWER = "It is 18 degrees in Paris."
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


class _Model(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        head = {"id": "chatcmpl-1", "created": 1_780_000_000, "model": "policy-1"}
        if request.get("stream"):
            pieces = [ANSWER[:9], ANSWER[9:]]
            chunks: list[dict[str, Any]] = [
                {"choices": [{"index": 0, "delta": {"role": "assistant", "content": piece}, "finish_reason": None}]}
                for piece in pieces
            ]
            chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
            chunks.append({"choices": [], "usage": _usage(31, 9)})
            lines = [json.dumps(head | {"object": "chat.completion.chunk"} | chunk) for chunk in chunks]
            body = "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]).encode()
            kind = "text/event-stream"
        else:
            call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
            choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
            body = json.dumps(
                head | {"object": "chat.completion", "choices": [choice], "usage": _usage(20, 7)}
            ).encode()
            kind = "application/json"
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _usage(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def main(convention: str, path: Path) -> None:
    """Record the spans of ``convention``, ``gen_ai`` or ``openinference``, at ``path``."""
    # Read when the instrumentation is imported.
    os.environ["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = "SPAN_ONLY"
    os.environ["OTEL_SEMCONV_STABILITY_OPT_IN"] = "gen_ai_latest_experimental"

    import openai
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider(resource=Resource({"service.name": "weather-agent"}))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    if convention == "gen_ai":
        from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor

        package = "opentelemetry-instrumentation-openai-v2"
        agent = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "weather"}
        tool = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "weather",
            "gen_ai.tool.call.id": "call_1",
            "gen_ai.tool.call.arguments": ARGUMENTS,
            "gen_ai.tool.call.result": RESULT,
        }
    else:
        from openinference.instrumentation.openai import OpenAIInstrumentor

        package = "openinference-instrumentation-openai"
        agent = {"openinference.span.kind": "AGENT", "agent.name": "weather", "output.value": ANSWER}
        tool = {
            "openinference.span.kind": "TOOL",
            "tool.name": "weather",
            "tool_call.id": "call_1",
            "input.value": ARGUMENTS,
            "output.value": RESULT,
        }
    OpenAIInstrumentor().instrument(tracer_provider=provider)
    server = HTTPServer(("127.0.0.1", 0), _Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{server.server_port}/v1", api_key="none")
    tracer = provider.get_tracer("weather-agent")
    messages: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]
    with tracer.start_as_current_span("invoke_agent weather", attributes=agent):
        first = client.chat.completions.create(model="policy", messages=messages, tools=[TOOL], temperature=0.7)
        messages.append(first.choices[0].message.model_dump(exclude_none=True))
        with tracer.start_as_current_span("execute_tool weather", attributes=tool):
            messages.append({"role": "tool", "tool_call_id": "call_1", "content": RESULT})
        stream = client.chat.completions.create(
            model="policy", messages=messages, tools=[TOOL], stream=True, stream_options={"include_usage": True}
        )
        for _ in stream:
            pass
    server.shutdown()

    from google.protobuf.json_format import MessageToDict

    names = (package, "openai", "opentelemetry-sdk", "opentelemetry-semantic-conventions", "opentelemetry-util-genai")
    if convention != "gen_ai":
        names = (*names, "openinference-semantic-conventions")
    request = MessageToDict(encode_spans(exporter.get_finished_spans()), use_integers_for_enums=True)
    for spans in request["resourceSpans"]:
        for scope in spans["scopeSpans"]:
            for span in scope["spans"]:
                for name in ("traceId", "spanId", "parentSpanId"):  # OTLP/JSON has these in hex
                    if name in span:
                        span[name] = base64.b64decode(span[name]).hex()
    recorded = {"versions": {name: version(name) for name in names}, "request": request}
    path.write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
