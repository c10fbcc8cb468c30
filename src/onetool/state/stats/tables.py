"""The tables of the statistics, in SQLite and PostgreSQL."""

from onetool.state.stats import details, rollup, spending

VERSION = 1
# Runs are listed by time or duration: all, or those of one agent, actor or token. In SQLite, tables
# have a `rowid`.
SCHEMA = f"""
CREATE TABLE calls (
    name TEXT, agent TEXT, session TEXT, run_id TEXT, seconds DOUBLE PRECISION, error_type TEXT, result_tokens BIGINT,
    at DOUBLE PRECISION, call_id BIGINT{{rowid}}
);
CREATE INDEX calls_at ON calls (at);
CREATE INDEX calls_run ON calls (run_id);
CREATE TABLE runs (
    id TEXT, agent TEXT, session TEXT, seconds DOUBLE PRECISION, error_type TEXT, round_trips BIGINT,
    answer_tokens BIGINT, result_tokens BIGINT, at DOUBLE PRECISION, kind TEXT, name TEXT, client TEXT, code TEXT,
    calls BIGINT, failed BIGINT, actor TEXT, token_id TEXT, directory TEXT, cost DOUBLE PRECISION{{rowid}}
);
CREATE UNIQUE INDEX runs_id ON runs (id);
CREATE INDEX runs_by_time ON runs (at, id);
CREATE INDEX runs_by_duration ON runs (seconds, id);
CREATE INDEX runs_of_agent_by_time ON runs (agent, at, id);
CREATE INDEX runs_of_agent_by_duration ON runs (agent, seconds, id);
CREATE INDEX runs_of_actor_by_time ON runs (actor, at, id);
CREATE INDEX runs_of_actor_by_duration ON runs (actor, seconds, id);
CREATE INDEX runs_of_token_by_time ON runs (token_id, at, id);
CREATE INDEX runs_of_token_by_duration ON runs (token_id, seconds, id);
CREATE TABLE sessions (
    session TEXT UNIQUE, agent TEXT, catalog TEXT, definition_tokens BIGINT, own_tokens BIGINT,
    at DOUBLE PRECISION{{rowid}}
);
CREATE TABLE definitions (catalog TEXT, name TEXT, tokens BIGINT, PRIMARY KEY (catalog, name)){{in_order}};
CREATE TABLE usage (tool TEXT PRIMARY KEY, calls BIGINT, last DOUBLE PRECISION){{in_order}};
CREATE TABLE shapes (tool TEXT PRIMARY KEY, shape TEXT){{in_order}};
{rollup.SCHEMA}{details.SCHEMA}{spending.SCHEMA}
"""
SQLITE_SCHEMA = SCHEMA.format(rowid="", in_order=" WITHOUT ROWID")
POSTGRES_SCHEMA = SCHEMA.format(rowid=", rowid bigserial PRIMARY KEY", in_order="")
ADD_USES = f"""
ON CONFLICT (tool) DO UPDATE SET calls = usage.calls + excluded.calls,
last = {rollup.greater("usage.last", "excluded.last")}
"""
COUNT_USE = f"INSERT INTO usage VALUES (?, ?, ?) {ADD_USES}"  # noqa: S608 - constants
