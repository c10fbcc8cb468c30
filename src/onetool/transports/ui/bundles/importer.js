/** Imports dropped or selected files (OpenAPI documents and ZIP files) as bundles and shows the remaining steps. */
import { h } from "../core/h.js";
import { labeled, openModal, notify, primaryButton, quietButton } from "../core/components.js";
import { navigate } from "../core/router.js";
import { t } from "../core/i18n.js";
import { importDocument } from "./bundle-api.js";

export async function importFiles(files) {
  for (const file of files) await importFile(file);
}

async function importFile(file, query = {}) {
  notify(t("import.reading", { name: file.name }));
  try {
    showImported(file, await importDocument(file, query));
  } catch (error) {
    if (error.code === "slug_taken") askForName(file, error, query);
    else if (error.details.needs === "server" && !query.server) askForServer(file, error, query);
    else openModal(t("import.failed", { name: file.name }), h("p.pre", {}, error.message), []);
  }
}

function showImported(file, { bundle, toolCount, hosts, secrets, problems }) {
  navigate("bundles", bundle.id);
  notify(t("import.done", { n: toolCount, name: bundle.slug }));
  const list = (key, items) =>
    items.length
      ? h(
          "section",
          {},
          h("h3", {}, t(key)),
          h(
            "ul.todo",
            {},
            items.map((item) => h("li", {}, h("code", {}, item))),
          ),
        )
      : null;
  const steps = [
    list("import.hosts", hosts),
    list("import.secrets", secrets),
    list("import.problems", problems),
  ].filter(Boolean);
  if (steps.length) openModal(t("import.next", { name: file.name }), h("div.stack", {}, steps), []);
}

const askForName = (file, error, query) =>
  askAndRetry(file, error, query, "name", t("bundle.slug"), error.details.suggestion ?? "");
const askForServer = (file, error, query) => askAndRetry(file, error, query, "server", t("import.server"), "https://");

function askAndRetry(file, error, query, name, label, suggestion) {
  const input = h("input", { value: suggestion, spellcheck: "false" });
  const submit = (event) => {
    event?.preventDefault();
    dialog.close();
    importFile(file, { ...query, [name]: input.value });
  };
  const dialog = openModal(
    t("import.title", { name: file.name }),
    h("form.stack", { onsubmit: submit }, h("p.pre", {}, error.message), labeled(label, input)),
    [quietButton(t("cancel"), () => dialog.close()), primaryButton(t("bundles.import"), submit)],
  );
}
