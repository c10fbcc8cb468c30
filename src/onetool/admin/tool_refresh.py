"""Updates the set of tools before it is listed."""

from onetool.app import OneTool

REFRESH_SECONDS = 2.0  # for servers whose tools were never listed


async def refresh_tools(app: OneTool) -> None:
    """Update the set of tools. Slow servers finish in the background."""
    if not await app.registry.refresh_within(REFRESH_SECONDS):
        await app.bundles.refresh()  # it follows the servers
