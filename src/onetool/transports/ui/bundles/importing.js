/** Files that were dropped or chosen: OpenAPI documents and archives become bundles, and what is left to do is said. */
import { h } from "../core/h.js";
import { labelled, modal, notify, primary, quiet } from "../core/parts.js";
import { go } from "../core/router.js";
import { say } from "../core/say.js";
import { imported } from "./store.js";

export async function importFiles(files) {
  for (const file of files) await importFile(file);
}

async function importFile(file, query = {}) {
  notify(say("import.begun", { name: file.name }));
  try {
    told(file, await imported(file, query));
  } catch (error) {
    if (error.code === "slug_taken") askForName(file, error, query);
    else if (error.details.needs === "server" && !query.server)
      askForServer(file, error, query);
    else modal(say("import.failed", { name: file.name }), h("p.pre", {}, error.message), []);
  }
}

function told(file, { bundle, toolCount, hosts, secrets, problems }) {
  go("bundles", bundle.id);
  notify(say("import.done", { n: toolCount, name: bundle.slug }));
  const list = (word, items) =>
    items.length
      ? h(
          "section",
          {},
          h("h3", {}, say(word)),
          h(
            "ul.todo",
            {},
            items.map((item) => h("li", {}, h("code", {}, item))),
          ),
        )
      : null;
  const left = [list("import.hosts", hosts), list("import.secrets", secrets), list("import.problems", problems)].filter(
    Boolean,
  );
  if (left.length) modal(say("import.left", { name: file.name }), h("div.stack", {}, left), []);
}

const askForName = (file, error, query) =>
  again(file, error, query, "name", say("bundle.slug"), error.details.suggestion ?? "");
const askForServer = (file, error, query) => again(file, error, query, "server", say("import.server"), "https://");

function again(file, error, query, name, label, suggestion) {
  const input = h("input", { value: suggestion, spellcheck: "false" });
  const take = (event) => {
    event?.preventDefault();
    dialog.close();
    importFile(file, { ...query, [name]: input.value });
  };
  const dialog = modal(
    say("import.title", { name: file.name }),
    h("form.stack", { onsubmit: take }, h("p.pre", {}, error.message), labelled(label, input)),
    [quiet(say("cancel"), () => dialog.close()), primary(say("bundles.import"), take)],
  );
}
