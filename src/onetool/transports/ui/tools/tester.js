/** The live tester: a form, a button, progress, and the result; the same call in other languages; what was called
 * before. */
import { path, Refused, stream } from "../core/api.js";
import { fill, h } from "../core/h.js";
import { button, primary, tabs } from "../core/parts.js";
import { say } from "../core/say.js";
import { duration } from "../core/text.js";
import { form } from "../form/form.js";
import { resultView } from "../result/view.js";
import { wrong } from "../result/wrong.js";
import { historyOf, remember } from "./history.js";
import { snippets } from "./snippets.js";

class Tester extends HTMLElement {
  #aborter = null;

  use(tool) {
    this.tool = tool;
    this.form = form(tool.inputSchema, { changed: () => this.#changed() });
    this.runButton = primary(say("tester.run"), () => this.run(), { class: "primary run" });
    this.cancelButton = button(say("tester.cancel"), () => this.#aborter?.abort(), { hidden: true });
    this.progress = h("p.progress", { role: "status" });
    this.output = h("div.output");
    this.code = snippets(tool, () => this.form.value);
    this.past = historyOf(tool.name, (args) => (this.form.value = args));
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
        h("kbd", { title: say("tester.key") }, "Ctrl ⏎"),
        this.progress,
      ),
      this.output,
      tabs(say("tester.more"), [
        { id: "code", label: say("tester.code"), panel: this.code },
        { id: "history", label: say("tester.history"), panel: this.past },
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
    this.#running(true);
    const began = performance.now();
    const took = () => performance.now() - began;
    try {
      const outcome = await this.#outcome(args, aborter.signal);
      this.#running(false, took());
      this.#show(args, outcome, took());
    } catch (error) {
      this.#running(false, took());
      this.#failed(args, error, took());
    } finally {
      this.#aborter = null;
    }
  }

  async #outcome(args, signal) {
    for await (const { name, data } of stream("POST", `/api/tools${path(this.tool.name)}/call`, {
      body: { args },
      signal,
    })) {
      if (name === "progress") fill(this.progress, data.message ?? "");
      if (name === "refused") throw new Refused(0, data.error);
      if (name === "result") return data;
    }
    throw new Error(say("error.unfinished"));
  }

  #show(args, outcome, ms) {
    fill(this.output, outcome.ok ? resultView(outcome.value) : wrong(outcome.error, ms));
    this.#note(args, outcome.ok ? "ok" : outcome.error.type, ms);
  }

  #failed(args, error, ms) {
    if (error.name === "AbortError") {
      fill(this.output, h("p.outcome", { data: { mood: "quiet" } }, say("tester.cancelled", { time: duration(ms) })));
      return this.#note(args, "cancelled", ms);
    }
    fill(this.output, wrong({ type: error.code ?? "error", message: error.message }, ms));
    if (error.code === "invalid") this.#place(error.details);
    this.#note(args, error.code ?? "error", ms);
  }

  /** What is wrong with one argument belongs beside its field. */
  #place({ path = [], reason }) {
    if (path.length && Object.hasOwn(this.tool.inputSchema.properties ?? {}, path[0]))
      this.form.complain(path, reason);
  }

  #note(args, outcome, ms) {
    remember(this.tool.name, { args, outcome, ms, at: Date.now() });
    this.past.refresh();
  }

  #running(is, ms) {
    this.runButton.disabled = is;
    this.runButton.classList.toggle("busy", is);
    this.cancelButton.hidden = !is;
    fill(this.progress, is ? say("tester.running") : say("tester.ended", { time: duration(ms) }));
  }

  #changed() {
    this.code?.refresh();
  }
}

customElements.define("ot-tester", Tester);
export const tester = (tool) => document.createElement("ot-tester").use(tool);
