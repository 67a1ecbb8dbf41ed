"""TFRecord files: written, read back, damaged bit by bit, cut, and lied to."""

import random
import tracemalloc

import google_crc32c
import pytest

from paceline.errors import DamagedFile, WrongCommand
from paceline.workload.tfrecord.alike import LONG, Alike
from paceline.workload.tfrecord.example import decode, encode
from paceline.workload.tfrecord.frames import AROUND, CHECK, Lengths, crc32c, masked, scan, unpack, write
from paceline.workload.tfrecord.pack import verify

RECORDS = [random.Random(k).randbytes(k % 7) for k in range(50)]


def written(path, records=RECORDS):
    with open(path, "wb") as stream:
        return write(stream, records)


def read(path):
    damages = []
    return [bytes(data) for _, data in scan(path, damages)], damages


def test_records_come_back(tmp_path):
    offsets = written(tmp_path / "a.tfrecord")
    assert read(tmp_path / "a.tfrecord") == (RECORDS, [])
    assert offsets == [AROUND * k + sum(map(len, RECORDS[:k])) for k in range(50)]


def test_the_checksum_is_the_published_one():
    assert google_crc32c.value(b"123456789") == 0xE3069283
    assert masked(0) == 0xA282EAD8
    assert masked(0x8000) == 0xA282EAD9


def test_every_flipped_bit_is_noticed_and_named(tmp_path):
    path = tmp_path / "a.tfrecord"
    offsets = written(path)
    content = path.read_bytes()
    for place in range(len(content)):
        number = max(k for k in range(50) if offsets[k] <= place)
        inside = place - offsets[number]
        for bit in range(8):
            damaged = bytearray(content)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            records, damages = read(path)
            (damage,) = damages
            assert (damage.record, damage.offset, damage.file) == (number, offsets[number], str(path))
            length = len(RECORDS[number])
            spans = (
                ("length", 8),
                ("checksum of length", 12),
                ("data", 12 + length),
                ("checksum of data", 16 + length),
            )
            assert damage.field == next(field for field, end in spans if inside < end)
            assert records[:number] == RECORDS[:number]
            if inside < 12:
                assert damage.unchecked == len(content) - offsets[number] - 12
                assert len(records) == number
            else:
                assert records[number:] == RECORDS[number + 1 :]


def test_a_file_that_was_cut_delivers_what_came_before(tmp_path):
    path = tmp_path / "a.tfrecord"
    offsets = written(path)
    content = path.read_bytes()
    for size in (*range(1, 60), len(content) - 1, len(content) - 3):
        path.write_bytes(content[:size])
        records, damages = read(path)
        whole = sum(offset + AROUND + len(record) <= size for offset, record in zip(offsets, RECORDS, strict=True))
        assert records == RECORDS[:whole]
        assert len(damages) == (size not in offsets)


def test_a_length_with_a_valid_checksum_allocates_nothing(tmp_path):
    path = tmp_path / "a.tfrecord"
    written(path, RECORDS[:3])
    length = (1 << 63).to_bytes(8, "little")
    with open(path, "ab") as stream:
        stream.write(length + CHECK.pack(masked(crc32c()(length))) + b"x" * 100)
    tracemalloc.start()
    records, (damage,) = read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert records == RECORDS[:3]
    assert "a length of 9,223,372,036,854,775,808 bytes" in damage.field
    assert peak < 1 << 20


def test_verify_goes_on_with_the_next_file_and_names_what_stayed_unchecked(tmp_path):
    for name in ("train-00000-of-00002", "train-00001-of-00002"):
        written(tmp_path / name)
    path = tmp_path / "train-00000-of-00002"
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)
    verdict = verify(tmp_path)
    assert (verdict.files, verdict.records, len(verdict.damages)) == (2, 50, 1)
    assert str(verdict.damages[0]).endswith(f"length; {len(content) - 12:,} bytes after it stayed unchecked")
    (tmp_path / "empty").mkdir()
    with pytest.raises(WrongCommand, match="no TFRecord files"):
        verify(tmp_path / "empty")
    with pytest.raises(WrongCommand, match="no such file or folder"):
        verify(tmp_path / "nothing")


def test_a_record_read_by_its_index_is_checked(tmp_path):
    path = tmp_path / "a.tfrecord"
    offsets = written(path)
    frame = path.read_bytes()[offsets[5] : offsets[6]]
    lengths = Lengths(crc32c())
    assert unpack(path, 5, offsets[5], frame, lengths) == RECORDS[5]
    assert unpack(path, 5, offsets[5], memoryview(frame), lengths) == RECORDS[5]
    for wrong in (frame[:-1], b"", frame + b"x", bytes([frame[0] ^ 1]) + frame[1:]):
        with pytest.raises(DamagedFile, match=rf"offset {offsets[5]}: record 5"):
            unpack(path, 5, offsets[5], wrong, lengths)


def test_fields_of_an_example_come_back():
    fields = {"image/encoded": b"\x00\xffjpeg", "label": [-3, 0, 1 << 40], "x": [0.5, -2.0], "empty": b""}
    found = decode(memoryview(encode(fields)))
    assert bytes(found["image/encoded"][0]) == fields["image/encoded"]
    assert found["label"] == fields["label"]
    assert found["x"] == fields["x"]
    assert bytes(found["empty"][0]) == b""


def test_a_damaged_example_raises_a_value_error_and_nothing_else():
    content, dice = encode({"a": b"xyz" * 5, "b": [1, 300, 5], "c": [1.5, 2.5]}), random.Random(1)
    for _ in range(3000):
        damaged = bytearray(content)
        for _ in range(dice.randrange(1, 4)):
            damaged[dice.randrange(len(damaged))] = dice.randrange(256)
        try:
            decode(memoryview(bytes(damaged[: dice.randrange(len(damaged) + 1)])))
        except ValueError:
            pass


def plain(fields):
    """The fields of a record with bytes for views; None where a record has no such field is left out."""
    return {
        name: [bytes(value) if isinstance(value, memoryview) else value for value in values]
        for name, values in fields.items()
        if values is not None
    }


def decoded(records):
    """The fields of every record, each decoded alone in full; None for one that is refused."""
    out = []
    for record in records:
        try:
            out.append(plain(decode(memoryview(record))))
        except ValueError:
            out.append(None)
    return out


def rows_of(alike, records):
    columns = alike(records)
    return [plain({name: column[k] for name, column in columns.items()}) for k in range(len(records))]


def test_records_that_look_alike_give_the_fields_of_any_record():
    dice, alike = random.Random(3), Alike()
    for _ in range(60):
        records = []
        for _ in range(dice.choice((1, 2, 20))):
            fields = {
                "image": dice.randbytes(dice.choice((0, 5, 200, LONG))),
                "label": [dice.choice((0, 7, 127, 128, 1 << 40, -1)) for _ in range(dice.choice((0, 1, 1, 3)))],
                "box": [dice.choice((0.5, 2.5)) for _ in range(dice.choice((0, 2)))],
                "größe": b"x",
            }
            records.append(encode(dict(dice.sample(sorted(fields.items()), dice.randrange(5)))))
        assert rows_of(alike, records) == decoded(records)


def test_damaged_records_that_look_alike_are_refused_as_any_record_is():
    """Damage that keeps the length meets the skeleton of sound records."""
    dice, alike = random.Random(5), Alike()
    content = encode({"image": b"jpeg" * 40, "label": [1, 300, 5], "class": [7], "box": [0.5, 1.5]})
    assert alike([content] * 3)["label"] == [[1, 300, 5]] * 3
    outcomes = set()
    for _ in range(5000):
        damaged = bytearray(content)
        for _ in range(dice.randrange(1, 3)):
            damaged[dice.randrange(len(damaged))] = dice.randrange(256)
        (expected,) = decoded([bytes(damaged)])
        outcomes.add(expected is None)
        if expected is None:
            with pytest.raises(ValueError):
                alike([content, bytes(damaged)])
        else:  # repr: NaN is not equal to itself
            row = rows_of(alike, [content, bytes(damaged)])[1]
            assert repr(sorted(row.items())) == repr(sorted(expected.items()))
    assert outcomes == {True, False}


def test_records_longer_than_a_block_and_many_short_ones_are_checked(tmp_path, monkeypatch):
    monkeypatch.setattr("paceline.workload.tfrecord.frames._BLOCK", 600)
    records = [random.Random(k).randbytes(n) for k, n in enumerate([3] * 40 + [5000, 599, 600, 0, 584, 585] + [7] * 40)]
    path = tmp_path / "a.tfrecord"
    offsets = written(path, records)
    assert read(path) == (records, [])
    damaged = bytearray(path.read_bytes())
    for number in (5, 40, 60):
        damaged[offsets[number] + 12] ^= 1
    path.write_bytes(damaged)
    kept, damages = read(path)
    assert kept == [record for k, record in enumerate(records) if k not in (5, 40, 60)]
    assert [(damage.record, damage.field) for damage in damages] == [(5, "data"), (40, "data"), (60, "data")]
