"""Edits of settings files by the command line and the admin UI: validated, with a history, and
undone like an edit.

Start reading at `settings_editor`. `rights` decides who may make an edit, from what it changes.
"""
