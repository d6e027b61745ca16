"""The gateway's endpoints for models: four APIs, each also below ``/s/{session}``.

POST /v1/chat/completions   /v1/completions   /v1/responses   /v1/responses/compact   /v1/messages
POST /v1/messages/count_tokens
GET, DELETE /v1/responses/{id}      GET /v1/models[/{id}]      GET /health
"""

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any

from aiohttp import web

from headrace.agents.gateway.access import Access, access_of
from headrace.agents.gateway.call_metrics import CallMetrics
from headrace.agents.gateway.calls import Calls, ClientCall, Completed
from headrace.agents.gateway.canonical import Api, BadRequest, MessageRole
from headrace.agents.gateway.capture import Capture
from headrace.agents.gateway.client_errors import refused
from headrace.agents.gateway.config import GatewayConfig
from headrace.agents.gateway.framing.errors import ErrorKind
from headrace.agents.gateway.framing.models import ServedModel, model_body, models_body, token_count_body
from headrace.agents.gateway.framing.stored_responses import compacted_body, deleted_body
from headrace.agents.gateway.http import (
    MAX_BODY,
    REQUEST_ID,
    SESSION_IN_PATH,
    Handler,
    Outlet,
    admit,
    guarded,
    json_body,
    json_response,
)
from headrace.agents.gateway.limits import Limiter
from headrace.agents.gateway.prompts import Model, Prompts
from headrace.agents.gateway.record import TaskInfo
from headrace.agents.gateway.recorder import Recorder
from headrace.agents.gateway.render_bodies import PATHS
from headrace.agents.gateway.responses_store import ResponsesStore
from headrace.agents.gateway.sealed import Kind, Sealer
from headrace.agents.gateway.session_endpoints import SessionEndpoints, check_may_end
from headrace.agents.gateway.tenants import Tenants

FINAL_HEADER = "x-headrace-final"
"""A request with this header ends its session after the answer."""


class GatewayServer:
    """Answers HTTP requests."""

    def __init__(
        self,
        config: GatewayConfig,
        calls: Calls,
        capture: Capture,
        prompts: Prompts,
        recorder: Recorder,
        tenants: Tenants,
        sealer: Sealer,
        limiter: Limiter,
        metrics: CallMetrics,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self._config = config
        self._calls = calls
        self._capture = capture
        self._prompts = prompts
        self._recorder = recorder
        self._tenants = tenants
        self._sealer = sealer
        self._limiter = limiter
        self._metrics = metrics
        self._now_ms = now_ms
        self._store = ResponsesStore()
        self._sessions = SessionEndpoints(
            config, capture, recorder, sealer, limiter, self._access, tenants.is_masked, now_ms
        )

    def app(self) -> web.Application:
        """Return the application."""
        app = web.Application(client_max_size=self._config.max_request_bytes)
        app[MAX_BODY] = self._config.max_request_bytes
        routes: list[tuple[str, str, Api | None, Handler]] = [
            *(("POST", path, api, self._answering(api)) for api, path in PATHS.items()),
            ("POST", "/v1/responses/compact", Api.RESPONSES, self._compact),
            ("GET", "/v1/responses/{id}", Api.RESPONSES, self._stored),
            ("DELETE", "/v1/responses/{id}", Api.RESPONSES, self._delete),
            ("POST", "/v1/messages/count_tokens", Api.MESSAGES, self._count),
            ("HEAD", "/v1/models", None, self._models),
            ("GET", "/v1/models", None, self._models),
            ("GET", "/v1/models/{id:.+}", None, self._model),
        ]
        for method, path, api, handler in routes:
            for prefix in ("", f"/s/{SESSION_IN_PATH}"):
                app.router.add_route(method, prefix + path, guarded(api, handler, self._metrics))
        for method, path, handler, headers in self._sessions.routes():
            app.router.add_route(method, path, guarded(None, handler, self._metrics, headers))
        app.router.add_get("/health", self._health)
        app.router.add_route("*", "/{path:.*}", guarded(None, _unknown, self._metrics))
        return app

    async def _health(self, request: web.Request) -> web.Response:
        return json_response(b'{"status":"ok"}')

    def _access(self, request: web.Request) -> Access:
        """Return who sends ``request``, before its body is read."""
        headers = {name.lower(): value for name, value in request.headers.items()}
        session = request.match_info.get("session")
        return access_of(headers, session, self._tenants, self._sealer, self._now_ms() / 1000)

    async def _read(self, request: web.Request) -> tuple[Access, dict[str, Any]]:
        """Return who sends ``request`` and its body, within the limits of its tenant."""
        access = self._access(request)
        return access, await json_body(request, partial(admit, self._limiter, access.tenant.name))

    def _admitted(self, request: web.Request) -> Access:
        """Return who sends ``request``, which has no body, within the limits of its tenant."""
        access = self._access(request)
        admit(self._limiter, access.tenant.name, 0)
        return access

    def _answering(self, api: Api) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            access, body = await self._read(request)
            call = self._call(request, api, body, access)
            outlet = Outlet(request)
            completed = await self._calls.answer(call, outlet)
            if completed is not None:
                self._completed(call, completed)
            assert outlet.response is not None
            return outlet.response

        return handle

    def _call(
        self, request: web.Request, api: Api, body: dict[str, Any], access: Access, *, is_compaction: bool = False
    ) -> ClientCall:
        previous = body.get("previous_response_id")
        if isinstance(previous, str) and self._store.is_deleted(access.tenant.name, previous):
            raise BadRequest("previous_response_id", "was deleted: send the whole input instead")
        if access.arrival.headers.get(FINAL_HEADER):
            check_may_end(access)
        grant = access.grant
        return ClientCall(
            api,
            body,
            access.arrival,
            access.tenant,
            request[REQUEST_ID],
            # The member of the group began with POST /sessions: another trajectory under the same key is none.
            TaskInfo(run=self._config.run) if grant is None else grant.request.task_info(self._config.run).alone(),
            None if grant is None else grant.request.consent,
            is_compaction,
        )

    def _completed(self, call: ClientCall, completed: Completed) -> None:
        """Do what a delivered answer entails."""
        tenant = call.tenant.name
        if call.api is Api.RESPONSES and call.body.get("store") is not False:
            self._store.put(tenant, completed.answer_id, completed.whole())
        if call.arrival.headers.get(FINAL_HEADER):
            session = completed.plan.session
            self._recorder.record((session.tenant, session.scope), self._capture.end(session.tenant, session.scope))
        if completed.parser is not None and _is_among(completed.plan.call_id, self._config.parser_check_share):
            self._metrics.disagreed(completed.parser.disagreements())

    async def _compact(self, request: web.Request) -> web.StreamResponse:
        access, body = await self._read(request)
        given = body.get("input")
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given or []
        if not isinstance(items, list):
            raise BadRequest("input", "must be a string or a list")
        asked = {"role": "user", "content": self._config.compaction_prompt}
        tools = {"tool_choice": "none"} if body.get("tools") else {}
        call = self._call(
            request, Api.RESPONSES, {**body, **tools, "input": [*items, asked]}, access, is_compaction=True
        )
        outlet = Outlet(request)
        completed = await self._calls.answer(call, outlet)
        assert completed is not None  # only a stream can fail after it has begun
        self._completed(call, completed)
        plan = completed.plan
        texts = [each.text for each in plan.request.messages[:-1] if each.role is MessageRole.USER]
        summary = self._capture.mint(plan, Kind.ENCRYPTED, self._now_ms())
        answer = compacted_body(completed.framer.meta, texts, summary, completed.usage)
        return json_response(answer, headers={"x-request-id": call.request_id})

    async def _stored(self, request: web.Request) -> web.Response:
        access, response_id = self._admitted(request), request.match_info["id"]
        found = self._store.get(access.tenant.name, response_id)
        if found is None:
            raise _no_response(response_id)
        return json_response(found)

    async def _delete(self, request: web.Request) -> web.Response:
        access, response_id = self._admitted(request), request.match_info["id"]
        if not self._store.delete(access.tenant.name, response_id):
            raise _no_response(response_id)
        return json_response(deleted_body(response_id))

    async def _count(self, request: web.Request) -> web.Response:
        _, body = await self._read(request)
        return json_response(token_count_body(await self._prompts.count(Api.MESSAGES, body)))

    async def _models(self, request: web.Request) -> web.Response:
        self._admitted(request)
        served = [_served(each) for each in await self._prompts.models()]
        return json_response(models_body(served, request.headers.get("anthropic-version")))

    async def _model(self, request: web.Request) -> web.Response:
        self._admitted(request)
        found = await self._prompts.model(request.match_info["id"])
        return json_response(model_body(_served(found), request.headers.get("anthropic-version")))


async def _unknown(request: web.Request) -> web.StreamResponse:
    raise refused(
        ErrorKind.NOT_FOUND,
        f"{request.method} {request.path[:200]} is not an endpoint of the gateway, which has GET /v1/models and POST "
        f"{', '.join(PATHS.values())} and /sessions. Set the client's base_url to its address, with /v1 for clients of "
        "OpenAI's API and without for Anthropic's",
    )


def _served(model: Model) -> ServedModel:
    return ServedModel(model.name, model.since_s, max_tokens=model.max_tokens)


def _no_response(response_id: str) -> Exception:
    return refused(ErrorKind.NOT_FOUND, f"the response {response_id[:80]!r} is not known (any more)")


def _is_among(call_id: str, share: float) -> bool:
    """Return whether a call is among the ``share`` that is looked at; equal for equal ids."""
    return int.from_bytes(hashlib.sha256(call_id.encode()).digest()[:8], "big") < share * 2**64
