"""Revoke trust in .onetool/ in this directory, so that its settings and extensions are ignored."""

from argparse import ArgumentParser, Namespace

from onetool.cli.options import print_result
from onetool.cli.trust import project_folders
from onetool.settings.trust import untrust


def add_arguments(parser: ArgumentParser) -> None:
    pass


def main(options: Namespace) -> int:
    directories = project_folders(options)
    assert directories.project is not None
    known = untrust(directories.project, directories.user)
    data = {"folder": str(directories.project), "trusted": False, "was": known}
    print_result(
        options, data, [f"{directories.project} {'is no longer' if known else 'was not'} trusted."]
    )
    return 0
