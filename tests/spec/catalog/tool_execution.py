"""Specification 3, extension tools in workers: 14 named scenarios."""

from .requirement import Table, list_requirements

TABLE: Table = {
    "worker": {
        "worker-startup-on-first-call": "The first call starts a worker by uv, and it stays",
        "subsequent-calls-use-existing-worker": "Later calls go to the worker that is there",
        "worker-idle-timeout": "A worker that nobody calls is stopped and forgotten",
        "session-refresh-on-call": "A call starts the idle time anew",
    },
    "pep-723": {
        "tool-with-dependencies": "Declared dependencies are there when the file runs",
        "toml-parsing-compliance": "The header is read as TOML; a broken one counts as none",
    },
    "internal": {
        "internal-tool-detection": (
            "A shipped file without a PEP 723 header runs in the server's process"
        ),
        "internal-tool-has-onetool-access": (
            "A shipped tool reaches registry and configuration directly"
        ),
        "internal-tool-dependencies": "What shipped tools need is declared in pyproject.toml",
    },
    "location": {
        "project-extension-discovery": "Extension files of the project are found",
        "global-extension-discovery": (
            "Extension files of the user are found, and the project's win"
        ),
    },
    "type": {
        "internal-tool-identification": "Shipped and without a header means in process",
        "extension-tool-identification": "An extension file with a header runs in a worker",
        "invalid-extension-without-pep-723": (
            "An extension file without a header is loaded all the same"
        ),
    },
}

REQUIREMENTS = list_requirements("tool-execution", TABLE)
