"""Help of a verb: options under headings, two examples; --help-all adds the flags of other benchmarks."""

from __future__ import annotations

import copy
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from paceline.run.fields import Panel
from paceline.run.run import Run, about

_ALL = "paceline.help.all"


class Command(TyperCommand):
    """A verb whose help shows its options in groups, in the order of PANELS; each of its FORMS has separate help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        lines = FORMS.get(" ".join([self.name or "", *args[:1]]))
        if lines and {"-h", "--help"} & set(args):
            print("\n".join(lines))
            raise typer.Exit
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            row = _visible(param, ctx.meta.get(_ALL, False)).get_help_record(ctx)
            if row is not None:
                panels.setdefault(_panel(param), []).append(row)
        for panel in sorted(panels, key=PANELS.index):
            with formatter.section(panel):
                formatter.write_dl(panels[panel], col_max=24)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Examples"):
            for line in EXAMPLES[self.name or ""]:
                formatter.write(f"{'':{formatter.current_indent}}paceline {line}\n")


class Verbs(TyperGroup):
    """The group of all verbs; its help lists them in the order of ORDER, with whole summaries."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=ORDER.index)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        rows = [(name, _summary(self.commands[name].help or "")) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


PANELS = ["Arguments", "Options", *(panel.value for panel in Panel), "Help"]
EXAMPLES = {  # verbs in the order of use
    "race": ("race --quick", "race --strategies allreduce,wfbp -np 2,4 --model resnet50"),
    "run": ("run -np 2 --model mlp --strategy wfbp", "run -np 4 -- python my_train.py"),
    "explain": ("explain -np 4 --model resnet50 --schedule mgwfbp", "explain -np 8 --compressor sign"),
    "forecast": ("forecast --workers 8..1024", "forecast --machines 'machines(nodes=4, device=A100)'"),
    "advise": ("advise --model resnet50", "advise --machines 'machines(nodes=2, network=10GbE)'"),
    "report": ("report", "report runs --out all.html"),
    "list": ("list --last 10", "list --failed --model resnet50"),
    "show": ("show ID", "show runs/RECORD.json --json copy.json"),
    "compare": ("compare ID1 ID2", "compare folder-of-a folder-of-b"),
    "rerun": ("rerun ID", "rerun ID --runs elsewhere"),
    "strategies": ("strategies", "strategies --json strategies.json"),
    "models": ("models", "models resnet50 --image-size 64"),
    "topology": ("topology exp2 --size 16", "topology ring --svg ring.svg"),
    "join": (
        "join 127.0.0.1:4711 --token-file FILE -- python my_train.py",
        "join 127.0.0.1:4711 -- python my_train.py",
    ),
    "chaos": (
        "chaos --minutes 1 -- python my_train.py",
        "chaos -np 4 --seed 7 --kinds kill,join -- python my_train.py",
    ),
    "watch": (
        "watch 127.0.0.1:4711 --token-file FILE",
        "watch 127.0.0.1:4711 --serve 8000",
    ),
    "data": ("data pack 'idx(FOLDER)' DIR --shards 16", "data verify DIR"),
    "doctor": ("doctor", "doctor --json doctor.json"),
    "lab": ("lab --hosts 4 --bandwidth 200mbit", "lab --hosts 2 -- python my_train.py"),
    "net": ("net -np 2 --comm shm,tcp", "net -np 4 --verbs all_reduce -e 128M --link link.json"),
    "reproduce": ("reproduce bluefog", "reproduce elasticdl --measure --quick"),
}
ORDER = list(EXAMPLES)
FORMS = {  # help of the forms of a verb, by the first word
    "data pack": (
        "Usage: paceline data pack SOURCE DIR [OPTIONS]",
        "",
        "  Write the samples of SOURCE to N TFRecord files in the new folder DIR, with an",
        "  index. Then train with --source 'tfrecord(DIR)'.",
        "",
        "  --shards N     Number of training files.  [default: 8]",
        "  --model NAME   A model that can train on the samples; a fake source takes",
        "                 their shape from it.  [default: small_cnn]",
        "  --seed N       Random seed that the model is built with.  [default: 0]",
        "  --json FILE    Also write the numbers of files, records and bytes to FILE.",
    ),
    "data verify": (
        "Usage: paceline data verify DIR [OPTIONS]",
        "",
        "  Check every record in the TFRecord files of DIR or s3://BUCKET/PATH, and list",
        "  damaged records. If there are any, the exit code is 1.",
        "",
        "  --json FILE    Also write the result to FILE.",
    ),
    "data bench": (
        "Usage: paceline data bench SOURCE [OPTIONS]",
        "",
        "  Measure samples and bytes per second of SOURCE alone, then train one worker",
        "  for a few steps and print the share of a step that waits for data.",
        "",
        "  --model NAME   The model to train.  [default: small_cnn]",
        "  --batch-size N Samples in a batch.  [default: 32]",
        "  --seconds X    Seconds for the source alone.  [default: 5]",
        "  --seed N       Random seed of the model and of the order.  [default: 0]",
        "  --json FILE    Also write the figures to FILE.",
    ),
    "data serve": (
        "Usage: paceline data serve DIR [OPTIONS]",
        "",
        "  Serve the files of DIR over the S3 protocol, for this machine only, until",
        "  Ctrl-C. The first lines are the environment variables that clients need.",
        "",
        "  --port N       Port on this machine; 0 takes a free one.  [default: 0]",
        "  --faults X     Share of requests that fail on purpose.  [default: 0]",
        "  --seed N       Random seed that decides which requests fail.  [default: 0]",
    ),
    "data produce": (
        "Usage: paceline data produce SOURCE tcp://ADDRESS:PORT [OPTIONS]",
        "",
        "  Send batches of SOURCE to the workers that connect, until Ctrl-C. Workers read",
        "  them with --source 'zmq(tcp://ADDRESS:PORT)'.",
        "",
        "  --batch-size N Samples in a batch.  [default: 32]",
        "  --model NAME   A model that can train on the samples; a fake source takes",
        "                 their shape from it.  [default: small_cnn]",
        "  --seed N       Random seed of the model and of the order.  [default: 0]",
    ),
    "lab cut": (
        "Usage: paceline lab cut HOST",
        "",
        "  Take the link of a host down in the running lab, as if its cable was pulled.",
        "  Hosts are numbered from 0. Keep the lab running from another terminal, for",
        "  example with: paceline lab --hosts 4 -- sleep 600",
    ),
    "lab heal": (
        "Usage: paceline lab heal HOST",
        "",
        "  Put the link of a host up again, after: paceline lab cut HOST",
    ),
}


def _summary(text: str) -> str:
    """Return the first paragraph of a help text."""
    return " ".join(text.split("\n\n")[0].split())


def _panel(param: Any) -> str:
    if param.param_type_name == "argument":
        return "Arguments"
    return getattr(param, "rich_help_panel", None) or ("Help" if param.name == "help" else "Options")


def _visible(param: Any, everything: bool) -> Any:
    """Return the option as help shows it: without flags of other benchmarks, or with everything that is hidden."""
    shown = copy.copy(param)
    if everything:
        shown.hidden = False
    elif param.param_type_name == "option":
        shown.opts = [flag for flag in param.opts if flag not in published_flags()]
    return shown


def published_flags() -> set[str]:
    """Return the flags that only --help-all shows."""
    return {flag for name in Run.model_fields for flag in about(name).published}


def show_all(context: typer.Context, wanted: bool) -> None:
    """Print the help with everything that --help leaves out."""
    if wanted:
        context.meta[_ALL] = True
        print(context.get_help())
        raise typer.Exit


HelpAll = typer.Option(
    "--help-all",
    callback=show_all,
    is_eager=True,
    rich_help_panel=PANELS[-1],
    help="Also show flags that other benchmarks use for the same settings.",
)
