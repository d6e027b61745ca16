"""Consent, sampling and masking: decided once per session, the same way everywhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.agents.consent import is_sampled
from headrace.agents.gateway.terms import TenantPolicy, Terms, terms_of

rates = st.floats(0.001, 1.0)


@given(st.text(max_size=9), st.text(max_size=9), rates, rates)
def test_a_session_that_is_recorded_at_a_rate_is_recorded_at_every_higher_rate(
    tenant: str, session: str, left: float, right: float
) -> None:
    low, high = sorted((left, right))
    assert is_sampled(tenant, session, high) >= is_sampled(tenant, session, low)
    assert is_sampled(tenant, session, 1.0)


def test_about_the_given_share_is_recorded() -> None:
    recorded = sum(is_sampled("acme", f"session-{number}", 0.25) for number in range(4000))
    assert 900 < recorded < 1100


def test_tenants_and_sessions_are_not_confused() -> None:
    pairs = [("a", "bc"), ("ab", "c"), ("", "abc")]
    drawn = {tuple(is_sampled(f"{tenant}{n}", f"{session}{n}", 0.5) for n in range(64)) for tenant, session in pairs}
    assert len(drawn) == 3


@pytest.mark.parametrize(
    ("tenant", "session", "consent"),
    [(True, None, True), (True, True, True), (True, False, False), (False, True, False), (False, None, False)],
)
def test_a_session_can_only_withdraw_consent(tenant: bool, session: bool | None, consent: bool) -> None:
    terms = terms_of(TenantPolicy(consent=tenant, masked=True, sample_rate=1.0), "acme", "s", consent=session)
    assert terms == Terms(recorded=True, consent=consent, masked=True, sample_rate=1.0)


@pytest.mark.parametrize("rate", [0.0, -1.0, 1.1, float("nan")])
def test_a_rate_outside_of_its_range_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="sample_rate"):
        TenantPolicy(sample_rate=rate)
