"""REST for the page and for programs. `routes` has the table of it all."""
