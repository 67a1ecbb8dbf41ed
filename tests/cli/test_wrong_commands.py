"""Bad input is a clear message and exit code 2, before any worker starts."""

import pytest

from paceline.cli import main
from paceline.cluster.launchers.local import Local
from paceline.errors import Refused
from paceline.race.plan import plan
from paceline.race.suite import Suite
from tests.workload.sources.idxfiles import write_folder

WRONG = {
    "run --model resnet5": "model 'resnet5' does not exist",
    "run --model resnet5 -np 0": "-np 0: at least 1 worker",
    "run --strategy alreduce": "did you mean allreduce?",
    "run --strategy ": "strategy '' does not exist",
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
    "run --seed -1": "--seed -1: it cannot be negative",
    "run --seed 99999999999999999999": "--seed 99999999999999999999: at most 9,223,372,036,854,775,807",
    "run --warmup -1": "--warmup -1: it cannot be negative",
    "run --steps 99999999999": "--steps 99999999999: at most 1,000,000,000",
    "run -np 9999999": "-np 9999999: at most 1,048,576",
    "run --batch-size 99999999999": "at most 16,777,216",
    "run --threads 99999": "--threads 99999: at most 4,096",
    "run --cpus 1e300": "--cpus 1e+300: a worker gets at least 0.01 of a core, and at most 4,096",
    "run --clip-norm inf": "--clip-norm inf: a norm is above 0, and finite",
    "run --clip-norm nan": "--clip-norm nan: a norm is above 0, and finite",
    "run --deadline inf": "--deadline inf: it must be above 0 seconds",
    "run --deadline nan": "--deadline nan: it must be above 0 seconds",
    "run --peak-flops -1": "--peak-flops -1: it is above 0",
    "run --peak-flops nan": "--peak-flops nan: it is above 0",
    "run --source fake(cpu,samples=999999999999)": "at least one sample and at most 134,217,728",
    "run --schedule fusion(mb=nan)": "mb takes a number; got nan",
    "run --rule diloco(every=99999999999999999999)": "every takes a whole number; got 99999999999999999999",
    "race --minutes -1": "--minutes -1: it is above 0 try: --minutes 1",
    "race --minutes nan": "--minutes nan: it takes a finite number try: --minutes 1",
    "race --minutes inf": "--minutes inf",
    "race --seed -1": "--seed -1: it is at least 0 try: --seed 0",
    "race --rounds 9223372036854775807": "--rounds 9223372036854775807: it is at most 10,000",
    "race -np 99999999999": "-np 99999999999: it is at most 16,777,216",
    "race --model mlp,vgg16 --batch-size 1,2,3,4,5,6 --rounds 9999": "at most 1,000 contenders and 50,000 fresh starts",
    "topology exp2 --step 99999999999999999999": "steps count from 0 to",
    "run --batch-size 0": "--batch-size 0: at least 1 sample",
    "run --batch-size 4 --global-batch 8": "--batch-size 4 beside --global-batch 8",
    "run -np 0 --global-batch 8": "-np 0: at least 1 worker is needed",
    "run --accumulate 0 --global-batch 8": "--accumulate 0: at least 1 backward",
    "run --steps 4 --epochs 1": "--steps 4 beside --epochs 1",
    "run --comm nccl": "this machine has no GPU",
    "run --comm mpi": "comm 'mpi' does not exist",
    "run --topology ring": "--topology ring with exchange allreduce",
    "run --strategy allreduce --topology ring": "mixes with no neighbors",
    "run --json /nowhere/r.json": "there is no folder /nowhere",
    "run --json /tmp": "it is a folder",
    "run --precision fp8": "--precision fp8: it is fp32, bf16 or fp16 try: --precision fp32",
    "run --memory-format odd": "it is contiguous or channels_last try: --memory-format contiguous",
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
    "run --rule server --exchange ps(servers=1,colocated=false) --precision fp16": "--precision fp16 with rule server",
    "run --rule server --exchange ps(servers=1,colocated=false) --schedule mgwfbp": "do not move between servers",
    "run -np 4 --exchange hierarchical(2x3)": "it needs 6 ranks; there are 4",
    "run -np 3 --nodes 2x2": "that is 4 ranks",
    "run --elephant": "option '--elephant' does not exist",
    "run --batchsize 3": "did you mean --batch-size?",
    "run --batch-size 32k": "--batch-size 32k: it takes a whole number try: --batch-size 8",
    "run --batch=32k": "--batch-size 32k: it takes a whole number",
    "run --cpus many": "--cpus many: it takes a number try: --cpus 0.5",
    "run --steps": "Option '--steps' requires an argument",
    "reproduce bluefog --starts 0": "--starts 0: it is at least 1 try: --starts 1",
    "race --margin -1": "--margin -1: it is above 0 try: --margin 1",
    "race --margin 99": "--margin 99: it is at most 50 try: --margin 50",
    "race --rounds 20000": "--rounds 20000: it is at most 10,000 try: --rounds 10000",
    "run --deadline 0": "--deadline 0: it must be above 0 seconds, and at most 10,000,000 try: --deadline 300",
    "run --steps 0": "--steps 0: at least 1 step is needed try: --steps 1",
    "net -np 0": "-np 0: it is at least 1 try: -np 1",
    "list --last 0": "--last 0: it is at least 1 try: --last 1",
    "data serve --faults 2": "--faults 2: it is at most 0.9 try: --faults 0.9",
    "forecast --step-time -1": "it is a number of seconds above 0 try: --step-time 0.1",
    "show": "needs ID try: paceline show --help",
    "race --rounds 0": "at least 1 round",
    "race --model resnet5": "did you mean resnet50?",
    "race --strategies alreduce": "did you mean allreduce?",
    "race --contender rule=grad,exchange=neighbor(ring)": "neighbor(ring): rule grad over exchange neighbor(ring)",
    "race --contender rul=atc": "did you mean rule?",
    "race --suite bluefrog": "did you mean bluefog?",
    "race --suite /nowhere/s.toml": "No such file",
    "race --precision fp8": "--precision fp8: it is fp32, bf16 or fp16",
    "race -np two": "-np two: it takes whole numbers",
    "race -np 0": "-np 0: at least 1 worker",
    "race --batch-size 0": "--batch-size 0: at least 1 sample",
    "race --model mlp -- python x.py": "the script chooses model",
    "race --contender allreduce,precision=bf16 -- python x.py": "precision=bf16 with a script: the script sets its",
    "race --compute reply(x)": "compute 'reply' does not exist",
    "race --lab lab(hosts=0)": "a lab has 1 to 64 hosts",
    "race --cpus 0": "a worker gets at least 0.01 of a core",
    "race --comm mpi": "comm 'mpi' does not exist",
    "race --profile /nowhere.json": "/nowhere.json is not a profile",
    "race --accumulate 0": "--accumulate 0: at least 1 backward",
    "race --compile -- python x.py": "--compile with a script: the script chooses model",
    "race --accumulate 2 -- python x.py": "--accumulate with a script",
    "race --compute replay(x) -- python x.py": "--compute with a script",
    "race -- no-such-program-anywhere": "there is no such program",
    "race --strategies local_sgd,alreduce -- python x.py": "did you mean allreduce?",
    "run --optimizer adam(lr=high)": "--optimizer adam(lr=high): lr takes a number, true, false or none; got high",
    "run --optimizer adamx": "optimizer 'adamx' does not exist try: did you mean adamax?",
    "explain --optimizer sgd(lr=0.1,foo=3)": "--optimizer sgd(lr=0.1,foo=3): sgd takes lr, momentum,",
    "race --optimizer sgd(lr=-1)": "--optimizer sgd(lr=-1): lr is at least 0; got -1 try: --optimizer 'sgd(lr=0.01)'",
    "race --optimizer adagrad(-0.5)": "lr is at least 0; got -0.5",
    "race --optimizer sgd(fast)": "a setting takes a number, true, false or none; got fast",
    "run --model bert_base --image-size 32": "--image-size 32 with model bert_base: its samples are sequences",
    "race --model resnet18 --sequence-length 8": "--sequence-length 8 with model resnet18: its samples are images",
    "run --model tests.cli.own_models:garbage": "returned a str: a model function returns a torch.nn.Module",
    "run --model tests.cli.own_models:raising": "it raised RuntimeError: no weights here",
    "race --model tests.cli.own_models:raising": "own_models.py, line",
    "explain --model tests.cli.own_models:raising": "try: python -c",
    "run --log-format tf": "log format 'tf' does not exist",
    "run --experiment /nowhere/e.toml": "No such file",
    "run --baseline /nowhere/r.json": "is not a record",
    "explain --schedule wfpb": "did you mean wfbp?",
    "models resnet5": "did you mean resnet50?",
    "models resnet50(bais=true)": "got bais",
    "runn": "command 'runn' does not exist try: did you mean run?",
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
    assert "Input should" not in told  # words of a library


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


class Ended(Exception):
    pass


def planned(monkeypatch, *words):
    """The plan that a command makes."""
    found = []

    def stop(plan):
        found.append(plan)
        raise Ended

    monkeypatch.setattr("paceline.race.race.check_places", stop)
    with pytest.raises(Ended):
        main(["race", *words])
    return found[0]


def test_flags_of_a_race_are_common_to_all_cells(monkeypatch):
    words = "--lab lab(hosts=2) --cpus 0.5 --comm gloo --compile --accumulate 2 --clip-norm 1 --deadline 60"
    runs = [entry.run for entry in planned(monkeypatch, *words.split()).entries]
    common = {(r.lab, r.cpus, r.compile, r.accumulate, r.clip_norm, r.deadline) for r in runs}
    assert common == {("lab(hosts=2)", 0.5, True, 2, 1.0, 60.0)}
    assert {run.comm for run in runs if run.workers > 1} == {"gloo"}


def test_samples_of_files_keep_their_size(monkeypatch, tmp_path):
    write_folder(tmp_path, train=64)
    runs = [e.run for e in planned(monkeypatch, "--source", f"idx({tmp_path}, channels=3)", "-np", "1").entries]
    assert {run.image_size for run in runs} == {None}
    assert {e.run.image_size for e in planned(monkeypatch, "--source", "fake(cpu)").entries} == {32}


def test_what_the_launcher_does_is_done_for_a_script(monkeypatch):
    words = "--lab lab(hosts=2) --cpus 0.5 --comm gloo --threads 1"
    runs = [entry.run for entry in planned(monkeypatch, *words.split(), "--", "python", "x.py").entries]
    assert {(run.lab, run.cpus, run.threads) for run in runs} == {("lab(hosts=2)", 0.5, 1)}


def test_flags_of_a_race_win_over_its_suite(monkeypatch, tmp_path):
    path = tmp_path / "s.toml"
    path.write_text("[run]\ncpus = 0.3\naccumulate = 4\n")
    runs = [entry.run for entry in planned(monkeypatch, "--suite", str(path), "--cpus", "0.5").entries]
    assert {(run.cpus, run.accumulate) for run in runs} == {(0.5, 4)}


def test_what_the_machine_cannot_offer_is_refused_before_a_race_begins(monkeypatch, tmp_path, no_worker, capsys):
    monkeypatch.setattr("paceline.cluster.lab.network.os.geteuid", lambda: 1000)
    with pytest.raises(SystemExit) as end:
        main(["race", "--model", "mlp", "--lab", "lab(hosts=2)", "--runs", str(tmp_path)])
    assert end.value.code == 2
    assert "network namespaces need root" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "note"),
    [
        ("--quick", None),
        ("--quick --suite elasticdl", "the first round always runs, "),
        ("--quick --model resnet50", None),
        ("--quick --strategies allreduce,wfbp", None),
        ("--quick -- python x.py", "the first round always runs, 5 fresh starts, each as long as the script"),
    ],
)
def test_two_minutes_are_promised_for_the_plain_race_only(words, note, no_worker, tmp_path, capsys):
    before, dashes, script = words.partition("-- ")
    with pytest.raises(AssertionError, match="a worker was started"):
        main(["race", *before.split(), "--runs", str(tmp_path), *([dashes.strip(), *script.split()] if dashes else [])])
    told = " ".join(capsys.readouterr().out.split())
    assert ("the first round always runs" in told) is (note is not None)
    assert note is None or note in told


def test_words_reach_a_script_as_flags_do(monkeypatch):
    seen = {}
    monkeypatch.setattr("paceline.race.script.launch_measured", lambda argv, **given: seen.update(given))
    with pytest.raises(SystemExit):
        main(["run", "nworkers=2", "mgwfbp=1", "--", "python", "x.py"])
    assert (seen["run"].workers, seen["choices"]) == (2, {"schedule": "mgwfbp"})


OF_A_SCRIPT_OR_EXPLAINED = {
    "run --experiment e.toml -- python x.py": "--experiment with a script: the steps are the script's own",
    "run --baseline r.json -- python x.py": "--baseline with a script",
    "run --peak-flops 1e12 -- python x.py": "--peak-flops with a script",
    "run --log-format tf_cnn -- python x.py": "--log-format with a script",
    "run --trace t.json -- python x.py": "leave it out; --runs, --json, --tensorboard, --log-to work here",
    "run --runs /dev/null/x -- python x.py": "--runs /dev/null/x: /dev/null is not a folder",
    "run --use-fp16 -- python x.py": "--use-fp16 with a script: the script chooses model",
    "run --fake-location cpu -- python x.py": "--fake-location with a script: the script chooses model",
    "explain --schedule priority --clip-norm 1": "--clip-norm 1 with schedule priority",
    "explain --schedule priority --compile": "--compile with schedule priority",
    "explain --batch-size 4 --global-batch 8": "--batch-size 4 beside --global-batch 8",
    "explain --steps 4 --epochs 1": "--steps 4 beside --epochs 1",
    "explain --lab lab(hosts=2) --nodes 1x2": "both say where ranks are",
    "explain --source fake(moon)": "location takes device or cpu",
    "explain --use-fp16 --strategy p3": "could not be skipped as a whole",
    "explain dnn=resnet5": "model 'resnet5' does not exist",
    "explain bs=8 --batch-size 32": "bs=8 beside --batch-size 32: they say different things",
    "explain -- python x.py": "explain with a script",
}


@pytest.mark.parametrize("command", OF_A_SCRIPT_OR_EXPLAINED)
def test_what_would_be_ignored_or_is_unsound_is_refused(command, no_worker, capsys):
    with pytest.raises(SystemExit) as end:
        main(command.split(" "))
    told = " ".join(capsys.readouterr().err.split())
    assert end.value.code == 2, told
    assert OF_A_SCRIPT_OR_EXPLAINED[command] in told


def test_a_folder_of_runs_in_the_environment_is_nothing_that_a_script_was_given(no_worker, monkeypatch, tmp_path):
    monkeypatch.setenv("PACELINE_RUNS", str(tmp_path))
    with pytest.raises(AssertionError, match="a worker was started"):
        main(["run", "-np", "2", "--", "python", "x.py"])


@pytest.mark.parametrize("verb", ["list", "run --model mlp", "explain", "report", "strategies"])
def test_a_deleted_working_directory_is_one_line(verb, tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(SystemExit) as ended:
        main(verb.split())
    monkeypatch.chdir(tmp_path)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: the working directory is gone")


@pytest.mark.parametrize(
    ("name", "text", "verb"),
    [
        ("PACELINE_FLOPS", "abc", "run --model mlp"),
        ("PACELINE_FLOPS", "-1", "race --model mlp"),
        ("OMP_NUM_THREADS", "abc", "run --model mlp"),
        ("OMP_NUM_THREADS", "0", "run --model mlp"),
        ("OMP_NUM_THREADS", "9" * 400, "run --model mlp"),
    ],
)
def test_a_wrong_variable_is_refused_before_any_worker_starts(name, text, verb, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(name, text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Local, "start", lambda *_, **__: pytest.fail("a worker was started"))
    with pytest.raises(SystemExit) as ended:
        main(verb.split())
    assert ended.value.code == 2
    assert f"error: {name}={text[:20]}" in capsys.readouterr().err


def test_a_suite_of_endless_rounds_is_refused_with_its_line(tmp_path, capsys):
    (tmp_path / "s.toml").write_text("contenders = ['allreduce']\nrounds = 0x7fffffffffffffff\n")
    with pytest.raises(SystemExit) as ended:
        main(["race", "--suite", str(tmp_path / "s.toml")])
    assert ended.value.code == 2
    assert "s.toml, line 2: rounds = 9223372036854775807" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["minutes = -1", "minutes = nan", "minutes = inf", "seed = -1", "rounds = 0"])
def test_a_suite_with_a_number_that_makes_no_sense_is_refused(line, tmp_path, capsys):
    (tmp_path / "s.toml").write_text(line + "\n")
    with pytest.raises(SystemExit) as ended:
        main(["race", "--suite", str(tmp_path / "s.toml")])
    assert ended.value.code == 2
    assert f"s.toml, line 1: {line.partition(' ')[0]}" in capsys.readouterr().err
