"""The process around WebAssembly sandboxes, without a sandbox."""

import subprocess
import sys

import pytest

CHILD = "from onetool_child.wasm_host import read_peak_memory; print(read_peak_memory())"
PARENT = f"""
import subprocess, sys
memory = bytes(bytearray(b"x") * (200 << 20))
subprocess.run([sys.executable, "-c", {CHILD!r}])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is checked in other ways elsewhere")
def test_the_memory_of_the_server_does_not_count_as_that_of_a_sandbox() -> None:
    printed = subprocess.run(
        [sys.executable, "-c", PARENT], capture_output=True, text=True, check=True
    ).stdout
    assert 1 << 20 < int(printed) < 150 << 20
