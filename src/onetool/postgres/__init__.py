"""State in PostgreSQL, for replicas that share it: a second implementation of the protocols of `onetool.storage`.

`onetool.postgres.state` opens all kinds. Every module needs the extra `postgres`.
"""
