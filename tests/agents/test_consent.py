"""Consent and sampling: what is not to be recorded leaves nothing behind, and a trajectory is recorded whole or not."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.consent import UNRECORDED, Consent, is_recorded, is_sampled
from headrace.agents.encoding import Note
from headrace.agents.gateway.terms import TenantPolicy, terms_of
from headrace.agents.sdk import Headrace
from tests.agents.sdk_helpers import NOWHERE


@pytest.fixture
def sdks() -> Iterator[list[Headrace]]:
    made: list[Headrace] = []
    yield made
    for sdk in made:
        sdk.close()


def new(sdks: list[Headrace], monkeypatch: pytest.MonkeyPatch, **settings: object) -> tuple[Headrace, list[Note]]:
    sdk = Headrace(NOWHERE, source="test", flush_deadline_s=0, spool_bytes=0, **settings)  # type: ignore[arg-type]
    seen: list[Note] = []
    monkeypatch.setattr(sdk._sender, "put", lambda fields: seen.append(Note(*fields)))
    sdks.append(sdk)
    return sdk, seen


@pytest.mark.parametrize(
    ("default", "own", "recorded"),
    [
        ("train", None, True),
        ("analyse", None, False),
        (Consent.ANALYSE, True, True),
        ("train", False, False),
        (False, "train", True),
        ("unrecorded", None, None),
        ("train", "unrecorded", None),
        ("unrecorded", "analyse", False),
    ],
)
def test_a_trajectory_has_its_own_consent_or_the_default(
    sdks: list[Headrace], monkeypatch: pytest.MonkeyPatch, default: object, own: object, recorded: bool | None
) -> None:
    sdk, notes = new(sdks, monkeypatch, consent=default)
    with sdk.trajectory(task_id="q", agent="a", consent=own) as t, t.tool("search"):  # type: ignore[arg-type]
        pass
    assert [note.fields["consent"] for note in notes[:1]] == ([] if recorded is None else [recorded])
    assert (len(notes), sdk.stats.dropped) == (0 if recorded is None else 4, {})


def test_an_unknown_consent_is_none(sdks: list[Headrace], monkeypatch: pytest.MonkeyPatch) -> None:
    sdk, notes = new(sdks, monkeypatch)
    with sdk.trajectory(task_id="q", agent="a", consent="yes"):
        pass
    assert (notes, sdk.stats.dropped) == ([], {"bad_consent": 1})
    with pytest.raises(ValueError, match="train, analyse, unrecorded"):
        Headrace(NOWHERE, source="test", consent="yes")


@pytest.mark.parametrize("rate", [0, -1, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match=r"sample_rate is .*consent=.unrecorded. records nothing"):
        Headrace(NOWHERE, source="test", sample_rate=rate)


def test_children_and_feedback_of_an_unrecorded_trajectory_are_unrecorded(
    sdks: list[Headrace], monkeypatch: pytest.MonkeyPatch
) -> None:
    sdk, notes = new(sdks, monkeypatch)
    other, others = new(sdks, monkeypatch)  # another process
    with sdk.trajectory(task_id="q", agent="a", consent="unrecorded") as t, t.subagent("helper", task_id="p") as sub:
        sub.model_called("m")
        with sub.subagent("deeper", task_id="p") as deeper:
            assert deeper.id.startswith(UNRECORDED)
    other.feedback(t.id, "score", 1.0, comment="private")
    other.trajectory(task_id="q", agent="a", parent_trajectory_id=t.id).end()
    assert (notes, others, sdk.stats.dropped, other.stats.dropped) == ([], [], {}, {})


def test_a_sub_agent_has_no_more_consent_than_its_parent(sdks: list[Headrace], monkeypatch: pytest.MonkeyPatch) -> None:
    sdk, notes = new(sdks, monkeypatch, sample_rate=1e-9)
    with (
        sdk.trajectory(task_id="q", agent="a", consent=False, tenant="acme", sample_rate=1.0) as t,
        t.subagent("helper", task_id="p", consent=True),
    ):
        pass
    own, child = (note.fields for note in notes if note.model.TYPE.endswith("trajectory.started.v1"))
    assert [own["consent"], child["consent"], child["tenant"], child["sample_rate"]] == [False, False, "acme", 1.0]


def test_all_events_of_a_trajectory_are_in_or_out_and_children_follow(
    sdks: list[Headrace], monkeypatch: pytest.MonkeyPatch
) -> None:
    sdk, notes = new(sdks, monkeypatch, sample_rate=0.3)
    recorded = 0
    for number in range(400):
        before = len(notes)
        with sdk.trajectory(task_id="q", agent="a", trajectory_id=f"t{number}") as t:
            with t.subagent("helper", task_id="p") as sub:
                sub.model_called("m")
            t.model_called("m")
        assert len(notes) - before in (0, 8)
        assert (len(notes) > before) == is_sampled("", f"t{number}", 0.3)
        recorded += len(notes) > before
    assert 80 < recorded < 160
    assert {note.fields["sample_rate"] for note in notes if "sample_rate" in note.fields} == {0.3}


@given(st.text(max_size=9), st.text(max_size=9), st.floats(0.001, 0.999))
def test_the_gateway_and_the_sdk_sample_alike(tenant: str, name: str, rate: float) -> None:
    by_gateway = terms_of(TenantPolicy(sample_rate=rate), tenant, name).recorded
    assert is_recorded(Consent.TRAIN, name, parent_id=None, tenant=tenant, sample_rate=rate) == by_gateway
