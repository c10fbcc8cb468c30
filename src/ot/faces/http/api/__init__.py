"""REST for the page and for programs. `ot.faces.http.server` has the table of it all."""
