"""A seed determines load and faults; both contain every kind of fault."""

from collections import Counter
from itertools import islice

from headrace.streams.assembly.arrival import arrival_of, problem_with
from headrace.streams.assembly.fold_limits import FoldLimits
from tests.chaos.faults import BROKER_KINDS, Kind, broker_faults, worker_faults
from tests.chaos.load import Mix, load

MIX = Mix(per_s=1000, oversize_bytes=2000)


def test_the_same_seed_gives_the_same_load_in_time_order() -> None:
    first, again, other = (list(islice(load(seed, MIX), 2000)) for seed in (3, 3, 4))
    assert first == again
    assert first != other
    assert [sending.at_s for sending in first] == sorted(sending.at_s for sending in first)
    assert {sending.producer for sending in first} == set(range(MIX.producers))


def test_the_load_has_the_configured_rate() -> None:
    sendings = list(islice(load(1, MIX), 20_000))
    assert 0.8 < len(sendings) / sendings[-1].at_s / MIX.per_s < 1.2


def test_the_load_contains_every_kind_of_damage() -> None:
    sendings = list(islice(load(1, MIX), 20_000))
    limits = FoldLimits(max_event_bytes=1500)
    problems = Counter(
        problem.error if problem else None
        for problem in (problem_with(arrival_of(sending.record), limits) for sending in sendings)
    )
    assert {str(error) for error in problems if error} == {"bad_headers", "oversize", "unknown_type", "null_value"}
    assert problems[None] > 0.97 * len(sendings)
    places = Counter((s.record.key, dict(s.record.headers).get("ce_sequence")) for s in sendings)
    assert max(places.values()) > 1, "nothing was sent twice"
    by_key: dict[bytes, list[int]] = {}
    for sending in sendings:
        sequence = dict(sending.record.headers).get("ce_sequence") or b""
        if sequence.isdigit():
            by_key.setdefault(sending.record.key or b"", []).append(int(sequence))
    assert any(numbers != sorted(numbers) for numbers in by_key.values()), "nothing was out of order"
    assert any(0 not in numbers for numbers in by_key.values()), "no start was missing"


def test_every_kind_of_fault_is_among_the_first() -> None:
    workers = list(islice(worker_faults(5), len(Kind) - len(BROKER_KINDS)))
    assert {fault.kind for fault in workers} == set(Kind) - BROKER_KINDS
    assert workers[0].kind is Kind.FREEZE
    assert {fault.kind for fault in islice(broker_faults(5), 2)} == BROKER_KINDS
    assert list(islice(worker_faults(5), 50)) == list(islice(worker_faults(5), 50))
    assert list(islice(worker_faults(5), 50)) != list(islice(worker_faults(6), 50))
