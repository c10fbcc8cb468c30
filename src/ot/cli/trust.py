"""Let this folder's .onetool/ take effect: its servers, agents and extension tools may run from now on."""

import argparse
import json
import os
from pathlib import Path

from ot.config.trust import trust
from ot.errors import ToolError
from ot.paths import FOLDER, Folders, find_folders, is_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def main(options: argparse.Namespace) -> int:
    folders = project_folders(options)
    assert folders.project is not None
    trust(folders.project, folders.user)
    if options.json:
        print(json.dumps({"folder": str(folders.project), "trusted": True}, ensure_ascii=False))
    else:
        print(f"{folders.project} is trusted. A change of servers, agents or rights asks again.")
    return 0


def project_folders(options: argparse.Namespace) -> Folders:
    folders = find_folders(os.environ, Path.cwd(), options.config, Path.home())
    if folders.project is not None:
        return folders
    if folders.working_dir / FOLDER == folders.user and is_folder(folders.user):
        raise ToolError(f"{folders.user} is your own folder, which needs no trust")
    raise ToolError(f"there is no .onetool folder in {folders.working_dir}; go to the folder of a project that has one")
