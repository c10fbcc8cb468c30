/** Tester of a tool: a form, progress and the result, the same call as code, and the history of calls. */
import { encodePath, ApiError, stream } from "../core/api.js";
import { fill, h } from "../core/h.js";
import { button, primaryButton, tabs } from "../core/components.js";
import { t } from "../core/i18n.js";
import { formatDuration } from "../core/text.js";
import { form } from "../form/form.js";
import { resultView } from "../result/view.js";
import { errorView } from "../result/error-view.js";
import { addToHistory, callHistory } from "./history.js";
import { snippets } from "./snippets.js";

class Tester extends HTMLElement {
  #aborter = null;

  configure(tool) {
    this.tool = tool;
    this.form = form(tool.inputSchema, { onChange: () => this.#onChange() });
    this.runButton = primaryButton(t("tester.run"), () => this.run(), { class: "primary run" });
    this.cancelButton = button(t("tester.cancel"), () => this.#aborter?.abort(), { hidden: true });
    this.progress = h("p.progress", { role: "status" });
    this.output = h("div.output");
    this.code = snippets(tool, () => this.form.value);
    this.history = callHistory(tool.name, (args) => (this.form.value = args));
    this.addEventListener(
      "keydown",
      (event) => (event.ctrlKey || event.metaKey) && event.key === "Enter" && (event.preventDefault(), this.run()),
    );
    this.append(
      this.form,
      h(
        "div.bar",
        {},
        this.runButton,
        this.cancelButton,
        h("kbd", { title: t("tester.key") }, "Ctrl ⏎"),
        this.progress,
      ),
      this.output,
      tabs(t("tester.more"), [
        { id: "code", label: t("tester.code"), panel: this.code },
        { id: "history", label: t("tester.history"), panel: this.history },
      ]),
    );
    return this;
  }

  disconnectedCallback() {
    this.#aborter?.abort();
  }

  async run() {
    if (this.#aborter || !this.form.check()) return;
    const args = this.form.value;
    const aborter = (this.#aborter = new AbortController());
    this.#setRunning(true);
    const startedAt = performance.now();
    const elapsed = () => performance.now() - startedAt;
    try {
      const outcome = await this.#call(args, aborter.signal);
      this.#setRunning(false, elapsed());
      this.#show(args, outcome, elapsed());
    } catch (error) {
      this.#setRunning(false, elapsed());
      this.#showError(args, error, elapsed());
    } finally {
      this.#aborter = null;
    }
  }

  async #call(args, signal) {
    for await (const { name, data } of stream("POST", `/api/tools${encodePath(this.tool.name)}/call`, {
      body: { args },
      signal,
    })) {
      if (name === "progress") fill(this.progress, data.message ?? "");
      if (name === "refused") throw new ApiError(0, data.error);
      if (name === "result") return data;
    }
    throw new Error(t("error.unfinished"));
  }

  #show(args, outcome, ms) {
    fill(this.output, outcome.ok ? resultView(outcome.value) : errorView(outcome.error, ms));
    this.#record(args, outcome.ok ? "ok" : outcome.error.type, ms);
  }

  #showError(args, error, ms) {
    if (error.name === "AbortError") {
      fill(
        this.output,
        h("p.outcome", { data: { tone: "quiet" } }, t("tester.cancelled", { time: formatDuration(ms) })),
      );
      return this.#record(args, "cancelled", ms);
    }
    fill(this.output, errorView({ type: error.code ?? "error", message: error.message }, ms));
    if (error.code === "invalid") this.#showProblem(error.details);
    this.#record(args, error.code ?? "error", ms);
  }

  /** Show the problem of an argument beside its field. */
  #showProblem({ path = [], reason }) {
    if (path.length && Object.hasOwn(this.tool.inputSchema.properties ?? {}, path[0]))
      this.form.showProblem(path, reason);
  }

  #record(args, outcome, ms) {
    addToHistory(this.tool.name, { args, outcome, ms, at: Date.now() });
    this.history.refresh();
  }

  #setRunning(isRunning, ms) {
    this.runButton.disabled = isRunning;
    this.runButton.classList.toggle("busy", isRunning);
    this.cancelButton.hidden = !isRunning;
    fill(this.progress, isRunning ? t("tester.running") : t("tester.completed", { time: formatDuration(ms) }));
  }

  #onChange() {
    this.code?.refresh();
  }
}

customElements.define("ot-tester", Tester);
export const tester = (tool) => document.createElement("ot-tester").configure(tool);
