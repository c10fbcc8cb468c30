"""Starts a program that the kernel confines: `confined_program.py RULES COMMAND ARGUMENT…`.

RULES is a JSON file with the rules of `confine.confine_program` and the environment of the program,
which therefore has no effect on the processes that start it. Standard library only.
"""

import json
import os
import sys


def main(rules_file: str, command: list[str]) -> None:
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120 - start-up
    from onetool_child.confine import confine_program

    with open(rules_file, encoding="utf-8") as file:  # noqa: PTH123 - see above
        rules = json.load(file)
    environment = rules.pop("environment")
    confine_program(**rules)
    try:
        os.execve(command[0], command, environment)  # noqa: S606 - confined
    except OSError as error:
        raise SystemExit(f"cannot start {command[0]}: {error.strerror}") from None


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
