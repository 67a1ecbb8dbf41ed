"""Records of other lengths, decoded together: the fields are those of each record decoded alone, damaged or not."""

import random

import pytest

from paceline.workload.tfrecord import alike
from paceline.workload.tfrecord.alike import Alike
from paceline.workload.tfrecord.example import encode
from paceline.workload.tfrecord.walk import SHORT, walk
from tests.workload.tfrecord.test_frames import decoded, rows_of

dice = random.Random(11)
LABELS = (0, 7, 127, 128, 300, 1 << 20, (1 << 28) - 1)


def records(count=40, most=400, labels=LABELS):
    """Records of the usual form, with the same fields and almost as many lengths as records."""
    return [
        encode(
            {
                "image/encoded": dice.randbytes(dice.randrange(most)),
                "image/class/label": [dice.choice(labels)],
                "box": [dice.choice((0.5, -2.0)), 1.5],
                "größe": dice.randbytes(dice.randrange(3)),
            }
        )
        for _ in range(count)
    ]


def rows(found, count):
    return [{name: column[k] for name, column in found.items()} for k in range(count)]


@pytest.mark.parametrize("most", [1, 100, 200, 40_000])
def test_fields_are_those_of_each_record(most):
    made = records(most=most)
    found = walk(made)
    if most == 40_000:
        assert found is None, f"in the mean longer than {SHORT} bytes"
        return
    assert rows(found, len(made)) == decoded(made)


def test_a_decoder_uses_it_for_many_lengths_only(monkeypatch):
    walked = []
    monkeypatch.setattr(alike, "walk", lambda made: walked.append(len(made)) or walk(made))
    made, decode = records(), Alike()
    assert rows_of(decode, made) == decoded(made)
    assert walked == [40]
    for few in (made[:5], [made[0]] * 40, [*[made[0]] * 100, *[made[1]] * 100]):
        assert rows_of(decode, few) == decoded(few)
    assert walked == [40]


@pytest.mark.parametrize(
    "odd",
    [
        encode({}),
        encode({"image/encoded": b"x"}),
        encode({"image/encoded": b"x", "image/class/label": [1 << 40], "box": [1.0, 2.0], "größe": b""}),
        encode({"image/encoded": b"x", "image/class/label": [-1], "box": [1.0, 2.0], "größe": b""}),
        encode({"image/encoded": b"x", "image/class/label": [1, 2], "box": [1.0, 2.0], "größe": b""}),
        encode({"image/encoded": b"x", "image/class/label": [1], "box": [1.0], "größe": b""}),
        encode({"image/encoded": [3], "image/class/label": [1], "box": [1.0, 2.0], "größe": b""}),
        encode({"image/encodeD": b"x", "image/class/label": [1], "box": [1.0, 2.0], "größe": b""}),
        encode({"image/encoded": b"x", "image/class/label": [], "box": [1.0, 2.0], "größe": b""}),
    ],
)
@pytest.mark.parametrize("place", [0, 17, 39])
def test_one_record_of_another_form_is_decoded_as_well(odd, place):
    made = records(39)
    made.insert(place, odd)
    assert walk(made) is None
    assert rows_of(Alike(), made) == decoded(made)


def test_a_damaged_record_among_others_gives_what_it_gives_alone():
    """A record that is refused alone is refused here; one that stays valid has the same fields."""
    outcomes = set()
    for _ in range(1500):
        made = records(16, 60)
        damaged = bytearray(made[dice.randrange(16)])
        for _ in range(dice.randrange(1, 3)):
            damaged[dice.randrange(len(damaged))] = dice.randrange(256)
        damaged = damaged[: dice.choice((len(damaged), dice.randrange(len(damaged) + 1)))]
        made[dice.randrange(16)] = bytes(damaged)
        expected = decoded(made)
        found = walk(made)
        outcomes.add((found is None, None in expected))
        if found is not None:
            assert None not in expected
            assert repr([sorted(row.items()) for row in rows(found, 16)]) == repr(
                [sorted(row.items()) for row in expected]
            )
    assert outcomes == {(True, True), (True, False), (False, False)}


def test_labels_of_several_bytes_in_records_of_one_length():
    made = [encode({"a": b"abc", "b": [number]}) for number in range(128, 400, 3)]
    assert rows_of(Alike(), made) == decoded(made)
    packed = [encode({"a": b"abc", "b": pair}) for pair in [[1, 2], [300], [5, 6], [127, 0]] * 10]
    assert rows_of(Alike(), packed) == decoded(packed)
