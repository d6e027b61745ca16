import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.trainer.batches.balance import assign_items, plan_ranks, sequence_costs

lengths = st.lists(st.integers(1, 300), min_size=1, max_size=40).map(lambda values: np.array(values, np.int64))
ranks = st.integers(1, 9)


def test_the_costliest_items_go_first_each_to_the_least_loaded_rank():
    assert assign_items([9, 7, 6, 5, 4], 2) == [[0, 3], [1, 2, 4]]
    assert assign_items([1, 1, 1], 2) == [[0, 2], [1]]
    assert assign_items([], 2) == [[], []]


@given(lengths, ranks)
def test_every_item_is_assigned_once_and_no_load_exceeds_the_mean_by_an_item(lengths_S, count):
    shares = assign_items(lengths_S, count)
    assert sorted(item for share in shares for item in share) == list(range(len(lengths_S)))
    loads = [lengths_S[share].sum() for share in shares]
    assert max(loads) < lengths_S.sum() / count + lengths_S.max()


def test_attention_makes_a_long_sequence_cost_more_than_its_tokens():
    assert sequence_costs(np.array([10, 1000, 2000]), crossover=1000).tolist() == [10.1, 2000, 6000]
    passes = plan_ranks(np.array([2000, 1000, 1000, 1000]), 10_000, 2, crossover=1000)
    assert passes == [[[0]], [[1, 2, 3]]]


@given(lengths, ranks, st.integers(50, 400), st.booleans(), st.integers(1, 5))
def test_ranks_have_equally_many_passes_and_every_sequence_is_in_one_of_them(lengths_S, count, room, owned, owner_size):
    owners = np.arange(len(lengths_S)) // owner_size + 7 if owned else None
    planned = plan_ranks(lengths_S, room, count, crossover=1000, owners=owners)
    assert len(planned) == count
    assert len({len(passes) for passes in planned}) == 1
    flat = [chosen for passes in planned for chosen in passes]
    assert sorted(sequence for chosen in flat for sequence in chosen) == list(range(len(lengths_S)))
    if owners is None:
        assert all(lengths_S[chosen].sum() <= room or len(chosen) == 1 for chosen in flat)
    else:
        places = [{number for number, chosen in enumerate(flat) if set(chosen) & set(group)} for group in by(owners)]
        assert all(len(place) == 1 for place in places)


def by(owners):
    return [np.flatnonzero(owners == owner).tolist() for owner in np.unique(owners)]


@pytest.mark.parametrize("count", [2, 3, 8])
def test_more_ranks_than_sequences_leave_some_with_empty_passes(count):
    planned = plan_ranks(np.array([5]), 10, count, crossover=1000)
    assert planned == [[[0]]] + [[[]]] * (count - 1)
