"""Handlers of the REST API. `onetool.transports.http.asgi_app` registers them."""
