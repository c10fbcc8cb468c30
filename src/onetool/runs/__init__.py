"""Runs: executing code, what becomes of its result, approvals, and replay after a restart.

Start with `Runs.run` in `runs.py`, the life of a run. `runner.py` leads one execution from the
command to the answer: `fence_processor` extracts the code, `tool_loader` finds its names, `cells`
runs it, `answer` renders the result, `explain` renders errors. `gate.py` decides about each call of
a run, and the journal in `replay.py` keeps what must survive. `results` stores large results,
`snippets` expands code templates, and `parts.py` creates what new settings replace.

What holds here:

- A cell is a fresh process that runs code once. The server never executes the code of a run, and
  parses it only to save it as a snippet, after the parser of a cell has accepted it.
- A call with an effect is recorded before it is sent. A call that was sent and has no result is
  unknown, and only a person can say whether it happened, unless it may be repeated.
- A replayed run depends only on its seed and the recorded answers to its calls.
- `Runs.decide` is the only way to answer a question, and no tool leads to it.
- Runs without effects and questions store nothing here. Their history is in `onetool.state.stats`.
- New settings do not interrupt current runs: these finish in the cells that they have.
"""
