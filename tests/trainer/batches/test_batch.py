from array import array

import numpy as np
import pytest

from headrace.schemas.events import SamplingSpan
from headrace.trainer.batches.batch import make_batch, owners_of_sequences, select_sequences
from tests.trainer.builders import admitted, segment, trajectory


def two_groups():
    pruned = trajectory(
        "t1", segment("ccSS", logprobs=[-0.1, -0.2], versions=[3, 4]), segment("ccccS", logprobs=[-0.3])
    )
    plain = trajectory("t2", segment("cSS", logprobs=[-0.4, -0.5], versions=[5, 5]))
    other = trajectory("u1", segment("cS", logprobs=[-0.6], versions=[6]))
    return [admitted("g", pruned, plain, advantages=[0.5, -0.5]), admitted("h", other, advantages=[1.0])]


def test_every_sampled_token_is_in_the_batch_once():
    batch = make_batch(two_groups())
    assert batch.packed.cu_seqlens.tolist() == [0, 4, 9, 12, 14]
    assert batch.packed.targets.tolist() == [2, 3, 8, 10, 11, 13]
    assert batch.behaviour_logprobs.tolist() == pytest.approx([-0.1, -0.2, -0.3, -0.4, -0.5, -0.6])
    assert batch.advantages.tolist() == [0.5, 0.5, 0.5, -0.5, -0.5, 1.0]
    assert batch.versions.tolist() == [3, 4, 0, 5, 5, 6]
    assert batch.trajectories.tolist() == [0, 0, 0, 1, 1, 2]
    assert batch.rewards.tolist() == [1.0, 1.0, 1.0]


def test_a_segment_that_sampled_nothing_is_left_out():
    batch = make_batch([admitted("g", trajectory("t", segment("ccc"), segment("cS")))])
    assert batch.packed.cu_seqlens.tolist() == [0, 2]


def test_a_token_that_an_earlier_segment_sampled_is_context_in_the_next():
    first, second = segment("ccS"), segment("cccS")
    batch = make_batch([admitted("g", trajectory("t", first, second))])
    assert len(batch.packed.targets) == 2


def test_missing_logprobs_or_versions_are_never_made_up():
    bare = segment("cS").model_copy(update={"logprobs": None})
    with pytest.raises(ValueError, match="lacks log-probabilities"):
        make_batch([admitted("g", trajectory("t", bare))])
    unversioned = segment("cS").model_copy(update={"version_spans": []})
    with pytest.raises(ValueError, match="versions"):
        make_batch([admitted("g", trajectory("t", unversioned))])


def test_a_group_that_counted_other_tokens_is_refused():
    group = admitted("g", trajectory("t", segment("cSS")))
    (resolved,) = group.members
    lying = resolved.member.model_copy(update={"sampled_tokens": 3})
    with pytest.raises(ValueError, match="2 sampled tokens, its group has 3"):
        make_batch([type(group)("g", group.reference, (type(resolved)(lying, resolved.trajectory),))])


def test_the_hash_depends_on_everything_that_the_step_depends_on():
    def digest(**changed):
        text = changed.pop("text", "ccSS")
        advantage = changed.pop("advantage", 0.5)
        part = segment(text, **changed)
        return make_batch([admitted("g", trajectory("t", part), advantages=[advantage])]).sha256()

    same = digest()
    assert digest() == same
    others = [
        digest(text="cSSc"),
        digest(advantage=0.25),
        digest(logprobs=[-1.0, -1.5]),
        digest(versions=[0, 1]),
        digest(vocabulary=9),
    ]
    assert len({same, *others}) == 6


def test_the_hash_is_the_same_on_every_machine():
    batch = make_batch([admitted("g", trajectory("t", segment("cS")), advantages=[0.5])])
    assert batch.sha256(1) == "73c342daf865ac170db559813ec900ba509ee94386846ab74f9e6e3fbaebf9d8"
    assert batch.sha256(2) == "567dc28c8d1bb737c1d1f7fdd17fe2c219088945c37415666a464b9a8cfb759b"


def test_each_token_has_the_temperature_that_it_was_sampled_at():
    mixed = trajectory("t", segment("cSScS", temperatures=[1.0, 0.6, 1.3]), segment("cccS", temperatures=[0.7]))
    plain = mixed.model_copy(
        update={"segments": [each.model_copy(update={"sampling_spans": []}) for each in mixed.segments]}
    )
    batch, old = (make_batch([admitted("g", each)]) for each in (mixed, plain))
    assert batch.packed.temperatures.tolist() == pytest.approx([1.0, 0.6, 1.3, 0.7])
    assert select_sequences(batch, [1])[0].packed.temperatures.tolist() == pytest.approx([0.7])
    assert old.packed.temperatures.tolist() == [1.0] * 4
    assert (batch.sha256(1), batch.sha256(2) == old.sha256(2)) == (old.sha256(1), False)


def test_missing_temperatures_are_an_error():
    nothing = segment("cS").model_copy(update={"sampling_spans": [SamplingSpan(temperature=None, start=0, end=1)]})
    with pytest.raises(ValueError, match="lacks temperatures"):
        make_batch([admitted("g", trajectory("t", nothing))])


def test_selected_sequences_keep_what_belongs_to_them():
    batch = make_batch(two_groups())
    part, kept = select_sequences(batch, [3, 1])
    assert kept.tolist() == [5, 2]
    assert part.packed.cu_seqlens.tolist() == [0, 2, 7]
    assert part.behaviour_logprobs.tolist() == pytest.approx([-0.6, -0.3])
    assert part.trajectories.tolist() == [2, 0]
    assert part.advantages.tolist() == [1.0, 0.5]


def test_a_sequence_belongs_to_a_trajectory():
    batch = make_batch(two_groups())
    assert owners_of_sequences(batch).tolist() == [0, 0, 1, 2]
    assert owners_of_sequences(select_sequences(batch, [3, 1])[0]).tolist() == [2, 0]


def test_a_trained_group_points_at_everything():
    group = two_groups()[0].as_trained()
    assert (group.group_id, group.trajectory_ids) == ("g", ["t1", "t2"])
    assert len(group.trajectories) == 2


def test_arrays_of_the_log_become_numpy_without_loss():
    batch = make_batch([admitted("g", trajectory("t", segment("cSS", logprobs=[-0.123456789, -7.5])))])
    assert batch.behaviour_logprobs.tolist() == array("f", [-0.123456789, -7.5]).tolist()
    assert batch.packed.token_ids.dtype == np.int64
