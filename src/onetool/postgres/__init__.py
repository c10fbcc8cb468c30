"""State in PostgreSQL, for replicas that share it: a second implementation of the protocols of `onetool.state.storage`.

`onetool.state.postgres_state` opens all kinds. Every module needs the extra `postgres`.
"""
