"""REST for the page and for programs. `onetool.faces.http.server` has the table of it all."""
