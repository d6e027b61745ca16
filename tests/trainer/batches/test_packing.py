from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.trainer.batches.packing import pack, plan_buckets, plan_passes, select
from tests.trainer.builders import random_sequences

LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=50)


def test_sequences_are_concatenated():
    packed = pack([([5, 6, 7], [0, 0, 1]), ([8, 9], [0, 1])])
    assert packed.token_ids.tolist() == [5, 6, 7, 8, 9]
    assert packed.position_ids.tolist() == [0, 1, 2, 0, 1]
    assert packed.cu_seqlens.tolist() == [0, 3, 5]
    assert packed.targets.tolist() == [2, 4]
    assert packed.lengths.tolist() == [3, 2]


def test_a_first_token_cannot_be_a_target():
    with pytest.raises(ValueError, match="has no context"):
        pack([([5, 6], [1, 0])])


@pytest.mark.parametrize("temperatures", [[], [1.0], [1.0, 1.0, 1.0], [1.0, 0.0], [1.0, -1.0], [1.0, float("nan")]])
def test_each_target_has_a_temperature_above_0(temperatures):
    with pytest.raises(ValueError, match="for 2 targets"):
        pack([([5, 6, 7], [0, 1, 1])], temperatures)


@pytest.mark.parametrize("sequences", [[], [([], [])], [([1, 2], [0])]])
def test_invalid_sequences_are_refused(sequences):
    with pytest.raises(ValueError, match="sequence"):
        pack(sequences)


@given(st.integers(1, 12), st.randoms(use_true_random=False))
def test_selected_sequences_are_what_packing_them_alone_gives(count, random):
    sequences = random_sequences(count, seed=random.randrange(1000))
    chosen = random.sample(range(count), random.randint(1, count))
    counts = [sum(mask) for _, mask in sequences]
    temperatures = [[0.5 + random.random() for _ in range(targets)] for targets in counts]  # of each sequence's targets
    packed = pack(sequences, list(chain(*temperatures)))

    selected, kept = select(packed, chosen)

    alone = pack([sequences[index] for index in chosen], list(chain(*(temperatures[index] for index in chosen))))
    for name in ("token_ids", "position_ids", "cu_seqlens", "targets", "temperatures"):
        assert getattr(selected, name).tolist() == getattr(alone, name).tolist()
    assert packed.token_ids[packed.targets[kept]].tolist() == alone.token_ids[alone.targets].tolist()


@given(LENGTHS, st.integers(1, 1000))
def test_passes_hold_every_sequence_once_and_at_most_the_limit(lengths, max_tokens):
    passes = plan_passes(lengths, max_tokens)
    assert sorted(index for each in passes for index in each) == list(range(len(lengths)))
    for each in passes:
        assert sum(lengths[index] for index in each) <= max_tokens or len(each) == 1
    for each, following in pairwise(passes):  # a pass is begun only if the last one is full
        assert sum(lengths[index] for index in each) + lengths[following[0]] > max_tokens


@given(LENGTHS, st.integers(1, 1000), st.integers(1, 9))
def test_sequences_of_one_owner_are_in_one_pass(lengths, max_tokens, count):
    owners = np.arange(len(lengths)) * 7 % count
    passes = plan_passes(lengths, max_tokens, owners)
    assert sorted(index for each in passes for index in each) == list(range(len(lengths)))
    found = [set(owners[each].tolist()) for each in passes]
    assert sum(map(len, found)) == len(set(owners.tolist()))
    for each, inside in zip(passes, found, strict=True):
        assert sum(lengths[index] for index in each) <= max_tokens or len(inside) == 1


@given(LENGTHS, st.floats(0, 1))
def test_buckets_hold_every_sequence_once_and_are_full_enough(lengths, fill):
    buckets = plan_buckets(lengths, fill)
    assert sorted(index for each in buckets for index in each) == list(range(len(lengths)))
    for bucket in buckets:
        inside = [lengths[index] for index in bucket]
        assert inside[0] == max(inside)
        assert min(inside) >= fill * max(inside)
    for bucket, following in pairwise(buckets):  # a bucket is begun only if the sequence does not fit into the last one
        assert lengths[following[0]] < fill * lengths[bucket[0]]


def test_plans_do_not_depend_on_numpy():
    assert plan_passes([3, 9, 4], 8) == plan_passes(np.array([3, 9, 4]), 8) == [[1], [2, 0]]
