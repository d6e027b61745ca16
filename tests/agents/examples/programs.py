"""Runs programs of the example in TypeScript, and plays the model that they ask."""

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

MODEL = "gpt-4o-2024"
"""Name that the model gives itself."""


def node(example: Path, *argv: str, **environment: str) -> subprocess.Popen[str]:
    """A program of the example; it must end by itself."""
    return subprocess.Popen(
        [example / "bin" / "node", *argv],
        cwd=example,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def outcome_of(program: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit status, output, and messages."""
    try:
        output, messages = program.communicate(timeout=120)
    finally:
        program.kill()
    return program.returncode, output, messages


def run(example: Path, source: str, **environment: str) -> tuple[int, str, str]:
    """Run a program beside the example."""
    (example / "program.ts").write_text(source)
    try:
        return outcome_of(node(example, "program.ts", **environment))
    finally:
        (example / "program.ts").unlink()


@contextmanager
def model(*messages: dict[str, Any], pause_s: float = 0) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """An endpoint that answers with ``messages`` in turn; gives its address and the requests."""
    requests: list[dict[str, Any]] = []

    class Chat(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            time.sleep(pause_s)
            message = messages[len(requests) - 1]
            finish = "tool_calls" if "tool_calls" in message else "stop"
            usage = {"prompt_tokens": 10, "completion_tokens": 5}
            choices = [{"index": 0, "finish_reason": finish, "message": message}]
            body = json.dumps({"model": MODEL, "choices": choices, "usage": usage}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Keep the test's output clean."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Chat) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1", requests
        server.shutdown()


def compiled(example: Path) -> tuple[int, str, str]:
    return outcome_of(node(example, "node_modules/typescript/bin/tsc", "--pretty", "false"))
