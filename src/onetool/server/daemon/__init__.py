"""The shared server: a daemon that hosts the applications of all clients of a user."""
