"""Spans from records: one trace from the agent's span to the step, and the same ids every time."""

from collections.abc import Callable

from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv._incubating.attributes.gen_ai_attributes import GenAiOperationNameValues

from headrace.schemas.envelope import Envelope
from headrace.schemas.ids import derived_id
from headrace.schemas.model import Record
from headrace.schemas.records.group import Member, Reason, Rejection, Stage, TrainingGroup
from headrace.schemas.records.reference import Reference
from headrace.schemas.records.step import Step, TrainedGroup
from headrace.schemas.records.weights import Applied, Weights
from headrace.schemas.trace import SpanContext, child, parse_traceparent
from headrace.streams.scoring.score import score
from headrace.streams.traces import MAX_LINKS, TraceSpan, spans
from tests.streams.attempts import START_MS, attempt

AGENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
HERE = Reference(partition=0, offset=7)
AGENTS = parse_traceparent(AGENT)
assert AGENTS is not None
TRAJECTORY = child(AGENTS, "t-1")


def at(payload: Record, id: str = "r", traceparent: str | None = None) -> Envelope:
    return Envelope(id, payload.TYPE, "/test", START_MS, "t", traceparent=traceparent)


def traced(reference: Reference) -> SpanContext | None:
    """One trajectory is traced, and no other."""
    return TRAJECTORY if reference == HERE else None


def of(
    payload: Record, id: str = "r", *, context_of: Callable[[Reference], SpanContext | None] = traced
) -> list[TraceSpan]:
    return spans(at(payload, id), payload, START_MS + 50, context_of)


def member(reference: Reference) -> Member:
    return Member(
        trajectory_id="t", trajectory=reference, reward=1.0, advantage=0.5, oldest_version=3, sampled_tokens=2
    )


def step(*references: Reference) -> Step:
    group = TrainedGroup(
        group_id="g", group=HERE, trajectory_ids=[str(n) for n in range(len(references))], trajectories=list(references)
    )
    return Step(
        run="r", step=4, version=4, groups=[group], config_sha256="c", data_sha256="d", metrics={"seconds_train": 0.03}
    )


def test_a_trajectory_is_a_span_under_the_agents_own() -> None:
    trajectory = attempt("t", defects=[]).model_copy(update={"traceparent": AGENT})
    (span,) = spans(at(trajectory, "t-1", TRAJECTORY.traceparent), trajectory, START_MS + 50, traced)
    assert (span.context, span.parent) == (TRAJECTORY, AGENTS)
    assert (span.start_ms, span.end_ms) == (trajectory.started_ms, START_MS + 50)
    assert span.attributes["gen_ai.agent.name"] == "helper"
    assert span.attributes["gen_ai.operation.name"] == GenAiOperationNameValues.INVOKE_AGENT.value


def test_names_of_the_genai_conventions_are_theirs() -> None:
    (scored,) = of(score(attempt("t"), HERE))
    trajectory = attempt("t", defects=[]).model_copy(update={"traceparent": AGENT})
    (whole,) = spans(at(trajectory, "t-1", TRAJECTORY.traceparent), trajectory, START_MS + 50, traced)
    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    used = {name for span in (scored, whole) for name in span.attributes}
    assert {name for name in used if not name.startswith("headrace.")} <= known
    assert {"gen_ai.evaluation.name", "gen_ai.evaluation.score.value", "gen_ai.agent.name"} <= used


def test_a_trajectorys_later_spans_are_children_of_its_span() -> None:
    rejection = Rejection(trajectory_id="t", trajectory=HERE, stage=Stage.ADMISSION, reason=Reason.STALE)
    group = TrainingGroup(
        group_id="g", run="r", task_id="q", spec="s@1", baseline="mean", baseline_value=0.5, scored=2,
        members=[member(HERE), member(Reference(partition=1, offset=0))], oldest_version=3,
    )  # fmt: skip
    for name, payload in (("score", score(attempt("t"), HERE)), ("reject", rejection), ("group", group)):
        (span,) = of(payload)
        assert (span.name, span.parent, span.context) == (name, TRAJECTORY, child(TRAJECTORY, "r"))


def test_a_step_has_a_trace_of_its_own_linked_with_every_trajectory_it_trained() -> None:
    made, trained = of(step(HERE, Reference(partition=3, offset=9)))
    assert (made.name, made.parent, made.end_ms - made.start_ms) == ("step", None, 30)
    assert made.context.trace_id != TRAJECTORY.trace_id
    assert made.links == (trained.context,)
    assert (trained.name, trained.parent, trained.links) == ("train", TRAJECTORY, (made.context,))
    assert made.attributes["headrace.metrics.seconds_train"] == 0.03


def test_a_step_links_to_a_bounded_number_of_trajectories() -> None:
    everything = [Reference(partition=0, offset=offset) for offset in range(MAX_LINKS + 5)]
    found = of(step(*everything), context_of=lambda _: TRAJECTORY)
    assert (len(found), len(found[0].links)) == (MAX_LINKS + 6, MAX_LINKS)


def test_weights_and_the_engines_that_serve_them_are_in_the_steps_trace() -> None:
    weights = Weights(run="r", version=4, parent=3, kind="anchor", manifest_uri="u", sha256="s", size=1, step=4)
    (published,) = of(weights, derived_id(Weights.TYPE, "r", 4))
    applied = Applied(run="r", engine="e", version=4, download_s=0.01, swap_s=0.02, canary_max_error=0.0)
    (served,) = of(applied)
    made, _ = of(step(HERE))
    assert (published.parent, served.parent) == (made.context, published.context)
    assert served.end_ms - served.start_ms == 30


def test_an_agent_that_was_not_traced_makes_no_spans() -> None:
    nowhere = Reference(partition=2, offset=2)
    assert spans(at(attempt("t")), attempt("t"), START_MS, traced) == []
    assert of(score(attempt("t"), nowhere)) == []
    assert [span.name for span in of(step(nowhere))] == ["step"]


def test_the_same_record_makes_the_same_spans() -> None:
    assert of(step(HERE)) == of(step(HERE))
