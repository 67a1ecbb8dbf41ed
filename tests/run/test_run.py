import pytest
from pydantic import ValidationError

from paceline.errors import WrongCommand
from paceline.run.run import Run


def test_a_run_survives_json():
    run = Run(workers=4, model="resnet18", compile=True, clip_norm=1.5)
    assert Run.model_validate_json(run.model_dump_json()) == run


def test_the_text_has_only_what_was_asked_for():
    run = Run(workers=2, model="resnet18", schedule="fusion(mb=4)", compile=True)
    assert run.text == "paceline run -np 2 --schedule 'fusion(mb=4)' --model resnet18 --compile"


def test_unknown_fields_are_refused():
    with pytest.raises(ValidationError):
        Run(wrokers=2)


def test_the_global_batch_is_shared_among_workers_and_backwards():
    assert Run(workers=4, global_batch=64, accumulate=2).per_worker == 8
    assert Run(workers=4, global_batch=64, accumulate=2).samples_per_step == 64
    assert Run(workers=4, batch_size=16).samples_per_step == 64


def test_numbers_keep_all_their_digits_in_the_command():
    run = Run(clip_norm=0.12345678, deadline=1234567.0, cpus=0.3)
    assert run.text == "paceline run -np 1 --cpus 0.3 --clip-norm 0.12345678 --deadline 1234567"


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"workers": 3_000_000_000}, "3,000,000,000 ranks"),
        ({"nodes": "99999x99999"}, "9,999,800,001 ranks"),
        ({"nodes": "9" * 5000 + "x2"}, "nodes x ranks"),
        ({"nodes": "two"}, "nodes x ranks"),
        ({"workers": 3_000_000_000, "lab": "lab(hosts=2)"}, "3,000,000,000 ranks"),
    ],
)
def test_ranks_that_nobody_has_are_not_listed(settings, complaint):
    with pytest.raises(WrongCommand, match=complaint):
        _ = Run(**settings).cluster


def test_the_older_name_of_the_compressor_is_read():
    assert Run(compress="sign") == Run(compressor="sign")
    assert Run(compressor="sign").with_(compress="cast").compressor == "cast"
    assert Run.model_validate({"compress": None}).compressor is None
    assert "--compressor sign" in Run(compress="sign").text
    with pytest.raises(ValueError, match="older name of compressor"):
        Run(compress="sign", compressor="cast")
