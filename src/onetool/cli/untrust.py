"""Revoke trust in .onetool/ in this directory, so that its settings and extensions are ignored."""

from argparse import ArgumentParser, Namespace

from onetool.cli.options import add_json, print_json
from onetool.cli.trust import project_folders
from onetool.config.trust import untrust


def add_arguments(parser: ArgumentParser) -> None:
    add_json(parser)


def main(options: Namespace) -> int:
    directories = project_folders(options)
    assert directories.project is not None
    known = untrust(directories.project, directories.user)
    if options.json:
        print_json({"folder": str(directories.project), "trusted": False, "was": known}, indent=None)
    else:
        print(f"{directories.project} is no longer trusted." if known else f"{directories.project} was not trusted.")
    return 0
