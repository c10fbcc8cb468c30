"""The entry point of the command `onetool`.

It loads nothing that the daemon may already have loaded.
"""

import sys

from onetool.processes.daemon_client import run_in_daemon


def main() -> int:
    """Run the command, in the daemon if possible."""
    status = run_in_daemon(sys.argv[1:])
    if status is not None:
        return status
    from onetool.cli.main import main as run_here

    return run_here()
