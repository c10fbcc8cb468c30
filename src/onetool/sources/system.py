"""The protocol through which tools access the running application; implemented by `onetool.app`."""

from __future__ import annotations  # so that importing it loads nothing

from typing import TYPE_CHECKING, Any, Protocol, cast

from onetool.errors import ToolError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from onetool.core.live_settings import LiveSettings
    from onetool.core.registry import Registry
    from onetool.net import Net
    from onetool.runs.results.blobs import Media
    from onetool.runs.results.store import StoredResults
    from onetool.settings.model import Settings
    from onetool.settings.paths import Directories
    from onetool.sources.llm import LanguageModel
    from onetool.sources.search.search_documents import CatalogSearch
    from onetool.state.document_kinds import SavedSnippet
    from onetool.state.run_records import RunRecord
    from onetool.state.storage import State
    from onetool.util.context import ClientSignIns, ToolContext
    from onetool.util.problem import Problem
    from onetool_child.json_types import JsonMapping, JsonObject


class UpstreamFeatures(Protocol):
    """An upstream server's resources and prompts."""

    async def list_resources(self, context: ToolContext) -> list[JsonObject]: ...
    async def read_resource(self, uri: str, context: ToolContext) -> Any: ...
    async def list_prompts(self, context: ToolContext) -> list[JsonObject]: ...
    async def get_prompt(
        self, name: str, arguments: Mapping[str, str], context: ToolContext
    ) -> JsonObject: ...


class Upstreams(Protocol):
    def upstream(self, name: str) -> UpstreamFeatures: ...


class RunService(Protocol):
    """Runs, as code reaches them: see `onetool.runs.runs`."""

    async def find_own(self, run_id: str, agent: str, token_id: str) -> RunRecord: ...
    async def get_result(self, run_id: str, agent: str, token_id: str, seconds: float) -> Any: ...
    async def start_call(
        self, tool_name: str, arguments: JsonMapping, context: ToolContext
    ) -> str: ...
    async def plan(self, code: str, context: ToolContext) -> JsonObject: ...
    async def save_snippet(
        self, name: str, description: str, run_id: str, context: ToolContext
    ) -> SavedSnippet: ...


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
    def state(self) -> State: ...
    @property
    def results(self) -> StoredResults: ...
    @property
    def media(self) -> Media: ...
    @property
    def servers(self) -> Upstreams: ...
    @property
    def net(self) -> Net: ...
    @property
    def llm(self) -> LanguageModel: ...
    @property
    def runs(self) -> RunService: ...
    @property
    def catalog(self) -> CatalogSearch: ...
    @property
    def live_settings(self) -> LiveSettings: ...
    @property
    def sign_ins(self) -> ClientSignIns: ...
    @property
    def problems(self) -> tuple[Problem, ...]: ...
    async def discover(self, words: Collection[str] | None = None) -> None: ...
    async def health(self) -> JsonObject: ...


def get_system(context: ToolContext) -> System:
    if context.system is None:
        raise ToolError("this tool needs a running OneTool application, not only a bus")
    return cast("System", context.system)  # callers that set `system` pass a System
