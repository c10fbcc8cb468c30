"""The protocol through which tools access the running application; implemented by `onetool.app`."""

from __future__ import annotations  # so that importing it loads nothing

from typing import TYPE_CHECKING, Any, Protocol, cast

from onetool.errors import ToolError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from onetool.config.model import Settings
    from onetool.context import ToolContext
    from onetool.llm import LanguageModel
    from onetool.net import Net
    from onetool.paths import Directories
    from onetool.registry import Registry
    from onetool.runs.runs import Runs
    from onetool.search import SearchHit
    from onetool.storage import MediaStorage, ResultStorage
    from onetool.stores import Stores


class UpstreamFeatures(Protocol):
    """The resources and prompts of an upstream server."""

    async def list_resources(self, context: ToolContext) -> list[dict[str, Any]]: ...
    async def read_resource(self, uri: str, context: ToolContext) -> Any: ...
    async def list_prompts(self, context: ToolContext) -> list[dict[str, Any]]: ...
    async def get_prompt(self, name: str, arguments: Mapping[str, str], context: ToolContext) -> dict[str, Any]: ...


class Upstreams(Protocol):
    def upstream(self, name: str) -> UpstreamFeatures: ...


class System(Protocol):
    @property
    def environment(self) -> Mapping[str, str]: ...
    @property
    def registry(self) -> Registry: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def directories(self) -> Directories: ...
    @property
    def stores(self) -> Stores: ...
    @property
    def results(self) -> ResultStorage: ...
    @property
    def media(self) -> MediaStorage: ...
    @property
    def servers(self) -> Upstreams: ...
    @property
    def net(self) -> Net: ...
    @property
    def llm(self) -> LanguageModel: ...
    @property
    def runs(self) -> Runs: ...
    async def discover(self, words: Collection[str] | None = None) -> None: ...
    async def search(self, query: str, limit: int = 20) -> list[SearchHit]: ...
    async def plan(self, code: str, context: ToolContext) -> dict[str, Any]: ...
    async def health(self) -> dict[str, Any]: ...
    async def reload(self) -> str: ...


def get_system(context: ToolContext) -> System:
    if context.system is None:
        raise ToolError("this tool needs a running OneTool application, not only a bus")
    return cast("System", context.system)  # callers that set `system` pass a System
