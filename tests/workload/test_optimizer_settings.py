"""Settings read from the source of torch are those that torch itself has."""

import inspect
import subprocess
import sys

from paceline.workload.optimizer_settings import optimizer_settings
from paceline.workload.recipe import optimizers


def test_names_and_settings_are_those_of_torch():
    signatures = {name: inspect.signature(cls).parameters for name, cls in optimizers().items()}
    assert optimizer_settings() == {name: tuple(list(took)[1:]) for name, took in signatures.items()}


def test_torch_is_not_loaded():
    code = "import sys; from paceline.workload.optimizer_settings import optimizer_settings as read; print(len(read()))"
    done = subprocess.run([sys.executable, "-c", f"{code}; assert 'torch' not in sys.modules"], stdout=-1, check=True)
    assert int(done.stdout) > 5
