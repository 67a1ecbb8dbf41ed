"""Bad input is a clear message and exit code 2, before any worker starts."""

import pytest

from paceline.cli import main
from paceline.errors import Refused
from paceline.jobs.cells import plan
from paceline.jobs.suite import Suite
from paceline.launchers.local import Local

WRONG = {
    "run --model resnet5": "model 'resnet5' does not exist",
    "run --model resnet5 -np 0": "-np 0: at least 1 worker",
    "run --strategy alreduce": "did you mean allreduce?",
    "run --schedule fussion": "did you mean fusion?",
    "run --schedule fusion(mb=0)": "a chunk needs more than 0 MB",
    "run --schedule priority(partition=0)": "a piece needs more than 0 bytes",
    "run --schedule priority(partition=4,credit=1)": "with a credit below the partition",
    "run --schedule priority --clip-norm 1": "tensors are updated one by one",
    "run --schedule dear --optimizer lbfgs": "it moves all parameters together",
    "run --strategy p3 --precision fp16": "could not be skipped as a whole",
    "run --schedule mgwfbp --profile /nowhere.json": "/nowhere.json is not a profile",
    "run --compress cast(fp8)": "fp16 or bf16",
    "run --compress topk(ratio=0)": "above 0 and at most 1; got 0",
    "run --compress feedback(topk(ratio=1.5))": "above 0 and at most 1; got 1.5",
    "run --compress powersgd(rank=0)": "rank is at least 1",
    "run --compress feedback(powersgd(rank=5000))": "no matrix of the model has more than 1024 rows and columns",
    "run --compress topp": "did you mean topk?",
    "run --compress feedback(sign)": "sign is not contractive",
    "run --compress feedback(dgc)": "dgc keeps what it does not send by itself",
    "run --compress feedback(feedback(topk))": "keeps what it does not send by itself",
    "run --compress feedback(cast)": "drops nothing that feedback could see",
    "run --compress topk --rule atc": "lost for good",
    "run --compress sign --exchange hierarchical": "this exchange only sums",
    "run --compress topk --precision fp16": "infinity cannot be packed",
    "run --strategy dgc": "both would apply momentum",
    "explain --strategy dgc --optimizer adam(lr=0.1)": "both would apply momentum",
    "run -np 0": "-np 0: at least 1 worker is needed",
    "run --batch-size 0": "--batch-size 0: at least 1 sample",
    "run --batch-size 4 --global-batch 8": "--batch-size 4 beside --global-batch 8",
    "run --steps 4 --epochs 1": "--steps 4 beside --epochs 1",
    "run --comm nccl": "this machine has no GPU",
    "run --comm mpi": "comm 'mpi' does not exist",
    "run --topology ring": "--topology ring with exchange allreduce",
    "run --strategy allreduce --topology ring": "mixes with no neighbors",
    "run --json /nowhere/r.json": "there is no folder /nowhere",
    "run --json /tmp": "it is a folder",
    "run --precision fp8": "--precision fp8",
    "run --memory-format odd": "--memory-format odd",
    "run --fake-location moon": "fake location 'moon' does not exist",
    "run --source fake(moon)": "location takes device or cpu",
    "run dnn=resnet5": "model 'resnet5' does not exist",
    "run dmn=resnet50": "did you mean dnn?",
    "run bs=many": "--batch-size many",
    "run bs=8 --batch-size 32": "bs=8 beside --batch-size 32: they say different things",
    "run dnn=vgg16 --model resnet50": "dnn=vgg16 beside --model resnet50",
    "run mgwfbp=1 bytescheduler=1": "bytescheduler=1 beside mgwfbp=1",
    "run resnet50": "words after run are key=value",
    "run --strategy ddp --schedule bsp": "ddp is a reference",
    "run --model resnet50 -- python x.py": "the script chooses model",
    "run dnn=resnet50 -- python x.py": "the script chooses model",
    "run --json x.json -- python x.py": "a script makes its own results",
    "run -- no-such-program-anywhere": "there is no such program",
    "run -np 2 --exchange ps(servers=3)": "more servers than workers",
    "run -np 2 --exchange ps(servers=-1)": "fewer than no servers",
    "run -np 2 --exchange ps(colocated=false)": "nobody would own anything",
    "run -np 2 --rule server": "parameters live on processes that do nothing but serve",
    "run -np 2 --rule server --exchange ps(servers=1)": "ps(servers=1, colocated=false)",
    "run -np 2 --rule server(staleness=soon)": "staleness is a number of steps, or async",
    "run --rule server --exchange ps(servers=1,colocated=false) --optimizer lbfgs": "element by element",
    "run --rule server --exchange ps(servers=1,colocated=false) --compress cast": "servers take gradients as they are",
    "run --rule server --exchange ps(servers=1,colocated=false) --clip-norm 1": "--clip-norm with rule server",
    "run --rule server --exchange ps(servers=1,colocated=false) --schedule mgwfbp": "do not move between servers",
    "run -np 4 --exchange hierarchical(2x3)": "it needs 6 ranks; there are 4",
    "run -np 3 --nodes 2x2": "that is 4 ranks",
    "run --elephant": "No such option",
    "race --rounds 0": "at least 1 round",
    "race --model resnet5": "did you mean resnet50?",
    "race --strategies alreduce": "did you mean allreduce?",
    "race --contender rule=grad,exchange=neighbor(ring)": "rule=grad,exchange=neighbor(ring) (mobilenet_v2, 2 workers",
    "race --contender rul=atc": "did you mean rule?",
    "race --suite bluefrog": "did you mean bluefog?",
    "race --suite /nowhere/s.toml": "No such file",
    "race --precision fp8": "--precision fp8",
    "race -np two": "-np two: it takes whole numbers",
    "race -np 0": "-np 0: at least 1 worker",
    "race --batch-size 0": "--batch-size 0: at least 1 sample",
    "race --model mlp -- python x.py": "the script chooses model",
    "race --contender allreduce,precision=bf16 -- python x.py": "precision=bf16 with a script: the script sets its",
    "race -- no-such-program-anywhere": "there is no such program",
    "race --strategies local_sgd,alreduce -- python x.py": "did you mean allreduce?",
    "run --log-format tf": "log format 'tf' does not exist",
    "run --experiment /nowhere/e.toml": "No such file",
    "run --baseline /nowhere/r.json": "is not a record",
    "explain --schedule wfpb": "did you mean wfbp?",
    "models resnet5": "did you mean resnet50?",
    "models resnet50(bais=true)": "got bais",
    "runn": "No such command",
}


@pytest.fixture
def no_worker(monkeypatch):
    def start(*_, **__):
        raise AssertionError("a worker was started")

    monkeypatch.setattr(Local, "start", start)


@pytest.mark.parametrize("command", WRONG)
def test_a_wrong_command_says_what_why_and_exits_with_two(command, no_worker, capsys):
    with pytest.raises(SystemExit) as end:
        main(command.split(" "))
    told = capsys.readouterr().err
    assert end.value.code == 2, told
    assert WRONG[command] in " ".join(told.split()), told
    assert "Traceback" not in told


def test_all_problems_are_told_at_once(no_worker, capsys):
    with pytest.raises(SystemExit):
        main(["run", "-np", "0", "--batch-size", "0", "--model", "resnet5", "--schedule", "fussion"])
    assert capsys.readouterr().err.count("error:") == 4


def test_a_sound_command_does_start_workers(no_worker):
    with pytest.raises(AssertionError, match="a worker was started"):
        main(["run", "-np", "1", "--model", "mlp"])


@pytest.mark.parametrize("choice", ["--strategy dgc", "--compress feedback(powersgd(rank=5000))"])
def test_a_script_is_not_judged_by_a_model_and_an_optimizer_that_it_does_not_have(choice, no_worker):
    with pytest.raises(AssertionError, match="a worker was started"):
        main(["run", "-np", "2", *choice.split(), "--", "python", "x.py"])
    contender = "a: " + ",".join([choice.removeprefix("--").replace("strategy ", "").replace(" ", "=")])
    assert plan(Suite(workers=[2], models=["mlp"], contenders=[contender]), script=["python", "x.py"]).cells
    with pytest.raises(Refused):
        plan(Suite(workers=[2], models=["mlp"], contenders=[contender]))


def test_a_race_of_a_script_says_what_of_a_suite_it_does_not_use(no_worker, tmp_path, capsys):
    with pytest.raises(AssertionError, match="a worker was started"):
        main(["race", "--suite", "elasticdl", "--runs", str(tmp_path), "--", "python", "x.py"])
    told = capsys.readouterr().err
    assert "not used: models, batch_sizes, run.image_size, run.steps, run.warmup, run.repeats" in told


def test_words_reach_a_script_as_flags_do(monkeypatch):
    seen = {}
    monkeypatch.setattr("paceline.jobs.script.launch", lambda argv, **given: seen.update(given))
    with pytest.raises(SystemExit):
        main(["run", "nworkers=2", "mgwfbp=1", "--", "python", "x.py"])
    assert (seen["run"].workers, seen["choices"]) == (2, {"schedule": "mgwfbp"})
