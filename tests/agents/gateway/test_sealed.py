"""Minted ids: they come back whole, or not at all."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.gateway.sealed import FeedbackTarget, Kind, Reference, Sealer, call_hash

SECRET, OTHER = b"s" * 16, b"o" * 32
NOW = 1_790_000_000.0
DAY = 86_400
references = st.builds(Reference, st.binary(min_size=8, max_size=8), st.integers(0, 255), st.integers(0, 255))


@given(references, st.sampled_from(Kind), st.text(max_size=5))
def test_a_reference_comes_back(reference: Reference, kind: Kind, tenant: str) -> None:
    sealer = Sealer([SECRET])
    assert sealer.open(sealer.seal(kind, tenant, reference, NOW), tenant, NOW) == reference


@given(references)
def test_an_id_is_accepted_by_clients(reference: Reference) -> None:
    for kind in Kind:
        text = Sealer([SECRET]).seal(kind, "acme", reference, NOW)
        assert re.fullmatch(r"[a-zA-Z0-9_-]+", text)
        assert len(text) <= 64
    assert len(Sealer([SECRET]).seal(Kind.CALL, "acme", reference, NOW)) <= 40


REFERENCE = Reference(call_hash("call-1"), 1, 2)
TEXT = Sealer([SECRET]).seal(Kind.CALL, "acme", REFERENCE, NOW)


@pytest.mark.parametrize("at", range(len(TEXT)))
def test_an_id_with_any_other_character_is_forged(at: int) -> None:
    changed = TEXT[:at] + ("B" if TEXT[at] != "B" else "C") + TEXT[at + 1 :]
    assert Sealer([SECRET]).open(changed, "acme", NOW) is None


@given(st.text(max_size=60) | st.from_regex(r"call_[a-zA-Z0-9_-]{35}", fullmatch=True))
def test_any_other_text_is_forged(text: str) -> None:
    assert Sealer([SECRET]).open(text, "acme", NOW) is None


def test_an_id_of_another_tenant_kind_or_secret_is_forged() -> None:
    sealer = Sealer([SECRET])
    assert sealer.open(TEXT, "other", NOW) is None
    assert sealer.open(TEXT.replace("call_", "resp_"), "acme", NOW) is None
    assert Sealer([OTHER]).open(TEXT, "acme", NOW) is None


def test_no_tenant_name_makes_another_tenant_s_id() -> None:
    texts = {Sealer([SECRET]).seal(Kind.CALL, tenant, REFERENCE, NOW) for tenant in ("", "a", "a\0", "1\0a", "\0")}
    assert len(texts) == 5


def test_an_id_lives_for_its_lifetime_and_less_than_twice_that() -> None:
    sealer = Sealer([SECRET], lifetime_s=DAY)
    text = sealer.seal(Kind.CALL, "acme", REFERENCE, NOW)
    assert sealer.open(text, "acme", NOW + DAY) == REFERENCE
    assert sealer.open(text, "acme", NOW + 2 * DAY) is None
    assert sealer.open(text, "acme", NOW - 2 * DAY) is None


def test_secrets_rotate() -> None:
    rotated = Sealer([OTHER, SECRET])
    assert rotated.open(TEXT, "acme", NOW) == REFERENCE
    assert Sealer([SECRET]).open(rotated.seal(Kind.CALL, "acme", REFERENCE, NOW), "acme", NOW) is None


@pytest.mark.parametrize("secrets", [[], [b"short"], [SECRET, b""]])
def test_a_sealer_needs_secrets_of_some_length(secrets: list[bytes]) -> None:
    with pytest.raises(ValueError, match="secret"):
        Sealer(secrets)


def test_a_sealer_needs_a_lifetime() -> None:
    with pytest.raises(ValueError, match="lifetime"):
        Sealer([SECRET], lifetime_s=0)


@pytest.mark.parametrize("reference", [Reference(b"short"), Reference(b"8" * 8, 256), Reference(b"8" * 8, 0, -1)])
def test_what_does_not_fit_is_not_sealed(reference: Reference) -> None:
    with pytest.raises(ValueError, match="cannot be sealed"):
        Sealer([SECRET]).seal(Kind.CALL, "acme", reference, NOW)


@given(st.text(max_size=20), st.text(max_size=20), st.integers(0, 2**40 - 1))
def test_a_feedback_token_names_trajectory_and_tenant_until_it_expires(
    tenant: str, trajectory: str, expires: int
) -> None:
    sealer, target = Sealer([SECRET]), FeedbackTarget(tenant, trajectory)
    token = sealer.feedback_token(target, expires)
    assert sealer.open_feedback(token, expires - 1) == target
    assert sealer.open_feedback(token, expires) is None
    assert re.fullmatch(r"[a-zA-Z0-9_-]+", token)


def test_a_forged_feedback_token_is_none() -> None:
    sealer = Sealer([SECRET])
    token = sealer.feedback_token(FeedbackTarget("acme", "t1"), int(NOW) + 9)
    for at in range(len(token)):
        changed = token[:at] + ("B" if token[at] != "B" else "C") + token[at + 1 :]
        assert sealer.open_feedback(changed, NOW) is None
    assert Sealer([OTHER, SECRET]).open_feedback(token, NOW) is not None
    for text in ("", "fb_", "fb_AAAA", token[3:], token + "A", "fb_" + "A" * 100_000, "fb_é"):
        assert sealer.open_feedback(text, NOW) is None
