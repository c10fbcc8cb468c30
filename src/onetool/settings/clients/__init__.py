"""Support for MCP clients (assistants): locates, reads and extends their configuration files.

`catalog` lists the clients and determines the command that starts OneTool. `json_edit`, `toml_edit`
and `yaml_edit` edit text and preserve everything else byte for byte; `text_files` reads and writes.
`client_servers` finds the servers in a configuration and converts them to OneTool's settings, and
`server_import` imports them.

Facts from the clients' documentation that this package relies on (November 2026):

| client         | user scope                                            | project scope        | under                |
|----------------|-------------------------------------------------------|----------------------|----------------------|
| claude-code    | ~/.claude.json ($CLAUDE_CONFIG_DIR/.claude.json)      | .mcp.json            | mcpServers           |
| claude-desktop | <app data>/Claude/claude_desktop_config.json          |                      | mcpServers           |
| cursor         | ~/.cursor/mcp.json                                    | .cursor/mcp.json     | mcpServers           |
| vscode         | <app data>/Code/User/mcp.json                         | .vscode/mcp.json     | servers              |
| codex          | ~/.codex/config.toml ($CODEX_HOME/config.toml)        | .codex/config.toml   | [mcp_servers.<name>] |
| gemini         | ~/.gemini/settings.json                               | .gemini/settings.json| mcpServers           |
| windsurf       | ~/.codeium/windsurf/mcp_config.json                   |                      | mcpServers           |
| zed            | ~/.config/zed/settings.json, %APPDATA%/Zed on Windows | .zed/settings.json   | context_servers      |

`<app data>` is ~/Library/Application Support on macOS, %APPDATA% on Windows, $XDG_CONFIG_HOME or
~/.config elsewhere.

| client         | keys of a server, in addition to command, args and env                   | variables in values      |
|----------------|--------------------------------------------------------------------------|--------------------------|
| claude-code    | type stdio, http or sse; url, headers; local scope is in                 | ${X}, ${X:-default}      |
|                | projects.<path>.mcpServers of ~/.claude.json                             |                          |
| claude-desktop | none (remote servers are set up in the app); no working directory        |                          |
| cursor         | type, url, headers, envFile                                              | ${env:X}, ${userHome},   |
|                |                                                                          | ${workspaceFolder}, ...  |
| vscode         | type (required), url, headers, cwd, envFile; inputs beside servers;      | these and ${input:x},    |
|                | older: mcp.servers in settings.json                                      | ${command:x}             |
| codex          | url, http_headers, env_http_headers, bearer_token_env_var, env_vars,     |                          |
|                | cwd, enabled, enabled_tools, disabled_tools, tool_timeout_sec            |                          |
| gemini         | httpUrl is HTTP and url SSE, newer: url with type; headers, cwd, trust,  | $X, ${X}                 |
|                | timeout (ms), includeTools, excludeTools                                 |                          |
| windsurf       | serverUrl or url, headers, disabled, disabledTools                       | ${env:X}, ${file:path}   |
| zed            | url, headers, enabled; older: source, command {path, args, env}          |                          |

Comments and trailing commas are accepted and kept in all JSON files, although only VS Code, Zed and
Gemini allow them.
"""
