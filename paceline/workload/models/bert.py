"""BERT with both of its pre-training losses (Devlin et al. 2019, arXiv 1810.04805). No weights are downloaded.

    [cls] w w w w [sep] w w w [sep] pad pad      word numbers rise by a step computed from the sample's id
          ^ some words hidden as [mask]          the second half continues the first, or starts elsewhere

Lengths vary and padding is masked out. Hidden words can be predicted from their neighbors, and the next-sentence
label from the boundary between the halves. Every sample hides the same number of words, so that the mean loss of a
batch equals the mean over equal shares of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paceline.errors import BadMember, MissingPackage
from paceline.types import Workload
from paceline.workload.models._scatter import scatter

_PAD, _CLS, _SEP, _MASK, _FIRST_WORD = 0, 1, 2, 3, 4
_POSITIONS = 512
_IGNORED = -100  # the label that torch's cross-entropy ignores
_SHORTEST = 8
_STRIDES = 16
_LENGTH, _START, _STRIDE, _NEXT, _ELSEWHERE, _HIDDEN = (k << 40 for k in range(1, 7))


def bert_base(
    *,
    sequence_length: int = 128,
    vocabulary: int = 30522,
    layers: int = 12,
    hidden: int = 768,
    dropout: float = 0.1,
) -> Workload:
    return _workload("bert_base", sequence_length, vocabulary, layers, hidden, dropout)


def bert_large(
    *,
    sequence_length: int = 128,
    vocabulary: int = 30522,
    layers: int = 24,
    hidden: int = 1024,
    dropout: float = 0.1,
) -> Workload:
    return _workload("bert_large", sequence_length, vocabulary, layers, hidden, dropout)


@dataclass(frozen=True)
class Sequences:
    """Synthetic texts: batch(ids) -> (words, attention mask, segments, hidden-word labels, next-sentence labels)."""

    length: int
    vocabulary: int

    @property
    def hidden_words(self) -> int:
        """Return the number of hidden words per sample: 15 % of the shortest sequence, at least one."""
        return max(1, (self.length // 2 - 3) * 15 // 100)

    def __call__(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        place = torch.arange(self.length, device="cpu").expand(len(ids), -1)
        shortest = self.length // 2
        end = (shortest + scatter(ids, _LENGTH) % (self.length - shortest + 1) - 1)[:, None]
        seam = end // 2
        is_next = scatter(ids, _NEXT) % 2 == 0
        words = self._words(ids, place, seam, is_next)
        words = words.masked_fill(place == 0, _CLS).masked_fill((place == seam) | (place == end), _SEP)
        words = words.masked_fill(place > end, _PAD)
        hidden = self._hidden(ids, place, words)
        labels = words.masked_fill(~hidden, _IGNORED)
        segments = (place > seam) & (place <= end)
        # as in the paper's code, label 0 means that the second half continues the first
        return (
            words.masked_fill(hidden, _MASK),
            (place <= end).long(),
            segments.long(),
            labels,
            (~is_next).long(),
        )

    def _words(self, ids: Tensor, place: Tensor, seam: Tensor, is_next: Tensor) -> Tensor:
        stride = 1 + scatter(ids, _STRIDE) % _STRIDES
        start = scatter(ids, _START) % self.vocabulary
        elsewhere = (scatter(ids, _ELSEWHERE) % self.vocabulary).masked_fill(is_next, 0)
        jump = torch.where(place > seam, elsewhere[:, None], 0)
        return _FIRST_WORD + (start[:, None] + stride[:, None] * place + jump) % (self.vocabulary - _FIRST_WORD)

    def _hidden(self, ids: Tensor, place: Tensor, words: Tensor) -> Tensor:
        score = scatter(ids[:, None] * _POSITIONS + place, _HIDDEN)
        chosen = score.masked_fill(words < _FIRST_WORD, -1).topk(self.hidden_words, dim=1).indices
        return torch.zeros_like(words, dtype=torch.bool).scatter_(1, chosen, True)


def _workload(word: str, sequence_length: int, vocabulary: int, layers: int, hidden: int, dropout: float) -> Workload:
    _check(word, sequence_length, vocabulary, layers, hidden)
    try:
        from transformers import BertConfig, BertForPreTraining
    except ImportError:
        raise MissingPackage(f"model {word}", package="transformers", extra="bert") from None
    settings: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": max(1, hidden // 64),
        "intermediate_size": 4 * hidden,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
        "max_position_embeddings": _POSITIONS,
        "pad_token_id": _PAD,
        "attn_implementation": "sdpa",  # takes the mask of pairs that _loss makes
    }
    return Workload(
        BertForPreTraining(BertConfig(**settings)), _loss, Sequences(sequence_length, vocabulary), "sequence"
    )


def _loss(model: Any, batch: tuple[Tensor, ...]) -> Tensor:
    words, attention, segments, labels, next_sentence = batch
    # a full mask is used unchanged; a mask per word would be read on the host, which stalls a GPU
    every_pair = attention.bool()[:, None, None, :].expand(-1, 1, words.shape[1], -1)
    return model(
        input_ids=words,
        attention_mask=every_pair,
        token_type_ids=segments,
        labels=labels,
        next_sentence_label=next_sentence,
    ).loss


def _check(word: str, sequence_length: int, vocabulary: int, layers: int, hidden: int) -> None:
    if not _SHORTEST <= sequence_length <= _POSITIONS:
        raise BadMember(
            f"{word}(sequence_length={sequence_length})",
            why=f"{word} takes sequences of {_SHORTEST} to {_POSITIONS} words",
        )
    if vocabulary < 2 * _STRIDES:
        raise BadMember(f"{word}(vocabulary={vocabulary})", why=f"a vocabulary has at least {2 * _STRIDES} words")
    if layers < 1 or hidden < 2 or (hidden > 64 and hidden % 64):
        raise BadMember(
            f"{word}(layers={layers}, hidden={hidden})",
            why="there is at least one layer, and hidden is a multiple of 64 or smaller: heads are 64 wide",
        )
