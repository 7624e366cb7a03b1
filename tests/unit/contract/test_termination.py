"""A process that is told to end while it starts ends at once, also as process 1 of a container."""

import subprocess
import sys

import pytest

PROBE = """
import importlib, signal, sys
module = importlib.import_module(sys.argv[1])
slow = {"torch", "uvloop", "aiohttp", "kopf", "kubernetes"} & set(sys.modules)
assert not slow, f"imported before SIGTERM is handled: {slow}"
sys.argv = ["program", "--no-such-flag"]
try:
    module.main()
except SystemExit:
    pass
assert callable(signal.getsignal(signal.SIGTERM)), "SIGTERM has no handler"
try:
    signal.raise_signal(signal.SIGTERM)
except SystemExit as end:
    sys.exit(end.code)
"""


@pytest.mark.parametrize("module", ["forebay.engine.__main__", "forebay.router.__main__", "forebay.operator.__main__"])
def test_sigterm_is_handled_before_anything_slow(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, module], capture_output=True, text=True, timeout=60, check=False, env={}
    )
    assert done.returncode == 143, done.stderr
