"""The command line: one module for each command, which parses, calls `onetool.admin`, and prints.

Start with `main.py`, which finds the module of a command, and `hosts.py`, a short command.
`start.py` is the entry point; it asks the shared server first. `app_runner` opens the application
for a command, `remote` executes commands of clients in the shared server, and `exit_status` turns
errors into messages and exit statuses.

What holds here:

- A command has `add_arguments(parser)` and `execute(app, options, output)`, or `main(options)` if
  it needs no application or checks its options first. Its module docstring is the text of `--help`.
- `execute` may run in the shared server, in another directory and environment than its own: it
  writes to `output`, and reads settings from `app`. A module with `LOCAL = True` stays in this
  process.
- Modules import the application inside of functions, so that `--help` and completion start fast.
- Whoever types commands on this machine is the owner. Approvals need a proof in addition, because
  assistants can start commands: see `approver.py`.
- With `--json`, standard output has only JSON. Errors are text on standard error, and a message
  that has something to type says it after `Hint:`.
"""
