/** Screen "Run": run Python code, with live output and the result. */
import { ApiError, stream } from "../core/api.js";
import { fill, h } from "../core/h.js";
import { button, primaryButton } from "../core/components.js";
import { link } from "../core/router.js";
import { t } from "../core/i18n.js";
import { tabStorage } from "../core/state.js";
import { loadStyles } from "../core/styles.js";
import { truncate, formatDuration, formatTime, escapeInvisible } from "../core/text.js";
import { longText } from "../result/long-text.js";
import { findMedia, mediaView } from "../result/media.js";
import { resultView } from "../result/view.js";
import { editor } from "./editor.js";
import { isStoredResult, storedResult } from "./stored-result.js";

await loadStyles("run");
const EXAMPLE = 'ot.tools(info="min")';
const MAX_LIVE_CHARS = 200_000; // of output during the run; the result has all of it
const MAX_HISTORY = 20;

class RunScreen extends HTMLElement {
  #aborter = null;

  connectedCallback() {
    this.className = "page";
    this.editor = editor({
      label: t("run.code"),
      value: tabStorage.read("code", EXAMPLE),
      run: () => this.#run(),
      onChange: (code) => tabStorage.write("code", code.slice(0, 200_000)),
    });
    this.runButton = primaryButton(t("tester.run"), () => this.#run(), { class: "primary run" });
    this.cancelButton = button(t("tester.cancel"), () => this.#aborter?.abort(), { hidden: true });
    this.progress = h("p.progress", { role: "status" });
    this.output = h("section.run-output", { "aria-label": t("run.output") });
    this.history = h("details.history");
    this.append(
      h(
        "div.inner",
        {},
        h("h1.visually-hidden", {}, t("screen.run")),
        this.editor,
        h(
          "div.bar",
          {},
          this.runButton,
          this.cancelButton,
          h("kbd", { title: t("tester.key") }, "Ctrl ⏎"),
          this.progress,
        ),
        this.output,
        this.history,
      ),
    );
    this.#showHistory();
  }

  disconnectedCallback() {
    this.#aborter?.abort();
  }

  show() {
    this.editor.area.focus();
  }

  async #run() {
    const command = this.editor.value;
    if (this.#aborter || !command.trim()) return;
    this.#aborter = new AbortController();
    this.#setRunning(true);
    this.editor.problem.clear();
    const live = h("pre.live", { tabindex: "0" });
    const calls = h("ol.live-calls");
    fill(this.output, live, calls);
    const startedAt = performance.now();
    try {
      const result = await this.#stream(command, live, calls);
      fill(this.output, renderAnswer(result, performance.now() - startedAt));
      if (result.line) this.editor.problem.show(result.line, result.blocks.at(-1).split("\n")[0]);
    } catch (error) {
      const text =
        error.name === "AbortError"
          ? t("tester.cancelled", { time: formatDuration(performance.now() - startedAt) })
          : error.message;
      this.output.append(h("p.outcome", { data: { tone: error.name === "AbortError" ? "quiet" : "bad" } }, text));
    } finally {
      this.#aborter = null;
      this.#setRunning(false, performance.now() - startedAt);
      this.#addToHistory(command);
    }
  }

  async #stream(command, live, calls) {
    let received = 0;
    for await (const { name, data } of stream("POST", "/api/run", {
      body: { command },
      signal: this.#aborter.signal,
    })) {
      if (name === "output" && received < MAX_LIVE_CHARS) {
        received += data.text.length;
        live.append(document.createTextNode(escapeInvisible(data.text.slice(0, MAX_LIVE_CHARS))));
        live.scrollTop = live.scrollHeight;
      } else if (name === "call") this.#showCall(calls, data);
      else if (name === "progress") fill(this.progress, data.message ?? "");
      else if (name === "refused") throw new ApiError(0, data.error);
      else if (name === "result") return data;
    }
    throw new Error(t("error.unfinished"));
  }

  #showCall(calls, { state, number, name, error }) {
    if (state !== "began")
      return calls.querySelector(`[data-number="${number}"]`)?.setAttribute("data-tone", error ? "bad" : "good");
    if (calls.childElementCount < 50) calls.append(h("li", { data: { number } }, truncate(name, 200)));
    fill(this.progress, truncate(name, 200));
  }

  #setRunning(isRunning, ms) {
    this.runButton.disabled = isRunning;
    this.runButton.classList.toggle("busy", isRunning);
    this.cancelButton.hidden = !isRunning;
    fill(this.progress, isRunning ? t("tester.running") : t("tester.completed", { time: formatDuration(ms) }));
  }

  #addToHistory(command) {
    if (command.length > 20_000) return;
    const entries = tabStorage.read("runs", []).filter((entry) => entry.command !== command);
    tabStorage.write("runs", [{ command, at: Date.now() }, ...entries].slice(0, MAX_HISTORY));
    this.#showHistory();
  }

  #showHistory() {
    const entries = tabStorage.read("runs", []);
    this.history.hidden = !entries.length;
    fill(
      this.history,
      h("summary", {}, t("run.history")),
      h(
        "ul.calls",
        {},
        entries.map(({ command, at }) =>
          h(
            "li",
            {},
            h("time", { datetime: new Date(at).toISOString() }, formatTime(at)),
            h("code", {}, truncate(command, 200)),
            button(t("history.reuse"), () => (this.editor.value = command), { class: "quiet" }),
          ),
        ),
      ),
    );
  }
}

function renderAnswer({ blocks, isError, error, media, runID }, ms) {
  const last = blocks.length - 1;
  return [
    h(
      "div.bar.outcome-bar",
      {},
      h("span", { data: { tone: isError ? "bad" : "good" } }, isError ? (error ?? t("run.failed")) : t("run.done")),
      h("span.time", {}, formatDuration(ms)),
      runID ? h("a", { href: link("runs", runID) }, t("run.timeline")) : null,
    ),
    ...findMedia(media.map(({ mimeType, data }) => ({ mimeType, data }))).map(mediaView),
    ...blocks.map((text, index) =>
      isError && index === last
        ? h("pre.outcome", { data: { tone: "bad" }, tabindex: "0" }, truncate(text, 20_000))
        : renderBlock(text),
    ),
  ];
}

function renderBlock(text) {
  const value = parseJson(text);
  if (isStoredResult(value)) return storedResult(value);
  return value !== null && typeof value === "object" ? resultView(value) : h("div.result", {}, longText(text));
}

function parseJson(text) {
  if (!/^\s*[[{]/.test(text)) return null;
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

customElements.define("ot-run", RunScreen);
