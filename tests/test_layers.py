import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "paceline"
FAMILIES = (
    "strategy/rules",
    "strategy/exchanges",
    "strategy/topologies",
    "strategy/schedules",
    "strategy/compressors",
    "strategy/memberships",
    "workload/sources",
)


def test_imports_go_downward_only():
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([program, "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


def imports(path, inside_functions):
    """Modules that a file imports; at the top level only, or anywhere."""
    tree = ast.parse(path.read_text())
    nodes = ast.walk(tree) if inside_functions else tree.body
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_only_comm_and_references_import_torch_distributed():
    found = {
        path.parent.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for name in imports(path, inside_functions=True)
        if name.startswith(("torch.distributed", "torch.nn.parallel"))
    }
    assert found == {"comm", "comm/torch", "train/references"}


def test_family_files_import_torch_only_inside_functions():
    found = [
        str(path)
        for family in FAMILIES
        for path in (PACKAGE / family).glob("*.py")
        for name in imports(path, inside_functions=False)
        if name.partition(".")[0] == "torch"
    ]
    assert found == []


def test_no_file_outgrows_one_concept():
    long = {str(p.relative_to(ROOT)): n for p in PACKAGE.rglob("*.py") if (n := len(p.read_text().splitlines())) > 420}
    assert long == {}
