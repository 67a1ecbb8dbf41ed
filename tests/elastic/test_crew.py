"""Elastic jobs of real processes under SIGKILL and SIGSTOP, judged by four oracles (crew.py)."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.multi  # one process plays all scenarios for all tests: SHARED in tests/conftest.py

SCENARIOS = (
    "undisturbed",
    "after a chunk",
    "after the reduction",
    "after the result",
    "fast, after a chunk",
    "fast, after the vote",
    "down and up",
    "second death, leaving",
    "second death, entering",
    "coordinator killed",
    "torn entry",
    "entry nobody heard of",
    "stopped",
    "slow backward",
    "slow data",
    "hangs",
    "frozen, entering",
    "frozen, waiting for data",
    "left",
    "early",
    "joined",
    "joiner dies",
    "donor dies",
    "all killed",
    "all killed, full disk",
    "slow",
    "slow, fewer members",
    "slow, no tasks",
)

OVER_TCP = (
    "slow",
    "undisturbed",
    "after a chunk",
    "fast, after a chunk",
    "fast, after the reduction",
    "after the vote",
    "fast, after the vote",
    "second death, leaving",
    "stopped",
    "slow data",
    "frozen, waiting for data",
    "left",
    "joined",
    "donor dies",
)

ENDLESS = (  # jobs that end when all has happened, not after three epochs: their last bits depend on the time
    "second death, leaving",
    "second death, entering",
    "slow backward",
    "slow data",
    "hangs",
    "frozen, entering",
    "frozen, waiting for data",
)

OTHERS = (
    "careless",
    "twisted",
    "twisted, rank 0",
    "never goes",
    "all left",
    "early, nobody told",
    "scheduler forgotten",
)


def played(*words):
    """Run scenarios in one process that has imported torch once."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.elastic.crew", *words]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=900, check=True)
    return {line["scenario"]: line for line in map(json.loads, done.stdout.splitlines())}


@pytest.fixture(scope="module")
def results():
    return played(*SCENARIOS, *OTHERS)


@pytest.fixture(scope="module")
def over_tcp():
    return played("--comm", "tcp", *OVER_TCP, "careless")


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_sample_counts_once_and_all_members_agree(results, scenario):
    exactly_once(results[scenario])


@pytest.mark.parametrize("scenario", OVER_TCP)
def test_over_tcp_every_sample_counts_once_and_bits_are_those_of_shm(results, over_tcp, scenario):
    exactly_once(over_tcp[scenario])
    if not scenario.startswith("fast") and scenario not in ENDLESS:
        assert over_tcp[scenario]["hash"] == results["undisturbed"]["hash"]


def test_over_tcp_a_frozen_worker_is_fenced_and_a_joiner_trains_on(over_tcp):
    assert over_tcp["stopped"]["fenced"] == 1
    assert over_tcp["joined"]["joiner"] >= 1
    assert over_tcp["donor dies"]["ended"] == 3
    assert over_tcp["left"]["what"] == ["generation", "left", "generation"]


def test_over_tcp_the_oracles_notice_a_step_that_is_applied_without_a_verdict(over_tcp):
    assert not over_tcp["careless"]["counts"]


def exactly_once(result):
    assert result.get("ledger"), result
    assert result["counts"], result
    assert result["replicas"], result
    assert set(result["codes"]) == {0}, result
    assert len(result["hash"]) == 1, result


@pytest.mark.parametrize(
    "scenario", [name for name in SCENARIOS if not name.startswith("fast") and name not in ENDLESS]
)
def test_the_result_does_not_depend_on_the_members(results, scenario):
    assert results[scenario]["hash"] == results["undisturbed"]["hash"]


def test_a_frozen_worker_that_wakes_up_is_fenced_and_comes_back(results):
    assert results["stopped"]["fenced"] == 1
    assert results["stopped"]["generations"] >= 3


@pytest.mark.parametrize("scenario", ["slow backward", "slow data"])
def test_a_worker_whose_gradients_come_or_that_waits_for_its_data_is_not_evicted(results, scenario):
    assert results[scenario]["what"] == ["generation"]
    assert results[scenario]["gap"] > 3.0


def test_one_who_waits_for_its_data_is_not_evicted_over_tcp_either(over_tcp):
    assert over_tcp["slow data"]["what"] == ["generation"]
    assert over_tcp["slow data"]["gap"] > 3.0


@pytest.mark.parametrize("scenario", ["twisted", "twisted, rank 0"])
def test_a_member_with_other_bits_is_noticed_and_takes_the_state_of_the_others(results, scenario):
    result = results[scenario]
    assert result["what"].count("differs") == 1
    assert (result["ledger"], result["counts"], result["codes"]) == (True, True, [0, 0, 0, 0])
    assert (0 < result["wrong"] <= 11, result["agree"]) == (True, True)
    assert len(result["hash"]) == 1


def test_a_worker_that_hangs_as_long_is_evicted_and_comes_back(results):
    assert results["hangs"]["what"].count("silent") >= 1
    assert results["hangs"]["what"].count("fenced") >= 1
    assert results["hangs"]["generations"] >= 3


def test_a_member_that_is_frozen_while_it_waits_for_data_is_not_waited_for_longer(results, over_tcp):
    for result in (results, over_tcp):
        assert result["frozen, waiting for data"]["waited"] < 10.0


def test_a_member_that_is_frozen_before_it_meets_the_others_is_not_waited_for_longer(results):
    assert 2.0 < results["frozen, entering"]["waited"] < 10.0


def test_an_entry_of_the_journal_is_there_or_absent_for_all(results):
    assert results["torn entry"]["kept"] == 1
    assert results["entry nobody heard of"]["kept"] == 2


@pytest.mark.parametrize("comm", ["shm", "tcp"])
def test_a_slow_worker_gets_fewer_tasks_from_a_border_on(results, over_tcp, comm):
    result = {"shm": results, "tcp": over_tcp}[comm]["slow"]
    deals, computed = result["deals"], result["computed"]
    assert deals[0] == {"0": 2, "1": 2, "2": 2, "3": 2}
    assert len(deals) >= 2
    assert deals[-1]["3"] == 1
    assert computed["3"] == [1]
    assert sum(max(counts) for counts in computed.values()) == 8
    assert all(steps % 3 == 0 for steps in result["starts"])


def test_the_tasks_of_a_worker_that_dies_go_to_the_others_by_their_speed(results):
    last = results["slow, fewer members"]["deals"][-1]
    assert last == {"1": 4, "2": 3, "3": 1} or last == {"1": 3, "2": 4, "3": 1}


def test_without_tasks_a_slow_worker_keeps_its_shards(results):
    assert results["slow, no tasks"]["deals"] == [{"0": 2, "1": 2, "2": 2, "3": 2}]


def test_newcomers_join_while_training_goes_on(results):
    assert results["down and up"]["generations"] >= 3


def test_the_oracles_notice_a_step_that_is_applied_without_a_verdict(results):
    assert not results["careless"]["counts"]


def test_a_worker_that_is_asked_to_end_leaves_after_its_step_with_one_new_generation(results):
    assert results["left"]["what"] == ["generation", "left", "generation"]
    assert results["left"]["abandoned"] == 0


def test_a_member_that_asks_in_every_vote_and_never_goes_makes_a_generation_per_step(results):
    assert results["never goes"]["generations"] > 3


def test_training_that_all_workers_left_is_a_failure(results):
    assert results["all left"] == {**results["all left"], "codes": [0, 0], "coordinator": 1, "ended": 0}


def test_the_first_group_waits_for_a_worker_that_may_still_come(results):
    assert results["early, nobody told"] == {**results["early, nobody told"], "committed": 0, "running": 3}


def test_a_worker_joins_during_training_and_trains_on(results):
    assert results["joined"]["generations"] == 2
    assert results["joined"]["joiner"] >= 1
    assert results["joined"]["ended"] == 4


def test_the_oracles_notice_a_joiner_whose_scheduler_begins_anew(results):
    assert results["scheduler forgotten"]["joiner"] >= 1
    assert not results["scheduler forgotten"]["replicas"]


def test_the_death_of_a_joiner_in_the_transfer_costs_the_others_nothing(results):
    assert (results["joiner dies"]["joiner"], results["joiner dies"]["ended"]) == (0, 3)


def test_a_joiner_whose_donor_dies_gets_the_state_from_another(results):
    assert results["donor dies"]["joiner"] >= 1
    assert results["donor dies"]["ended"] == 3


@pytest.mark.parametrize("scenario", ["all killed", "all killed, full disk"])
def test_after_the_death_of_all_a_rollback_withdraws_what_came_after_the_checkpoint(results, scenario):
    result = results[scenario]
    ((_, before, after),) = result["rollbacks"]
    assert after == 3 < before
    assert not result["unaware"]  # the ledger is wrong without the rollback


def test_a_full_disk_leaves_the_checkpoint_before_as_it_was(results):
    assert results["all killed, full disk"]["kept"] == ["step-00000003"]
    assert "no checkpoint" in results["all killed, full disk"]["what"]
    assert "no checkpoint" not in results["all killed"]["what"]
