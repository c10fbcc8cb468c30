"""The functions for what people can do, one for each thing, which REST and the command line share.

Start with `action.py` and one module with actions, such as `settings.py`. A function with the
decorator `action` takes the application, the person and the input, and returns a model. REST routes
are in `onetool.server.http.route_table`; a command parses its arguments, calls the function and
prints the model.

What holds here:

- `Action.authorize` is the only place that decides who may do something, for REST and for commands.
  What an edit changes is checked in addition, by `rights`, which compares the settings before and
  after it.
- Input and output are models (`model.py`). REST makes its OpenAPI document from them, with the
  first line of the docstring as the summary.
- Functions raise `AdminError` with a code. REST has a status for each code, and the command line
  prints the message.
- Every change of settings by a person goes through `edit` in `settings_edits.py`: planned, checked,
  audited, written, and in effect when it returns.
- Actions do not know requests, terminals or output formats.
- Values of secrets and tokens are never returned, except a new token, once.
"""
