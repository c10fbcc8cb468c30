"""Answers about a running application, for the command line and REST."""
