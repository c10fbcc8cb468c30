"""One server for all clients of a user: the thin client, and the daemon that hosts their
applications.
"""
