"""Addresses of an object store, s3://BUCKET/PREFIX, used exactly as written: no character is decoded."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import WrongCommand

SCHEME = "s3://"


@dataclass(frozen=True)
class Address:
    """A bucket and a prefix of its keys, which works like a folder."""

    bucket: str
    prefix: str = ""

    def key(self, name: str) -> str:
        return f"{self.prefix}/{name}" if self.prefix else name

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.prefix}" if self.prefix else f"{SCHEME}{self.bucket}"


@dataclass(frozen=True)
class Item:
    """One object of a listing. `tag` changes when the content changes."""

    bucket: str
    key: str
    size: int
    tag: str

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.key}"


def is_address(text: str) -> bool:
    return text.startswith(SCHEME)


def parse(text: str) -> Address:
    bucket, _, prefix = text.removeprefix(SCHEME).partition("/")
    prefix = prefix.strip("/")
    if not is_address(text) or not bucket or "//" in prefix or {".", ".."} & set(prefix.split("/")):
        raise WrongCommand(f"address {text}", why="it has no bucket, or an empty part", remedy="s3://BUCKET/PREFIX")
    return Address(bucket, prefix)


def refuse_address(text: str, member: str) -> None:
    """Raise for an object store address if a member can only read a folder of this machine."""
    if is_address(text):
        raise WrongCommand(
            f"{member}({text})",
            why="it reads folders of this machine",
            remedy=f"paceline data pack, upload, then tfrecord({text})",
        )
