"""The daemon process: `python -m onetool.daemon SOCKET`, with the listening socket as descriptor 3."""

import sys

from onetool.daemon.daemon import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
