"""Settings of the gateway."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace.agents.gateway.journal import WhenFull
from headrace.agents.gateway.splice import History
from headrace.schemas.http_address import http_address
from headrace.schemas.redaction import redacted


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Settings of the gateway."""

    bootstrap: str
    """Kafka's bootstrap address."""
    engines: tuple[str, ...]
    """HTTP addresses of the vLLM servers, without /v1; all serve the same models. A conversation stays with one."""
    port: int
    """Port to listen on (HEADRACE_GATEWAY_PORT)."""
    folder: Path
    """Folder of the spool, of the secret that signs ids, and of the gateway's id."""
    run: str = "default"
    """Training run that its trajectories belong to."""
    host: str = "127.0.0.1"
    """Address to listen on. Any other than the loopback interface needs `keys`."""
    public_url: str | None = None
    """Address under which clients reach the gateway, for the answer of POST /sessions; unset: that of the request."""
    keys: Path | None = None
    """File with the hashes of the clients' API keys and their tenants; unset: every key is accepted, as the tenant
    `default`."""
    engine_key: str | None = None
    """API key of the engines, if they need one."""
    model_path: str | None = None
    """Folder of the model, for the tokenizer of vLLM's parsers; needed with a parser."""
    tool_parser: str | None = None
    """vLLM's --tool-call-parser; unset: tool calls stay text."""
    reasoning_parser: str | None = None
    """vLLM's --reasoning-parser; unset: reasoning stays text."""
    model_aliases: Mapping[str, str] = field(default_factory=dict)
    """Names that clients use for a served model: {"gpt-4o": "policy"}; "*" stands for every other name."""
    history: History = History.EXACT
    """Which tokens of earlier answers a prompt has: `exact`, those that were sampled, or `template`, those that the
    chat template writes."""
    when_full: WhenFull = WhenFull.STRICT
    """What happens while Kafka is away and the spool is full: `strict` refuses calls, `open` answers without
    recording."""
    spool_bytes: int = 1024**3
    """Most bytes of events that wait on disk."""
    node_bytes: int = 1024**3
    """Memory of the answers that can be continued exactly, in bytes; the least recently used are forgotten first."""
    max_sessions: int = 100_000
    """Open sessions; a further one ends the least recently used one of the tenant with the most sessions."""
    idle_s: float = 480.0
    """Seconds without a request after which a session ends. It must be shorter than the assembler's `idle_timeout_s`,
    after which a trajectory takes no more events; raise both for agents whose tools take longer."""
    max_request_bytes: int = 32 * 1024 * 1024
    """Largest request."""
    requests_per_s: float | None = None
    """Requests per second of a tenant, with bursts of ten seconds' worth; unset: no limit."""
    tokens_per_s: float | None = None
    """Tokens of prompts and answers per second of a tenant, with bursts of a minute's worth; unset: no limit."""
    bytes_per_s: float | None = None
    """Bytes of requests per second of a tenant, with bursts of ten seconds' worth; unset: no limit."""
    engine_calls: int = 256
    """Calls in flight per engine; further ones wait."""
    engine_timeout_s: float = 300.0
    """Longest time without a byte of an answer, in seconds, including the wait for the first token."""
    parser_check_share: float = 0.01
    """Share of the answers that are parsed once more as a whole, to count where streaming parsers differ."""
    compaction_prompt: str = (
        "Summarise this conversation for an assistant that continues it without having seen it: the task, what was "
        "done and found, decisions with their reasons, open problems and the next steps. Keep names, paths, commands "
        "and numbers exactly. Write the summary only."
    )
    """What the model is asked for by /v1/responses/compact."""
    stats_interval_s: float = 10.0
    """Seconds between two records in `sdk-stats`: calls, errors, sessions, engines, events that wait."""
    restore_s: float = 30.0
    """Longest time at the start to read from the spool and Kafka what gateways recorded, in seconds; 0: nothing is
    read, and every conversation starts anew."""
    flush_s: float = 10.0
    """Longest wait for Kafka at the end, in seconds; what is left is sent by the next gateway."""

    def __post_init__(self) -> None:
        if not self.engines or not all(self.engines):
            raise ValueError("engines is empty: name the address of at least one vLLM")
        for engine in self.engines:
            if not _is_http(engine) or engine.rstrip("/").endswith("/v1"):
                raise ValueError(f"engines has {redacted(engine)}: expected http://HOST:PORT, without /v1")
        if not self.is_local and self.keys is None:
            raise ValueError(
                f"host {self.host} can be reached from other machines, and keys is unset: everybody could use the "
                "gateway. Set keys to a file of key hashes, or host to 127.0.0.1"
            )
        if (self.tool_parser or self.reasoning_parser) and self.model_path is None:
            raise ValueError("model_path is unset: parsers need the folder of the model, for its tokenizer")
        if self.public_url is not None and not _is_http(self.public_url):
            raise ValueError(f"public_url is {redacted(self.public_url)}: expected https://HOST or http://HOST:PORT")
        if not 0 <= self.parser_check_share <= 1:
            raise ValueError(f"parser_check_share is {self.parser_check_share}: expected 0 to 1")
        for name in ("spool_bytes", "node_bytes", "max_sessions", "max_request_bytes", "engine_calls", "port"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: expected at least 1")
        for name in ("idle_s", "engine_timeout_s", "stats_interval_s", "requests_per_s", "tokens_per_s", "bytes_per_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} is {value}: expected a positive, finite number")
        for name in ("restore_s", "flush_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}: expected a finite number of seconds, not negative")

    @property
    def is_local(self) -> bool:
        """Whether only programs of the same machine reach it."""
        return self.host in ("127.0.0.1", "::1", "localhost")


def _is_http(address: str) -> bool:
    try:
        http_address(address)
    except ValueError:
        return False
    return True
