"""Lists what uses each secret: servers, packs, bundles and other settings."""

from collections.abc import Iterator
from typing import Literal

from anyio.to_thread import run_sync as run_in_thread
from pydantic import Field

from onetool.admin.model import ApiModel
from onetool.app import OneTool
from onetool.errors import BundleError
from onetool.settings.layers import format_path
from onetool.settings.sections import Loc

Kind = Literal["server", "pack", "bundle", "setting"]


SecretUser = tuple[Kind, str]


class SecretUserInfo(ApiModel):
    kind: Kind
    name: str = Field(description="Name, or the path of the setting")


async def map_secret_users(app: OneTool) -> dict[str, list[SecretUserInfo]]:
    """Return what uses each secret, by the name of the secret."""
    await app.extensions.refresh()
    uses = {*_list_settings(app), *_list_packs(app), *await _list_bundles(app)}
    users: dict[str, list[SecretUserInfo]] = {}
    for secret, (kind, name) in sorted(uses):
        users.setdefault(secret, []).append(SecretUserInfo(kind=kind, name=name))
    return users


async def _list_bundles(app: OneTool) -> list[tuple[str, SecretUser]]:
    try:
        await app.bundles.refresh()
        uses = await run_in_thread(app.bundles.list_secret_uses)
    except BundleError:  # the store cannot be read; the health check reports that
        return []
    return [(use.name, ("bundle", use.bundle)) for use in uses]


def _list_settings(app: OneTool) -> Iterator[tuple[str, SecretUser]]:
    for name, places in app.live_settings.loaded.references.items():
        yield from ((name, _describe_setting(place)) for place in places)


def _describe_setting(place: Loc) -> SecretUser:
    match place:
        case ("servers", name, *_):
            return "server", str(name)
        case ("tools", name, *_):
            return "pack", str(name)
    return "setting", format_path(place)


def _list_packs(app: OneTool) -> Iterator[tuple[str, SecretUser]]:
    configured = {pack: settings.secrets for pack, settings in app.settings.tools.items()}
    for pack, names in (*configured.items(), *app.extensions.declared_secrets.items()):
        yield from ((name, ("pack", pack)) for name in names)
