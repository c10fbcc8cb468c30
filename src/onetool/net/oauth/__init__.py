"""Signing in to upstream servers, APIs and the admin UI with OAuth 2.1 and OpenID Connect.

`SignIns` is what the application uses: it returns tokens, starts and finishes sign-ins, and reports
their state. `token_source` refreshes tokens, `discovery` finds the authorization server,
`token_requests` asks it for tokens; both parse documents with the models of the MCP SDK, and the
sign-in to the admin UI uses them too. `guarded_http` decides which URLs may be requested, and
`onetool.state.credentials` keeps credentials.
"""
