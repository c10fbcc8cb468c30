/** Tester of a stored HTTP tool: its arguments, the request as it is sent, and the response. */
import { fill, h } from "../core/h.js";
import { primaryButton } from "../core/components.js";
import { t } from "../core/i18n.js";
import { formatDuration } from "../core/text.js";
import { form } from "../form/form.js";
import { errorView } from "../result/error-view.js";
import { resultView } from "../result/view.js";
import { invoke, previewRequest } from "./bundle-api.js";
import { requestView } from "./request-view.js";

export function toolTester(bundleId, stored) {
  const request = h("div.request-output");
  const output = h("div.output", { role: "status" });
  const fields = form(stored.argSchema);
  const call = async () => {
    if (!fields.check()) return;
    run.disabled = true;
    await showRequest(stored, fields.value, request);
    await showResponse(bundleId, stored, fields.value, output);
    run.disabled = false;
  };
  const run = primaryButton(t("tester.run"), call, { class: "primary run" });
  return h("div.stack", {}, fields, h("div.bar", {}, run), request, output);
}

async function showRequest({ httpImpl, argSchema }, args, element) {
  try {
    fill(element, requestView(await previewRequest({ httpImpl, argSchema, args })));
  } catch {
    fill(element); // the call reports what is wrong
  }
}

async function showResponse(bundleId, { slug, version }, args, element) {
  const startedAt = performance.now();
  const elapsed = () => performance.now() - startedAt;
  try {
    const { ok, value, error } = await invoke(bundleId, slug, version, args);
    fill(element, ok ? resultView(value, formatDuration(elapsed())) : errorView(error, elapsed()));
  } catch (error) {
    fill(element, errorView({ type: error.code ?? "error", message: error.message }, elapsed()));
  }
}
