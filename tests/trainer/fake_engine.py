"""vLLM's weight interface in memory, as far as the follower needs it, with failures on demand.

A "model" is a text file with a number; its log-probability of any token is minus that number.
"""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs

import httpx

from headrace.trainer.follower.engine import VllmEngine


@dataclass
class FakeEngine:
    stamp: str = "default"
    weights: float = 0.0
    paused: bool = False
    updating: bool = False
    healthy: bool = True
    requests: list[str] = field(default_factory=list)
    failing: dict[str, object] = field(default_factory=dict)
    """Path → injected failure: an HTTP status, an exception, or a function that is called first."""
    picky: set[float] = field(default_factory=set)
    """Weights that the engine refuses to load."""
    deaf: bool = False
    """Whether updates are accepted without effect, as with the tied LM head."""

    def client(self) -> VllmEngine:
        transport = httpx.MockTransport(self.handle)
        return VllmEngine(httpx.AsyncClient(transport=transport, base_url="http://engine"), attempts=1)

    def handle(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.requests.append(path)
        trouble = self.failing.get(path)
        if isinstance(trouble, int):
            return httpx.Response(trouble, text="planted")
        if isinstance(trouble, Exception):
            raise trouble
        if callable(trouble):
            trouble()
        body = json.loads(request.content) if request.content else {}
        return getattr(self, path.strip("/").replace("/", "_"))(body, parse_qs(request.url.query.decode()))

    def health(self, body, query):
        return httpx.Response(200 if self.healthy else 503)

    def weight_info(self, body, query):
        return httpx.Response(200, json={"weight_version": self.stamp})

    def is_paused(self, body, query):
        return httpx.Response(200, json={"is_paused": self.paused})

    def init_weight_transfer_engine(self, body, query):
        return httpx.Response(200, json={})

    def pause(self, body, query):
        self.paused = True
        return httpx.Response(200, json={})

    def resume(self, body, query):
        self.paused = False
        return httpx.Response(200, json={})

    def start_weight_update(self, body, query):
        if self.updating:
            return httpx.Response(500, text="already active")
        self.updating = True
        return httpx.Response(200, json={})

    def update_weights(self, body, query):
        info = body["update_info"]
        content = Path(info["path"]).read_bytes()
        if hashlib.sha256(content).hexdigest() != info["sha256"]:
            self.updating = False
            return httpx.Response(500, text="sha256")
        if float(content) in self.picky:
            self.updating = False
            return httpx.Response(500, text="refused")
        assert self.paused
        assert self.updating
        if not self.deaf:
            self.weights = float(content)
        return httpx.Response(200, json={})

    def finish_weight_update(self, body, query):
        self.updating = False
        self.stamp = body["weight_version"] or self.stamp
        return httpx.Response(200, json={})

    def update_weight_version(self, body, query):
        self.stamp = body["new_version"]
        return httpx.Response(200, json={})

    def reset_prefix_cache(self, body, query):
        return httpx.Response(200, json={"success": query["reset_running_requests"] == ["true"] and self.paused})

    def inference_v1_generate(self, body, query):
        assert not self.paused
        rows = [{str(token): {"logprob": -self.weights}} for token in body["token_ids"]]
        return httpx.Response(200, json={"prompt_logprobs": [None, *rows[1:]]})
