"""The state that a reload replaces: settings and everything created from them."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import anyio.to_thread

from onetool.config.load import Loaded
from onetool.core.bus.bus import ToolBus
from onetool.errors import ConfigError
from onetool.logging import Log
from onetool.net import HostRules, Net
from onetool.paths import resolve_path
from onetool.runner.answer import Presenter
from onetool.runner.cells import CellLimits, CellSource
from onetool.runner.runner import Runner
from onetool.state.audit import AuditLog
from onetool.state.disabled_tools import Switches
from onetool.state.opening import open_state
from onetool.state.storage import DisabledToolStorage, MediaStorage, RemoteState, ResultStorage
from onetool.state.stores import Stores
from onetool.util.redact import Redactor


@dataclass(frozen=True, slots=True)
class State:
    loaded: Loaded
    error: ConfigError | None
    cells: CellSource
    runner: Runner
    redact: Redactor
    stores: Stores
    results: ResultStorage
    media: MediaStorage
    audit: AuditLog
    net: Net
    switches: DisabledToolStorage
    projects: dict[str, str]

    def retire(self, successor: "State") -> Iterator[Awaitable[object]]:
        """Yield the cleanup of parts that the successor does not share. Current runs finish in their cells."""
        if successor.cells is not self.cells:
            yield self.cells.retire()
        if successor.stores is not self.stores:
            yield anyio.to_thread.run_sync(self.stores.close)
        if successor.audit is not self.audit:
            yield anyio.to_thread.run_sync(self.audit.close)
        if successor.net is not self.net:
            yield self.net.close()


def make_state(
    loaded: Loaded,
    error: ConfigError | None,
    old: State | None,
    *,
    bus: ToolBus,
    log: Log,
    make_cells: Callable[..., CellSource],
    own_ports: Callable[[], set[int]],
) -> State:
    """Create the state for these settings, reusing unchanged parts of the old state.

    Tools must not send requests to `own_ports`.
    """
    settings, directories = loaded.settings, loaded.directories
    keys = (settings.llm.api_key, *(issuer.client_secret for issuer in settings.auth.issuers))
    redact, stores = Redactor({*loaded.secret_values, *filter(None, keys)}), _open_stores(loaded, old)
    results = stores.results(settings.output)
    paths = settings.projects.items()
    projects = {name: str(resolve_path(path, directories.root, directories.home)) for name, path in paths}
    if old is not None and old.loaded.settings.execution == settings.execution:
        cells = old.cells
    else:
        limits = CellLimits(**settings.execution.model_dump(include={*CellLimits.__dataclass_fields__}))
        cells = make_cells(limits, on_stray=lambda text: log.event("cell.output", text=text))
    if old is not None and old.loaded.settings.http == settings.http:
        net = old.net
    else:  # current requests finish with the old rules
        net = Net(HostRules(settings.http.allowed_hosts, settings.http.allow_private_addresses), own_ports=own_ports)
    return State(
        loaded=loaded,
        error=error,
        cells=cells,
        runner=Runner(
            *(bus, cells, settings, Presenter(settings.output, results, redact)),
            projects=projects,
            saved_snippets=stores.snippets,
        ),
        redact=redact,
        stores=stores,
        results=results,
        media=stores.media(settings.output),
        audit=_open_audit(loaded, redact, old, stores.remote),
        net=net,
        switches=Switches(directories.data) if stores.remote is None else stores.remote.disabled_tools,
        projects=projects,
    )


def _open_stores(loaded: Loaded, old: State | None) -> Stores:
    directory = loaded.directories.data
    is_same = old is not None and old.loaded.settings.store == loaded.settings.store
    if old is None or not is_same or old.stores.directory != directory:
        scope = str(loaded.directories.working_dir)
        private = loaded.directories.private
        stores = Stores.open(directory, private, remote=_open_remote(loaded), scope=scope)
    else:
        stores = old.stores
    stores.recorder.configure(loaded.settings.stats, loaded.settings.runs)
    return stores


def _open_remote(loaded: Loaded) -> RemoteState | None:
    """Open the database of the settings and follow its changes. Returns at once."""
    remote = open_state(loaded)
    if remote is not None:
        remote.start()
    return remote


def _open_audit(loaded: Loaded, redact: Redactor, old: State | None, remote: RemoteState | None) -> AuditLog:
    settings = loaded.settings.audit
    file = resolve_path(settings.file, loaded.directories.data, loaded.directories.home)
    is_same = old is not None and old.audit.file == file and old.stores.remote is remote
    if old is not None and is_same:
        audit = old.audit
    else:
        audit = AuditLog(file, redact, None if remote is None else remote.audit(redact))
        audit.on_record = old.audit.on_record if old is not None else audit.on_record
    audit.configure(redact, settings.max_bytes, settings.keep)
    return audit
