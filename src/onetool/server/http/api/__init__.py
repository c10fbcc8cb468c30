"""Handlers of the REST API. `onetool.server.http.asgi_app` registers them."""
