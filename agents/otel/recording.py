"""Decides what of a group of spans is recorded, and returns its events for the encoder."""

from dataclasses import dataclass

from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, TraceFlags, set_span_in_context
from opentelemetry.trace import SpanContext as OtelContext

from headrace.agents.consent import Consent, is_recorded
from headrace.agents.encoding import Note
from headrace.agents.otel.trajectories import Grouped, trajectories_of
from headrace.schemas.topics import EVENTS
from headrace.schemas.trace import SpanContext


@dataclass(frozen=True, slots=True)
class Terms:
    """What may be done with trajectories whose spans say nothing else."""

    consent: Consent = Consent.TRAIN
    sample_rate: float = 1.0
    """Share of the conversations, or of the traces outside any, that is recorded."""
    tenant: str | None = None
    """Owner of the data."""


def notes_of(group: Grouped, terms: Terms) -> list[Note]:
    """Return the events of the trajectories of ``group``, in their order; none if it is not recorded."""
    consent = group.consent or terms.consent
    notes: list[Note] = []
    tenant: str | None = None
    for trajectory in trajectories_of(group):
        # Sub-agents and what is late have what their trajectory has.
        tenant = trajectory.tenant or terms.tenant
        name = group.conversation or trajectory.events[0].context.trace_id
        if not is_recorded(consent, name, parent_id=None, tenant=tenant, sample_rate=terms.sample_rate):
            return []
        about = {"consent": consent is Consent.TRAIN, "tenant": tenant, "sample_rate": terms.sample_rate}
        for seq, event in enumerate(trajectory.events):
            fields = event.fields | about if seq == 0 else event.fields
            context = _context(event.context)
            notes.append(
                Note(EVENTS, trajectory.trajectory_id, seq, event.time_ns, context, event.model, fields, event.event_id)
            )
    return notes


def _context(span: SpanContext) -> Context:
    context = OtelContext(int(span.trace_id, 16), int(span.span_id, 16), is_remote=True, trace_flags=TraceFlags(1))
    return set_span_in_context(NonRecordingSpan(context), Context())
