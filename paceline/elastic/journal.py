"""The journal of the coordinator: an SQLite file with everything that must survive kill -9.

A generation or rollback is on disk before any member is notified (synchronous=FULL in WAL mode). The watermark of
committed steps and incidents are written without waiting for the disk, because members report the watermark again. That
is synchronous=NORMAL: the log is still flushed before its pages are copied into the database and it begins anew.
Without that, the machine's end could take generations with it that were answered.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.comm.faults import fault
from paceline.elastic.protocol import Group
from paceline.errors import NoRoom, WrongCommand

SCHEMA = """
create table if not exists generation (number integer primary key, members text, fresh text, steps integer, at real);
create table if not exists deal (number integer primary key, lengths text);
create table if not exists watermark (one integer primary key check (one = 1), generation integer, steps integer);
create table if not exists rollback (at real, generation integer, from_steps integer, to_steps integer);
create table if not exists process (member text primary key, pid integer, born text);
create table if not exists incident (at real, text text);
create table if not exists progress (at real, generation integer, steps integer, members integer, parts text);
"""
UNWRITABLE = ("database or disk is full", "disk I/O error")
GROUPS = "select number, members, fresh, steps, lengths from generation left join deal using (number)"


@dataclass(frozen=True, slots=True)
class Row:
    """The committed steps at a time, and what members have spent on parts of steps so far, in seconds."""

    at: float
    generation: int
    steps: int
    members: int
    parts: dict[str, float]


class Journal:
    """The journal of one job; only its coordinator writes it."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._clock, self._path = clock, path
        with self._damage_named():
            self._file = sqlite3.connect(path, isolation_level=None)
            try:
                self._file.execute("pragma journal_mode=wal")
                self._file.executescript(SCHEMA)
            except sqlite3.DatabaseError:
                self._file.close()
                raise

    @contextmanager
    def _damage_named(self) -> Iterator[None]:
        """Raise WrongCommand for a file that is no journal, or holds rows that no coordinator has written."""
        try:
            yield
        except (sqlite3.DatabaseError, ValueError, TypeError, OverflowError, RecursionError) as problem:
            if str(problem) in UNWRITABLE:  # never advise to remove a journal that is whole
                raise NoRoom(f"the journal {self._path}", why=str(problem), remedy="free some room") from None
            raise WrongCommand(
                f"the journal {self._path}", why=str(problem), remedy="another folder, or remove the file to begin anew"
            ) from None

    def begin(self, group: Group, processes: Mapping[str, int] | None = None) -> None:
        """Write a generation, and a rollback if it starts before steps that were committed. Both are synced.

        `processes` has the pids of members on this host, so that a restarted coordinator can check whether they are
        dead.
        """
        steps = self.watermark()
        self._file.execute("pragma synchronous=full")
        self._file.execute("begin immediate")
        row = (group.generation, json.dumps(group.members), json.dumps(group.fresh), group.steps, self._clock())
        self._file.execute("insert into generation values (?, ?, ?, ?, ?)", row)
        self._file.execute("insert into deal values (?, ?)", (group.generation, json.dumps(group.lengths)))
        if group.steps < steps:
            rollback = (self._clock(), group.generation, steps, group.steps)
            self._file.execute("insert into rollback values (?, ?, ?, ?)", rollback)
        self._mark(group.generation, group.steps)
        fault("within the entry")
        for member, pid in (processes or {}).items():
            self._file.execute("insert or replace into process values (?, ?, ?)", (member, pid, birth_of(pid)))
        self._file.execute("commit")

    def is_dead(self, member: str) -> bool:
        """Return whether the process of a member is known to have ended. A restart of the machine counts, too."""
        with self._damage_named():
            row = self._file.execute("select pid, born from process where member = ?", (member,)).fetchone()
            return row is not None and birth_of(_count(row[0])) != row[1]

    def pid_of(self, member: str) -> int:
        """Return the pid of a member on this host, or 0 if it is not known."""
        with self._damage_named():
            row = self._file.execute("select pid from process where member = ?", (member,)).fetchone()
            return _count(row[0]) if row else 0

    def mark(self, generation: int, steps: int) -> None:
        """Write the watermark; it may be lost with the machine."""
        with self._damage_named():
            self._file.execute("pragma synchronous=normal")
            self._mark(generation, steps)

    def _mark(self, generation: int, steps: int) -> None:
        self._file.execute("insert or replace into watermark values (1, ?, ?)", (generation, steps))

    def note(self, incident: dict[str, Any]) -> int:
        """Write an incident; return its number."""
        self._file.execute("pragma synchronous=normal")
        row = self._file.execute("insert into incident values (?, ?)", (self._clock(), json.dumps(incident)))
        return int(row.lastrowid or 0)

    def amend(self, number: int, incident: dict[str, Any]) -> None:
        """Replace an incident, because more is known about it now."""
        self._file.execute("update incident set text = ? where rowid = ?", (json.dumps(incident), number))

    def progress(self, row: Row) -> None:
        """Write how far training is; it may be lost with the machine."""
        self._file.execute("pragma synchronous=normal")
        values = (row.at, row.generation, row.steps, row.members, json.dumps(row.parts))
        self._file.execute("insert into progress values (?, ?, ?, ?, ?)", values)

    def history(self, last: int | None = None) -> list[Row]:
        """Return the rows of progress, or the last ones, in the order in which they were written."""
        text = "select * from progress order by rowid desc limit ?"
        with self._damage_named():
            rows = self._file.execute(text, (-1 if last is None else last,)).fetchall()
            return [
                Row(float(at), _count(generation), _count(steps), _count(members), dict(json.loads(parts)))
                for at, generation, steps, members, parts in rows[::-1]
            ]

    def last(self) -> Group | None:
        """Return the last generation, or None in a new journal."""
        with self._damage_named():
            row = self._file.execute(f"{GROUPS} order by number desc limit 1").fetchone()
            return None if row is None else _group(row)

    def groups(self) -> list[Group]:
        with self._damage_named():
            return [_group(row) for row in self._file.execute(f"{GROUPS} order by number")]

    def watermark(self) -> int:
        """Return the number of committed steps that was written last."""
        with self._damage_named():
            row = self._file.execute("select steps from watermark").fetchone()
            return _count(row[0]) if row else 0

    def rollbacks(self) -> list[tuple[int, int, int]]:
        """Return generation, steps before and steps after of every rollback."""
        with self._damage_named():
            rows = self._file.execute("select generation, from_steps, to_steps from rollback order by at")
            return [(_count(a), _count(b), _count(c)) for a, b, c in rows]

    def incidents(self, last: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield all incidents, or the last ones, in the order in which they happened."""
        with self._damage_named():
            rows = self._file.execute(
                "select text from incident order by rowid desc limit ?", (-1 if last is None else last,)
            )
            incidents = [json.loads(text) for (text,) in reversed(rows.fetchall())]
            if not all(isinstance(incident, dict) for incident in incidents):
                raise ValueError("an incident that is none")
        yield from incidents

    def close(self) -> None:
        self._file.close()


def birth_of(pid: int) -> str:
    """Return a text that identifies a process of this host for ever, made from its start time; "" if it has ended."""
    from paceline.comm.claim import start_time  # loads torch, which commands such as watch do not need

    started = start_time(pid)
    return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {started}" if started else ""


def _group(row: tuple[Any, ...]) -> Group:
    number, members, fresh, steps, lengths = row
    counts = tuple(map(_count, json.loads(lengths or "[]")))  # older journals have none
    return Group(_count(number), _names(members), _count(steps), _names(fresh), counts)


def _names(text: str) -> tuple[str, ...]:
    names = json.loads(text)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("a generation without members")
    return tuple(names)


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError("a number that no coordinator has written")
    return value
