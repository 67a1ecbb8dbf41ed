"""paceline topology: what it prints, writes and refuses."""

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import paceline.cli.topology  # noqa: F401  (registers the verb)
from paceline.cli import main
from paceline.report.drawing import draw
from paceline.report.topology import look, spans, spoken, world
from paceline.strategy import topologies
from paceline.strategy.topologies._weights import mixing_rate, models_sent

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "topology.md"
SVG = "{http://www.w3.org/2000/svg}"


def told(capsys, *words):
    with pytest.raises(SystemExit) as end:
        main(["topology", *words])
    out, err = capsys.readouterr()
    assert not end.value.code, err
    return out


@pytest.mark.parametrize("text", ["exp2", "full", "star(uniform=true)", "grid", "one_peer(exp2)", "exp(base=7)"])
@pytest.mark.parametrize("size", [1, 7, 16, 100])
def test_it_fits_in_eighty_columns(text, size):
    assert max(map(len, spoken(look(text, size)))) <= 80


def test_it_prints_neighbors_weights_rate_and_models(capsys):
    lines = told(capsys, "exp2", "--size", "16").splitlines()
    assert lines[0] == "topology     exp2 on 16 ranks"
    assert "mixing rate  0.6000: 1% of the distance to the mean is left after 10 steps" in lines
    assert "models sent  4 per rank and step" in lines
    assert "   0  0.2000  0.2000 of 8, 12, 14, 15             1, 2, 4, 8" in lines


def test_a_changing_topology_shows_the_step_that_is_asked_for(capsys):
    out = told(capsys, "inner_outer", "--nodes", "2x4", "--step", "5")
    assert "inner_outer on 8 ranks, 2 nodes" in out
    assert "period       4 steps; below is step 5" in out
    assert "crossing     1 out of each node per step" in out
    assert "   1  0.5000  0.5000 of 5                         5\n" in out


def test_an_exact_mean_and_a_limit_are_separable(capsys):
    assert "all ranks hold the mean after 3 steps" in told(capsys, "one_peer(exp2)", "--size", "8")
    assert "reaches the mean only in the limit" in told(capsys, "one_peer(exp2)", "--size", "6")


def test_a_wrong_mean_is_told(capsys):
    out = told(capsys, "star(uniform=true)")
    assert "the mean is not kept" in out
    assert "the limit is not the mean" in out


def test_many_ranks_are_cut_short_and_json_has_them_all(capsys, tmp_path):
    out = told(capsys, "ring", "--size", "100", "--json", str(tmp_path / "t.json"))
    assert "and 68 more ranks" in out
    found = json.loads((tmp_path / "t.json").read_text())
    assert len(found["rows"]) == 100
    assert found["rows"][0]["targets"] == [1, 99]
    assert found["topology"] == "ring"
    assert found["symmetric"]
    assert found["mixing_rate"] == pytest.approx(0.99868, abs=1e-5)


def test_the_drawing_has_a_circle_per_rank_and_arrows_where_edges_go_one_way(capsys, tmp_path):
    told(capsys, "exp2", "--size", "8", "--svg", str(tmp_path / "t.svg"))
    tree = ElementTree.parse(tmp_path / "t.svg").getroot()
    lines = tree.findall(f"{SVG}line")
    assert len(tree.findall(f"{SVG}circle")) == 8
    assert len(lines) == 8 * 2 + 4  # distances 1 and 2 go one way, 4 both ways
    assert sum("marker-end" in line.attrib for line in lines) == 16
    assert "prefers-color-scheme: dark" in (tmp_path / "t.svg").read_text()


def test_a_drawing_of_a_changing_topology_has_the_other_steps_behind():
    lines = ElementTree.fromstring(draw(topologies.MENU.make("one_peer(exp2)"), 8, 2)).findall(f"{SVG}line")
    assert [sum(line.get("class") == kind for line in lines) for kind in ("edge", "faint")] == [4, 16]


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 5])
def test_neighboring_nodes_differ_in_color(nodes):
    drawn = ElementTree.fromstring(draw(topologies.MENU.make("ring"), 2 * nodes, 0, nodes))
    kinds = [circle.get("class") for circle in drawn.iter(f"{SVG}circle")][::2]
    assert nodes == 1 or all(kinds[k] != kinds[k - 1] for k in range(nodes))


def test_everything_drawn_lies_on_the_paper():
    for size in (1, 2, 5, 128):
        for shape in ElementTree.fromstring(draw(topologies.MENU.make("ring"), size)).iter(f"{SVG}circle"):
            r = float(shape.get("r"))
            assert all(r <= float(shape.get(at)) <= 640 - r for at in ("cx", "cy"))


WRONG = {
    "exp3": "did you mean exp",
    "exp2 --size 0": "exp2 on 0 ranks: at least 1 rank is needed",
    "exp2 --size 513": "--size 513: weights are computed for at most 512 ranks try: --size 512",
    "exp2 --step -1": "--step -1: steps count from 0",
    "exp2 --nodes 2": "--nodes 2: it is nodes x ranks on each try: --nodes 2x8",
    "exp2 --nodes 0x4": "--nodes 0x4: it is nodes x ranks on each",
    "exp2 --size 4 --nodes 2x4": "--size 4 beside --nodes 2x4: these nodes have 8 ranks try: --size 8",
    "ring --size 200 --svg /tmp/never.svg": "--svg of 200 ranks: more than 128 cannot be told apart",
    "ring --svg /nowhere/t.svg": "--svg /nowhere/t.svg: there is no folder /nowhere",
    "ring --svg /tmp": "--svg /tmp: it is a folder try: --svg /tmp/FILE",
    "ring --json /nowhere/t.json": "there is no folder /nowhere",
    "graph(/nowhere/g.txt)": "there is no such file",
    "one_peer(star)": "converge to a wrong mean",
}


@pytest.mark.parametrize("command", WRONG)
def test_a_wrong_command_says_what_why_and_exits_with_two(command, capsys):
    with pytest.raises(SystemExit) as end:
        main(["topology", *command.split()])
    out, err = capsys.readouterr()
    assert end.value.code == 2, err
    assert WRONG[command] in " ".join(err.split())
    assert out == ""


def test_a_world_is_a_size_or_nodes_or_both():
    assert world(None, None) == (8, 1)
    assert world(6, None) == (6, 1)
    assert world(None, "2x8") == world(16, "2x8") == (16, 2)


def test_runs_of_ranks_are_drawn_together():
    assert spans((0, 1, 2, 3, 5, 6, 9)) == "0-3, 5, 6, 9"
    assert spans(()) == ""


def test_the_table_of_the_page_is_what_the_verb_computes():
    table = re.findall(r"^\| `([^`]+)` \|.*\| ([\d.]+) \| ([\d.]+)(?: to ([\d.]+))? \|$", PAGE.read_text(), re.M)
    assert len(table) >= 9
    assert {text.partition("(")[0] for text, *_ in table} <= set(topologies.MENU.names())
    for text, rate, low, high in table:
        topology, nodes = topologies.MENU.make(text), 4 if text == "inner_outer" else 1
        sent = models_sent(topology, 16, nodes)
        assert f"{mixing_rate(topology, 16, nodes):.3f}" == rate, text
        assert (min(sent), max(sent)) == (float(low), float(high or low)), text


def test_neither_torch_nor_networkx_is_loaded():
    code = (
        "import sys, paceline.cli.topology; from paceline.strategy import topologies; "
        "from paceline.report.topology import look\n"
        "[look(text, 8) for text in topologies.MENU.names() if text != 'graph']; topologies.MENU.load('graph')\n"
        "print(sorted({'torch', 'networkx'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr
