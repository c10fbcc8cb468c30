"""Signing in to upstream servers and APIs with OAuth 2.1.

`SignIns` is what the application uses: it returns tokens, starts and finishes sign-ins, and reports their state.
`token_source` refreshes tokens, `discovery` finds the authorization server, `token_requests` asks it for tokens,
`guarded_http` decides which URLs may be requested, and `credential_store` keeps credentials.
"""
