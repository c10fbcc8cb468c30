/** The last runs and what becomes of them, kept up to date by the server's stream for as long as somebody looks. */
import { get, path, stream, Unreachable } from "../core/api.js";
import { whenBack } from "../core/loading.js";

const PAUSE = 120; // between two looks, however much happens
const AGAIN = 2000;
const MOST = 200;

export class Happening {
  runs = new Map();
  missed = 0;
  #aborter = new AbortController();
  #timer = 0;
  #dirty = new Set();

  /** `changed(ids)` is told which runs look different now; `element` is who looks. */
  constructor(element, changed) {
    Object.assign(this, { element, changed });
    this.#watch();
  }

  end() {
    this.#aborter.abort();
    clearTimeout(this.#timer);
  }

  /** A run with all its calls. */
  async whole(id) {
    const { calls, ...run } = await get(`/api/runs${path(id)}`);
    this.runs.set(id, line(run));
    return { ...run, calls };
  }

  async #watch() {
    try {
      for await (const { name, data } of stream("GET", "/api/activity", { signal: this.#aborter.signal })) {
        if (name === "start") this.#begin(data.runs);
        else if (name === "missed") this.missed += data.count;
        else this.#note(data);
      }
      throw new Unreachable();
    } catch (error) {
      if (this.#aborter.signal.aborted) return;
      if (error instanceof Unreachable && error.message) whenBack(this.element, () => this.#watch());
      else setTimeout(() => this.#aborter.signal.aborted || this.#watch(), AGAIN);
    }
  }

  #begin(runs) {
    this.runs = new Map(runs.reverse().map((run) => [run.id, line(run)]));
    this.changed(new Set(this.runs.keys()));
  }

  #note({ event, runID, kind, agent, name, command, durationMs, error }) {
    const run = this.runs.get(runID) ?? this.#add({ id: runID, agent, kind, name, command });
    if (kind === "call" && event === "called") run.count += 1;
    if (event !== "called" && kind === run.kind) Object.assign(run, { durationMs, error, state: event });
    this.#dirty.add(runID);
    this.#timer ||= setTimeout(() => this.#tell(), PAUSE);
  }

  #add(run) {
    this.runs.set(
      run.id,
      line({
        ...run,
        callCount: 0,
        state: "running",
        startedAt: new Date().toISOString(),
        durationMs: null,
        error: null,
      }),
    );
    if (this.runs.size > MOST) this.runs.delete(this.runs.keys().next().value);
    return this.runs.get(run.id);
  }

  #tell() {
    this.#timer = 0;
    const ids = this.#dirty;
    this.#dirty = new Set();
    this.changed(ids);
  }
}

const line = ({ command, name, callCount, ...run }) => ({ ...run, count: callCount, label: command || name });
