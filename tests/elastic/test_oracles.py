"""The oracles of `paceline chaos`: what they accept, and every kind of wrong that they notice."""

import json
import re

import pytest

from paceline.cli import main
from paceline.elastic.oracles import judge, read_ledger, uses


def commit(step, generation, bits="x"):
    return {"what": "commit", "step": step, "generation": generation, "hash": bits}


def shard(step, generation, number):
    return {"what": "shard", "step": step, "generation": generation, "shard": number}


def good():
    """Two shards; step 1 was begun in generation 1 and made again in generation 2."""
    lines = [shard(0, 1, 0), shard(0, 1, 1), commit(0, 1), commit(0, 1)]
    return [*lines, shard(1, 1, 1), shard(1, 2, 0), shard(1, 2, 1), commit(1, 2, "y")]


def test_a_step_that_was_made_again_counts_once():
    verdict = judge(good())
    assert verdict.problems == ()
    assert (verdict.steps, verdict.last) == (2, {"y"})
    assert verdict.goodput == pytest.approx(4 / 5)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ([commit(1, 1, "y")], "step 1 was committed in 2 generations"),
        ([commit(3, 2, "y")], "step 2 was committed in 0 generations"),
        ([shard(1, 2, 0)], r"step 1 was committed with shards \[0, 0, 1\] of 2"),
        ([shard(2, 2, 0), commit(2, 2)], r"step 2 was committed with shards \[0\] of 2"),
        ([commit(1, 2, "z")], "members have 2 different states after step 1"),
    ],
)
def test_every_wrong_is_noticed(more, text):
    (first, *_) = judge([*good(), *more]).problems
    assert re.fullmatch(text, first)


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ([], (0, 0)),
        ([commit(1, 1, "y")], (0, 1)),  # of its two shards, generation 1 had computed one
        ([shard(1, 2, 0)], (0, 1)),
        ([shard(2, 2, 0), commit(2, 2)], (0, 0)),  # beyond the steps that are asked for
    ],
)
def test_uses_of_shards_are_counted(more, found):
    assert uses([*good(), *more], (), 2) == found


def test_shards_that_no_commit_has_used_are_lost():
    assert uses([line for line in good() if line != shard(1, 2, 1)], (), 2) == (1, 0)
    assert uses(good(), (), 3) == (2, 0)
    assert uses(good(), [(2, 2, 0)], 2) == (2, 0), "a rollback withdraws step 0"


def test_a_job_without_commits_is_wrong():
    assert judge([]).problems == ("no step was committed",)


def test_a_rollback_withdraws_what_was_committed_after_the_checkpoint():
    again = [shard(1, 3, 0), shard(1, 3, 1), commit(1, 3, "y")]
    assert judge([*good(), *again]).problems
    assert judge([*good(), *again], [(3, 2, 1)]).problems == ()


def test_the_torn_last_line_of_a_killed_member_is_left_out(tmp_path):
    text = "\n".join(json.dumps(line) for line in good())
    (tmp_path / "ledger-a.jsonl").write_text(text + '\n{"what": "comm')
    assert read_ledger(tmp_path) == good()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["chaos"], "nothing to start"),
        (["chaos", "--kinds", "flood", "--", "true"], "known are kill, stop, leave, join, coordinator"),
        (["chaos", "--kinds", ",", "--", "true"], "no kind of fault is named"),
        (["chaos", "--membership", "fixed", "--", "true"], "its members never change"),
    ],
)
def test_a_wrong_command_is_refused(words, text, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert text in capsys.readouterr().err
