/** Recent runs, updated from the server's event stream. */
import { get, encodePath, stream, NetworkError } from "../core/api.js";
import { whenOnline } from "../core/loading.js";

const UPDATE_INTERVAL_MS = 120;
const RETRY_MS = 2000;
const MAX_RUNS = 200;

export class RunFeed {
  runs = new Map();
  missed = 0;
  #aborter = new AbortController();
  #timer = 0;
  #dirty = new Set();

  /** `onChange(ids)` receives the ids of changed runs; `element` shows them. */
  constructor(element, onChange) {
    Object.assign(this, { element, onChange });
    this.#watch();
  }

  end() {
    this.#aborter.abort();
    clearTimeout(this.#timer);
  }

  /** Return a run with its calls. */
  async getRun(id) {
    const { calls, ...run } = await get(`/api/runs${encodePath(id)}`);
    this.runs.set(id, toRow(run));
    return { ...run, calls };
  }

  async #watch() {
    try {
      for await (const { name, data } of stream("GET", "/api/activity", { signal: this.#aborter.signal })) {
        if (name === "start") this.#start(data.runs);
        else if (name === "missed") this.missed += data.count;
        else this.#handleEvent(data);
      }
      throw new NetworkError();
    } catch (error) {
      if (this.#aborter.signal.aborted) return;
      if (error instanceof NetworkError && error.message) whenOnline(this.element, () => this.#watch());
      else setTimeout(() => this.#aborter.signal.aborted || this.#watch(), RETRY_MS);
    }
  }

  #start(runs) {
    this.runs = new Map(runs.reverse().map((run) => [run.id, toRow(run)]));
    this.onChange(new Set(this.runs.keys()));
  }

  #handleEvent({ event, runID, kind, agent, client, directory, name, command, durationMs, error }) {
    const run = this.runs.get(runID) ?? this.#add({ id: runID, agent, client, directory, kind, name, command });
    if (kind === "call" && event === "called") run.count += 1;
    if (event !== "called" && kind === run.kind) Object.assign(run, { durationMs, error, state: event });
    this.#dirty.add(runID);
    this.#timer ||= setTimeout(() => this.#flush(), UPDATE_INTERVAL_MS);
  }

  #add(run) {
    this.runs.set(
      run.id,
      toRow({
        ...run,
        callCount: 0,
        state: "running",
        startedAt: new Date().toISOString(),
        durationMs: null,
        error: null,
      }),
    );
    if (this.runs.size > MAX_RUNS) this.runs.delete(this.runs.keys().next().value);
    return this.runs.get(run.id);
  }

  #flush() {
    this.#timer = 0;
    const ids = this.#dirty;
    this.#dirty = new Set();
    this.onChange(ids);
  }
}

const toRow = ({ command, name, callCount, ...run }) => ({ ...run, count: callCount, label: command || name });
