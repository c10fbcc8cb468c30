"""The state that a reload replaces: settings and everything created from them."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from anyio.to_thread import run_sync as run_in_thread

from onetool.config.load import Loaded
from onetool.core.bus.bus import ToolBus
from onetool.errors import ConfigError
from onetool.logging import Log
from onetool.net import HostRules, Net
from onetool.paths import resolve_path
from onetool.results.blobs import Media
from onetool.results.store import StoredResults
from onetool.runner.answer import Presenter
from onetool.runner.cells import CellLimits, CellSource
from onetool.runner.runner import Runner
from onetool.runs.decisions import is_revoked
from onetool.state.audit import AuditLog, open_audit_log
from onetool.state.changes import Changes
from onetool.state.opening import open_state
from onetool.state.run_records import DurableRunRecord
from onetool.state.storage import State
from onetool.util.redact import Redactor


@dataclass(frozen=True, slots=True)
class Parts:
    loaded: Loaded
    error: ConfigError | None
    cells: CellSource
    runner: Runner
    redact: Redactor
    state: State
    results: StoredResults
    media: Media
    audit: AuditLog
    net: Net
    projects: dict[str, str]

    def is_revoked(self, run: DurableRunRecord) -> bool:
        """Return whether the token or sign-in that started a run is no longer accepted."""
        auth = self.loaded.settings.auth
        return is_revoked(run, self.state.tokens.apply(auth.tokens), auth.issuers)

    def retire(self, successor: "Parts") -> Iterator[Awaitable[object]]:
        """Yield the cleanup of parts that the successor does not share. Current runs finish in their cells."""
        if successor.cells is not self.cells:
            yield self.cells.retire()
        if successor.state is not self.state:
            yield run_in_thread(self.state.close)
        if successor.audit is not self.audit:
            yield run_in_thread(self.audit.close)
        if successor.net is not self.net:
            yield self.net.close()


def make_parts(
    loaded: Loaded,
    error: ConfigError | None,
    old: Parts | None,
    changes: Changes,
    bus: ToolBus,
    *,
    log: Log,
    make_cells: Callable[..., CellSource],
    own_ports: Callable[[], set[int]],
) -> Parts:
    """Create what these settings need, reusing what is unchanged.

    Tools must not send requests to `own_ports`.
    """
    settings, directories = loaded.settings, loaded.directories
    keys = (settings.llm.api_key, *(issuer.client_secret for issuer in settings.auth.issuers))
    redact = Redactor({*loaded.secret_values, *filter(None, keys)})
    state = _open_state(loaded, old, changes)
    results = state.results(settings.output)
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
    return Parts(
        loaded=loaded,
        error=error,
        cells=cells,
        runner=Runner(
            *(bus, cells, settings, Presenter(settings.output, results, redact)),
            projects=projects,
            saved_snippets=state.snippets,
        ),
        redact=redact,
        state=state,
        results=results,
        media=state.media(settings.output),
        audit=_open_audit(loaded, state, redact, old),
        net=net,
        projects=projects,
    )


def _open_state(loaded: Loaded, old: Parts | None, changes: Changes) -> State:
    is_same = (
        old is not None
        and old.loaded.settings.store == loaded.settings.store
        and old.loaded.directories.data == loaded.directories.data
    )
    if old is not None and is_same:
        state = old.state
    else:
        state = open_state(loaded, changes)
        state.start()
    state.recorder.configure(loaded.settings.stats, loaded.settings.runs)
    return state


def _open_audit(loaded: Loaded, state: State, redact: Redactor, old: Parts | None) -> AuditLog:
    if old is None or old.state is not state or old.loaded.audit_file != loaded.audit_file:
        audit = open_audit_log(loaded, state)
        if old is not None:
            audit.on_record = old.audit.on_record
    else:
        audit = old.audit
    settings = loaded.settings.audit
    audit.configure(redact, settings.max_bytes, settings.keep)
    return audit
