"""The daemon: `python -m onetool.server.daemon SOCKET`, with its socket as descriptor 3."""

import gc
import sys

gc.disable()  # until everything is imported, none of which is garbage

from onetool.server.daemon.daemon import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
