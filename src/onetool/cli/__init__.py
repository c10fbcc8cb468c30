"""The command line: modules with commands, which parse, call `onetool.admin`, and print.

Start with `main.py`, which finds the module of a command, `command.py`, which defines a command,
and the hosts in `settings.py`, a short command. `start.py` is the entry point; it asks the shared
server first. `invocation` opens the application for a command, `remote` executes commands of
clients in the shared server, and `exit_status` turns errors into messages and exit statuses.

What holds here:

- A module declares its commands in `COMMANDS`. A command has `execute(invocation)`, or
  `main(options)` if it needs no application or checks its options first.
- Commands in `SHARED_COMMANDS` of `onetool.processes.daemon_client` may run in the shared server,
  in another directory and environment than their own: they write to `output` of the invocation, and
  read settings from its `app`.
- Modules import the application inside of functions, so that `--help` and completion start fast.
- Whoever types commands on this machine is the owner. Approvals need a proof in addition, because
  assistants can start commands: see `approver.py`.
- With `--json`, standard output has only JSON. Errors are text on standard error, and a message
  that has something to type says it after `Hint:`.
"""
