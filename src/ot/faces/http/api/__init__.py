"""REST for the page and for programs, over everything that can be called. `routes` has the table of it all."""

from ot.faces.http.api.routes import add_routes

__all__ = ["add_routes"]
