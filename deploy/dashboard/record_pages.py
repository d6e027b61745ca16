"""Pages about single records: a trajectory with its text, a group's attempts side by side, a version's trajectories.

GET /trajectory/ID         GET /api/trajectory?id=ID         &full=1: texts that are not shortened
GET /group/ID              GET /api/group?id=ID
GET /version/N?run=R       GET /api/version?run=R&version=N
GET /runbook/NAME          what `headrace runbook NAME` prints, to which alerts lead
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from headrace.deploy.dashboard.decoders import Decoders, FoundDecoder
from headrace.deploy.dashboard.group_rows import GroupRows, read_group
from headrace.deploy.dashboard.page_html import page_html
from headrace.deploy.dashboard.responses import HEADERS, answer, refusal
from headrace.deploy.dashboard.row_dicts import RowDict
from headrace.deploy.dashboard.source import Source, Unavailable
from headrace.deploy.dashboard.trajectory_rows import (
    TrajectoryRows,
    current_reward,
    read_events,
    read_trajectory,
)
from headrace.deploy.dashboard.version_rows import read_version
from headrace.deploy.oncall.runbook import NoRunbook, runbook
from headrace.deploy.transcript.decoding import Decode
from headrace.deploy.transcript.divergence import acts_of, all_part_at, parts_at
from headrace.deploy.transcript.messages import has_messages
from headrace.deploy.transcript.refolded import Refolded, refolded
from headrace.deploy.transcript.told import SHORT, WHOLE, sampled_texts, told
from headrace.schemas.bounds import MAX_COUNT, MAX_NAME

MAX_SHOWN = 8
"""Attempts of a group whose text is shown: of more, the best and the worst."""
MAX_SHOWN_BYTES = 8 * 1024**2
"""Most bytes of the events of each of them."""


class _AnyText(Convertor[str]):
    """The rest of a path, whatever characters it has: a ``path`` of Starlette ends at a line end."""

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("text", _AnyText())

RECORD_PAGES = ("/trajectory/", "/group/", "/version/", "/runbook/")
"""Beginnings of the paths of these pages."""


class RecordPages:
    """The handlers."""

    def __init__(self, source: Source, decoders: Decoders) -> None:
        self._source = source
        self._decoders = decoders

    def routes(self) -> list[Route]:
        """Returns the routes."""
        return [
            Route("/trajectory/{id:text}", _file("trajectory.html")),
            Route("/group/{id:text}", _file("group.html")),
            Route("/version/{version:int}", _file("version.html")),
            Route("/runbook/{name}", runbook_page),
            Route("/api/trajectory", self.trajectory),
            Route("/api/group", self.group),
            Route("/api/version", self.version),
        ]

    async def trajectory(self, request: Request) -> Response:
        """Answer with a trajectory, its text, and what became of it."""
        id, full = request.query_params.get("id", ""), request.query_params.get("full") == "1"
        if not 0 < len(id) <= MAX_NAME:
            return refusal(f"A trajectory's id has 1 to {MAX_NAME} characters.", 400)
        try:
            known = await self._source.read(lambda client: read_trajectory(client, id))
            if not known.is_known:
                return refusal(
                    f"ClickHouse has no trajectory with the id {id!r}: check it. Rows appear a second or two after the "
                    "events; those of `events` and `trajectories` expire after 30 days.",
                    404,
                )
            found = await asyncio.to_thread(refolded, id, known.events)
            run, group = _run_of(known, found), _group_of(known, found)
            rows = await self._source.read(lambda client: read_group(client, run, group, id, known.labels))
            decoder = await self._decoders.of(run)
        except Unavailable as error:
            return refusal(str(error), 503)
        text = None
        if found is not None:
            text = await asyncio.to_thread(told, found, decoder.decode, WHOLE if full else SHORT)
        return answer(_trajectory_json(id, run, known, rows, found, text, decoder))

    async def group(self, request: Request) -> Response:
        """Answer with the attempts of a group, side by side."""
        id = request.query_params.get("id", "")
        if not 0 < len(id) <= MAX_NAME:
            return refusal(f"A group's id has 1 to {MAX_NAME} characters.", 400)
        try:
            rows = await self._source.read(lambda client: read_group(client, "", id))
            if not rows.ids:
                return refusal(f"ClickHouse has no trajectory of a group with the id {id!r}: check it.", 404)
            decoder = await self._decoders.of(rows.run)
            shown = (
                rows.ids if len(rows.ids) <= MAX_SHOWN else [*rows.ids[: MAX_SHOWN // 2], *rows.ids[-MAX_SHOWN // 2 :]]
            )
            found: dict[str, Refolded] = {}
            for each in shown:
                events, _ = await self._source.read(
                    lambda client, each=each: read_events(client, each, MAX_SHOWN_BYTES)  # type: ignore[misc]
                )
                attempt = await asyncio.to_thread(refolded, each, events)
                if attempt is not None:
                    found[each] = attempt
        except Unavailable as error:
            return refusal(str(error), 503)
        return answer(await asyncio.to_thread(_group_json, id, rows, found, decoder))

    async def version(self, request: Request) -> Response:
        """Answer with the trajectories that a version sampled, and those on which it was trained."""
        run, text = request.query_params.get("run", ""), request.query_params.get("version", "")
        if not text.isascii() or not text.isdecimal() or int(text) > MAX_COUNT:
            return refusal("A version is a whole number from 0 on.", 400)
        try:
            return answer(await self._source.read(lambda client: read_version(client, run, int(text))))
        except Unavailable as error:
            return refusal(str(error), 503)


async def runbook_page(request: Request) -> Response:
    """Answer with a runbook as text."""
    try:
        return PlainTextResponse(runbook(request.path_params["name"]), headers=HEADERS)
    except NoRunbook as error:
        return PlainTextResponse(f"{error}\n", 404, HEADERS)


def _file(name: str) -> Callable[[Request], Awaitable[Response]]:
    async def page(request: Request) -> Response:
        return HTMLResponse(page_html(name), headers=HEADERS)

    return page


def _run_of(known: TrajectoryRows, found: Refolded | None) -> str:
    if known.labels:
        return str(known.labels["run"])
    started = found.trajectory.started if found else None
    return started.run if started else ""


def _group_of(known: TrajectoryRows, found: Refolded | None) -> str:
    if known.labels:
        return str(known.labels["group_id"])
    started = found.trajectory.started if found else None
    return (started.group_id or "") if started else ""


def _trajectory_json(
    id: str,
    run: str,
    known: TrajectoryRows,
    rows: GroupRows,
    found: Refolded | None,
    text: dict[str, Any] | None,
    decoder: FoundDecoder,
) -> dict[str, Any]:
    labels = known.labels or _labels_of(found)
    problem = known.too_large or ("" if found else "Its events have expired: their rows are kept for 30 days.")
    return {
        "id": id,
        "run": run,
        "labels": labels,
        "is_open": found is not None and found.is_open and known.labels is None,
        "reward": current_reward(known.rewards),
        "rewards": known.rewards,
        "fate": rows.fates.get(id, {"fate": "pending"}),
        "advantage": rows.members.get(id, {}).get("advantage"),
        "group": {"id": rows.group_id, "members": [_member(rows, each) for each in rows.ids]}
        if rows.group_id
        else None,
        "baseline": next(({"name": m["baseline"], "value": m["baseline_value"]} for m in rows.members.values()), None),
        "feedback": known.feedback,
        "children": known.children,
        "alerts": known.alerts,
        "text": text,
        "tokenizer": decoder.name,
        "note": problem or (_note(decoder, is_text=text["is_text"]) if text and text["segments"] else ""),
    }


def _labels_of(found: Refolded | None) -> RowDict | None:
    """Returns labels of a trajectory that is not assembled yet, from its start."""
    started = found.trajectory.started if found else None
    if found is None or started is None:
        return None
    names = (
        "run",
        "task_id",
        "group_id",
        "agent",
        "harness_version",
        "role",
        "purpose",
        "parent_trajectory_id",
        "tenant",
    )
    return {name: getattr(started, name) or "" for name in names} | {
        "status": "",
        "turns": len(found.trajectory.turns),
        "sampled_tokens": found.trajectory.sampled_tokens,
        "defects": [],
        "started_ms": found.trajectory.started_ms,
        "ended_ms": found.trajectory.ended_ms,
    }


def _member(rows: GroupRows, id: str) -> RowDict:
    labels, reward = rows.labels.get(id, {}), rows.rewards.get(id, {})
    return {
        "id": id,
        "reward": rows.reward_of(id),
        "maximum": reward.get("maximum"),
        "advantage": rows.members.get(id, {}).get("advantage"),
        "components": reward.get("components", {}),
        "weights": reward.get("weights", {}),
        "turns": labels.get("turns", reward.get("turns")),
        "tokens": labels.get("sampled_tokens", reward.get("sampled_tokens")),
        "status": labels.get("status", reward.get("status", "")),
        "outcome": labels.get("outcome"),
        "version": labels.get("oldest_version"),
        **rows.fates.get(id, {"fate": "pending"}),
    }


def _group_json(id: str, rows: GroupRows, found: dict[str, Refolded], decoder: FoundDecoder) -> dict[str, Any]:
    acts = {each: acts_of(attempt.trajectory) for each, attempt in found.items()}
    best = next(iter(acts.values()), None)
    decode: Decode | None = decoder.decode
    texts = {each: sampled_texts(attempt, decode) for each, attempt in found.items()}
    about = next(iter(rows.labels.values()), {}) | next(iter(rows.members.values()), {})
    sampled = [attempt.trajectory for attempt in found.values() if attempt.trajectory.segments]
    return {
        "id": id,
        "run": rows.run,
        "task_id": about.get("task_id", ""),
        "baseline": next(({"name": m["baseline"], "value": m["baseline_value"]} for m in rows.members.values()), None),
        "members": [
            _member(rows, each)
            | {
                "text": texts.get(each),
                "parts_at": None if best is None or each not in acts else parts_at(best, acts[each]),
            }
            for each in rows.ids
        ],
        "parts_at": all_part_at(list(acts.values())),
        "compared": len(acts),
        "note": _note(decoder, is_text=all(has_messages(each) for each in sampled)) if sampled else "",
    }


def _note(decoder: FoundDecoder, *, is_text: bool) -> str:
    """Returns what is shown of tokens without a tokenizer, and why; empty if there is one. ``is_text``: messages are
    shown, and no ids."""
    if not decoder.problem:
        return ""
    if is_text:
        return f"{decoder.problem} The messages of the calls are shown instead of their tokens."
    return f"{decoder.problem} Tokens are shown as ids; `headrace show ID --tokenizer FOLDER` prints text."
