from paceline.report.tensorboard import scalars, write_scalars
from tests.report.samples import record


def test_scalars_are_loss_rate_and_parts():
    kept = record()
    found = list(scalars(kept))
    assert [value for name, _, value in found if name == "loss"] == kept.loss
    assert len([name for name, _, _ in found if name == "rate/img per second"]) == 3
    assert ("step/forward ms", 0, 1e3 * kept.breakdown["forward"]) in found


def test_tensorboard_can_read_what_was_written(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    kept = record()
    write_scalars(kept, tmp_path)
    read = EventAccumulator(str(tmp_path / kept.id))
    read.Reload()
    assert len(read.Scalars("loss")) == len(kept.loss)
    assert "step/backward ms" in read.Tags()["scalars"]
