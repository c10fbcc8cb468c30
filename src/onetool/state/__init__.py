"""Everything that is kept, in files or in PostgreSQL."""
