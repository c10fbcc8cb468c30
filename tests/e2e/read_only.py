"""Run a program with a read-only directory: `python read_only.py DIRECTORY PROGRAM ARGUMENT...`, as
root.
"""

import os
import sys

from as_user import MS_BIND, _mount, _new_namespace  # type: ignore[import-not-found]

MS_RDONLY, MS_REMOUNT = 0x1, 0x20

if __name__ == "__main__":
    directory, command = sys.argv[1], sys.argv[2:]
    _new_namespace()
    _mount(directory, directory, None, MS_BIND)
    _mount("none", directory, None, MS_BIND | MS_REMOUNT | MS_RDONLY)
    os.execv(command[0], command)
