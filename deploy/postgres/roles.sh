#!/bin/sh
# Create the three roles and the database, when the container of PostgreSQL starts for the first time.
set -eu
psql -v ON_ERROR_STOP=1 -U "$POSTGRES_USER" -d postgres \
    -v migration="$MIGRATION_PASSWORD" -v replica="$REPLICA_PASSWORD" -v worker="$WORKER_PASSWORD" <<'SQL'
CREATE ROLE onetool_migration LOGIN PASSWORD :'migration';
CREATE ROLE onetool_replica LOGIN PASSWORD :'replica';
CREATE ROLE onetool_worker LOGIN PASSWORD :'worker';
CREATE DATABASE onetool OWNER onetool_migration;
SQL
