"""Everything that is kept, in files or in PostgreSQL, behind one interface: see `onetool.state.opening`."""
