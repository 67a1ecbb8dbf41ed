"""push_sum over windows: mass that lies unread is in every checkpoint, however often one is loaded and saved."""

import pytest

from tests.train.test_rule_checkpoints import Parabola, ranks, resumed, unread

CHOICE = "push_sum", "window(ring)"


def with_unread_mass(comm):
    """Rank 1 has given of its mass to rank 0, which has not looked."""
    run = Parabola(comm, *CHOICE).train(1)
    comm.barrier()
    if comm.rank == 1:
        run.train(2)
    comm.barrier()
    return run


def mass_of(comm, run):
    comm.barrier()
    found = run.pace.duty.p + sum(unread(run.pace))
    comm.barrier()
    return found


def test_a_checkpoint_that_is_saved_before_the_first_step_has_what_the_last_one_had():
    def work(comm):
        run = with_unread_mass(comm)
        assert comm.rank or unread(run.pace)
        again = resumed(comm, *CHOICE, run.saved())
        assert unread(again.pace) == unread(run.pace)
        third = resumed(comm, *CHOICE, again.saved())
        return mass_of(comm, third.train(3))

    assert sum(ranks(work)) == pytest.approx(4.0, abs=1e-12)


def test_what_arrives_after_a_checkpoint_was_loaded_is_saved_on_top_of_it():
    def work(comm):
        run = with_unread_mass(comm)
        run.pace.load_state_dict(run.pace.state_dict())
        parked = sum(unread(run.pace))
        for giver in (2, 1):  # rank 1 has next to nothing to give before rank 2 gives to it
            comm.barrier()
            if comm.rank == giver:
                run.train(2)
        comm.barrier()
        assert comm.rank or sum(unread(run.pace)) > parked > 0
        third = resumed(comm, *CHOICE, run.saved())
        return mass_of(comm, third.train(3))

    assert sum(ranks(work)) == pytest.approx(4.0, abs=1e-12)
