"""Loops in the shape of programs that people know: two ranks end with the weights of one process on the joint batch.

Lines of a loop that end with `# +` are paceline's, and `# -` shows the line that one of them replaces. These marks give
the program before paceline; it runs here, in this process, on whole batches.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tests.forked import paceline

ROOT = Path(__file__).parents[2]
LOOPS = ROOT / "examples" / "loops"
PAGE = ROOT / "docs" / "howto" / "from-ddp.md"
NAMES = ["nanogpt", "mnist", "vae", "dcgan", "word_language_model"]
REPLACED = re.compile(r"^( *)# - (.*)$")
OURS = "  # +"
RANKS = 2


# what paceline adds to a loop -------------------------------------------------------------------


@dataclass(frozen=True)
class Lines:
    """Lines of a program before paceline, lines that paceline adds, and lines that it replaces; indentation apart."""

    before: int
    added: int
    replaced: int


def source_of(name):
    return (LOOPS / f"{name}.py").read_text()


def without(source):
    """Return the program without paceline. The block under an added line stays where it is."""
    kept, replaces = [], False
    for line in source.splitlines():
        match, indent = REPLACED.match(line), line[: len(line) - len(line.lstrip())]
        if match:
            kept.append(match[1] + match[2])
        elif not line.endswith(OURS):
            kept.append(line)
        elif line.endswith(":" + OURS) and not replaces:
            kept.append(indent + "if True:")
        replaces = bool(match)
    return "\n".join(kept) + "\n"


def lines_of(source):
    replaced = sum(bool(REPLACED.match(line)) for line in source.splitlines())
    ours = sum(line.endswith(OURS) for line in source.splitlines())
    blocks = sum(line.strip() == "if True:" for line in without(source).splitlines())
    code = [line.strip() for line in without(source).split('"""\n', 1)[1].splitlines()]
    return Lines(sum(bool(line) and line[0] != "#" for line in code) - blocks, ours - replaced, replaced)


def rows_of_the_page():
    """Return the table of lines in the docs."""
    found = re.findall(r"^\| \[(\w+)\]\([^)]+\) \| (\d+) \| (\d+) \| (\d+) \|", PAGE.read_text(), re.M)
    return {name: Lines(*map(int, numbers)) for name, *numbers in found}


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_paceline_is_outside_the_marked_lines(name):
    code = without(source_of(name)).split('"""\n', 1)[1]
    assert not re.search(r"paceline|worker|\bpace\b", code)
    compile(code, name, "exec")


def test_marks_tell_added_lines_from_replaced_ones():
    ours = [
        "import p  # +",
        "# - for x in data:",
        "for x in p.share(data):  # +",
        "    if p.first:  # +",
        "        print(x)",
    ]
    source = '"""A loop."""\n' + "\n".join(ours) + "\n"
    assert without(source) == '"""A loop."""\nfor x in data:\n    if True:\n        print(x)\n'
    assert lines_of(source) == Lines(2, 2, 1)


def test_the_docs_have_the_lines_of_every_loop():
    assert rows_of_the_page() == {name: lines_of(source_of(name)) for name in NAMES}


# the same weights -------------------------------------------------------------------------------


class JointNoise:
    """Noise of a joint batch: the rows that each rank draws, one rank after another."""

    def __init__(self, seed):
        self._dice = [torch.Generator().manual_seed(seed + rank) for rank in range(RANKS)]

    def __call__(self, rows, *shape):
        return torch.cat([torch.randn(rows // RANKS, *shape, generator=dice) for dice in self._dice])


@pytest.fixture
def alone(monkeypatch):
    """Run a loop without paceline, in this process."""
    state, dtype = torch.get_rng_state(), torch.get_default_dtype()
    monkeypatch.syspath_prepend(str(LOOPS))
    monkeypatch.setattr("small.Noise", JointNoise)

    def run(name, *words):
        monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        exec(compile(without(source_of(name)), name, "exec"), {"__name__": "__main__"})

    yield run
    torch.set_rng_state(state)
    torch.set_default_dtype(dtype)


def on_ranks(script, *words):
    """Run a loop on two workers that share memory; return what it printed."""
    done = paceline("run", "-np", RANKS, "--comm", "shm", "--", sys.executable, script, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def difference(one, two):
    """Return the largest difference of two saved models or state dicts."""
    weights = [torch.load(path, weights_only=False) for path in (one, two)]
    weights = [saved.state_dict() if isinstance(saved, torch.nn.Module) else saved for saved in weights]
    assert weights[0].keys() == weights[1].keys()
    return max(float((weights[0][key] - weights[1][key]).abs().max()) for key in weights[0])


SAVES = {"mnist": "--save-model", "vae": "--save-model", "word_language_model": "--save"}


@pytest.mark.multi
@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("name", SAVES)
def test_two_ranks_learn_what_one_process_learns(name, alone, tmp_path):
    together, single = tmp_path / "together.pt", tmp_path / "single.pt"
    shown = on_ranks(LOOPS / f"{name}.py", "--dtype", "float64", SAVES[name], together)
    alone(name, "--dtype", "float64", SAVES[name], single)
    assert difference(together, single) < 1e-12
    assert len(re.findall("test", shown)) in (1, 2), "only rank 0 prints"


@pytest.mark.multi
@pytest.mark.usefixtures("forks")
def test_two_models_of_a_gan_learn_what_one_process_learns(alone, tmp_path):
    together, single = tmp_path / "together", tmp_path / "single"
    for folder in (together, single):
        folder.mkdir()
    on_ranks(LOOPS / "dcgan.py", "--dtype", "float64", "--outf", together)
    alone("dcgan", "--dtype", "float64", "--outf", single)
    assert max(difference(together / f"{net}.pt", single / f"{net}.pt") for net in ("netD", "netG")) < 1e-12


def checkpoint(folder):
    return torch.load(folder / "ckpt.pt")


@pytest.mark.multi
@pytest.mark.usefixtures("forks")
def test_nanogpt_goes_on_from_one_process_to_two_ranks_and_back(alone, tmp_path):
    """Four updates alone, four on two ranks, four alone: as twelve updates of one process."""
    words = ["--dtype", "float64", "--out_dir"]
    alone("nanogpt", *words, tmp_path, "--max_iters", 4)
    on_ranks(LOOPS / "nanogpt.py", *words, tmp_path, "--max_iters", 8, "--init_from", "resume")
    assert checkpoint(tmp_path)["iter_num"] == 8
    alone("nanogpt", *words, tmp_path, "--max_iters", 12, "--init_from", "resume")
    single = tmp_path / "single"
    single.mkdir()
    alone("nanogpt", *words, single, "--max_iters", 12)
    ends = [checkpoint(folder) for folder in (tmp_path, single)]
    for key, weight in ends[0]["model"].items():
        assert (weight - ends[1]["model"][key]).abs().max() < 1e-12
    assert ends[0]["best_val_loss"] == pytest.approx(ends[1]["best_val_loss"], rel=1e-12)


def replaced(source, *pairs):
    for old, new in pairs:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return source


@pytest.mark.multi
@pytest.mark.usefixtures("forks")
def test_nanogpt_scales_its_loss_in_half_precision_as_with_ddp(tmp_path):
    """The same loop twice in the same processes, with wrap and with DDP; the scale is so large that it overflows."""
    joined = ("paceline.join()", "paceline.join(process_group=True)")
    large = ('GradScaler("cpu", ', 'GradScaler("cpu", init_scale=2.0**20, ')
    wrapped = (
        "pace = paceline.wrap(model, optimizer)",
        "pace = model = torch.nn.parallel.DistributedDataParallel(model)",
    )
    sources = {
        "with_paceline": replaced(source_of("nanogpt"), joined, large),
        "ddp": replaced(source_of("nanogpt"), ("worker = paceline.join()", ""), large, wrapped),
    }
    script = ["import sys", f"sys.path.insert(0, {str(LOOPS)!r})", "names = {}"]
    for name, source in sources.items():
        (tmp_path / name).mkdir()
        script += [f"sys.argv = ['', '--dtype', 'float16', '--out_dir', {str(tmp_path / name)!r}]"]
        script += [f"exec(compile({source!r}, {name!r}, 'exec'), names)"]
    (tmp_path / "both.py").write_text("\n".join(script))
    on_ranks(tmp_path / "both.py")
    ours, ddp = checkpoint(tmp_path / "with_paceline"), checkpoint(tmp_path / "ddp")
    assert ours["scaler"] == ddp["scaler"]
    assert ours["scaler"]["scale"] < 2.0**20, "no step has overflowed"
    assert 0 < ours["optimizer"]["state"][0]["step"] < 8, "an overflow skips the update"
    for key, weight in ours["model"].items():
        assert (weight - ddp["model"][f"module.{key}"]).abs().max() < 1e-6


@pytest.mark.multi
@pytest.mark.usefixtures("forks")
def test_a_loop_that_lacks_one_of_its_lines_is_noticed(alone, tmp_path):
    """Without the factor of its summed loss, vae learns something else."""
    together, single, script = tmp_path / "together.pt", tmp_path / "single.pt", tmp_path / "vae.py"
    (tmp_path / "small.py").write_text((LOOPS / "small.py").read_text())
    script.write_text(source_of("vae").replace("        loss = loss * worker.size  # +\n", ""))
    on_ranks(script, "--dtype", "float64", "--save-model", together)
    alone("vae", "--dtype", "float64", "--save-model", single)
    assert difference(together, single) > 1e-9
