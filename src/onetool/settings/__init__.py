"""Settings: find, read, trust, validate and edit them.

Start with `model.py`, which defines every key, its type and its default, and with `load.py`, which
merges the layers. `settings_reader` and `live_settings` read settings at the start and at each
reload. `trust` decides whether a project's directory takes effect, `settings_editor` changes
settings with a history (`edit_history`), and `clients` reads and writes the configuration files of
assistants.

What holds here:

- Later layers win: defaults, the user's directory, the project's directory, the store, environment
  variables. Mappings are merged key by key, and lists are replaced.
- Reading writes nothing. All errors are reported at once, with file and line and without secrets.
- `Settings` is immutable. A reload replaces it as a whole, or raises and changes nothing.
- A project's settings take effect only after the user has trusted them. Changes that can run code
  or reach data or the network need trust again.
- An edit keeps comments, order and formatting, is validated as a whole before anything is written,
  and is not written if a file has changed meanwhile.
- Errors and differences contain no values of secrets.
"""
