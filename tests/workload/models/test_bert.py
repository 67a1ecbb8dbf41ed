"""Sequences for BERT."""

import pytest
import torch

from paceline.workload.models.bert import Sequences
from paceline.workload.resolve import build

IDS = torch.arange(200)
TINY = "bert_base(layers=2, hidden=64, dropout=0, vocabulary=200, sequence_length=32)"


@pytest.fixture(scope="module")
def batch():
    return Sequences(length=64, vocabulary=1000)(IDS)


def test_every_sample_hides_the_same_number_of_words(batch):
    words, _, _, labels, _ = batch
    hidden = labels != -100
    assert set(hidden.sum(1).tolist()) == {Sequences(64, 1000).hidden_words}
    assert torch.equal(words == 3, hidden)


def test_lengths_vary_and_padding_is_masked(batch):
    words, attention, segments, _, _ = batch
    lengths = attention.sum(1)
    assert int(lengths.min()) == 32
    assert int(lengths.max()) == 64
    assert torch.equal(words == 0, attention == 0)
    assert not segments[attention == 0].any()


def test_a_sequence_begins_and_ends_with_its_marks(batch):
    words, attention, segments, _, _ = batch
    assert (words[:, 0] == 1).all()
    assert ((words == 2).sum(1) == 2).all()
    assert (words.gather(1, attention.sum(1, keepdim=True) - 1) == 2).all()
    assert (segments.gather(1, (words == 2).int().argmax(1, keepdim=True)) == 0).all()


def test_hidden_words_follow_from_their_neighbors(batch):
    words, attention, segments, labels, next_sentence = batch
    full = torch.where(labels == -100, words, labels)
    inside = (full >= 4) & (attention == 1)
    for row in range(20):
        for segment in (0, 1):
            run = full[row][inside[row] & (segments[row] == segment)]
            assert len(set(((run[1:] - run[:-1]) % 996).tolist())) == 1
    assert 60 < int(next_sentence.sum()) < 140


def test_the_second_half_goes_on_where_the_label_is_zero(batch):
    words, _, _, labels, next_sentence = batch
    full = torch.where(labels == -100, words, labels)
    seam = (words == 2).int().argmax(1, keepdim=True)
    step = (full[:, 2:3] - full[:, 1:2]) % 996
    across = (full.gather(1, seam + 1) - full.gather(1, seam - 1)) % 996
    goes_on = (across == 2 * step % 996).squeeze(1)
    assert goes_on[next_sentence == 0].all()
    assert goes_on[next_sentence == 1].sum() <= 2  # elsewhere may be here once in a thousand


@pytest.mark.parametrize("length", [8, 9, 13, 512])
def test_the_shortest_and_longest_sequences_work(length):
    sequences = Sequences(length, 40)
    words, _, _, labels, _ = sequences(IDS)
    assert words.shape == (200, length)
    assert ((labels != -100).sum(1) == sequences.hidden_words).all()
    assert (labels[labels != -100] >= 4).all()
    assert int(words.max()) < 40


def test_a_loss_over_a_batch_is_the_mean_over_equal_shares():
    workload = build(TINY)
    whole = workload.loss(workload.model, workload.batch(IDS[:8]))
    shares = [workload.loss(workload.model, workload.batch(IDS[2 * k : 2 * k + 2])) for k in range(4)]
    torch.testing.assert_close(whole, sum(shares) / 4)


def test_padding_does_not_reach_the_loss():
    workload = build(TINY)
    words, attention, *rest = workload.batch(IDS[:8])
    scribbled = torch.where(attention == 0, 77, words)
    loss = workload.loss(workload.model, (words, attention, *rest))
    assert not torch.equal(words, scribbled)
    torch.testing.assert_close(workload.loss(workload.model, (scribbled, attention, *rest)), loss)


def test_without_the_mask_padding_would_reach_the_loss():
    workload = build(TINY)
    words, attention, *rest = workload.batch(IDS[:8])
    loss = workload.loss(workload.model, (words, attention, *rest))
    open_mask = workload.loss(workload.model, (words, torch.ones_like(attention), *rest))
    assert abs(open_mask - loss) > 1e-4
