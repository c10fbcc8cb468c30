/** One upstream server: its state, its tools, what it printed, changed tools, and what a person can do with it. */
import { encodePath, get, send } from "../core/api.js";
import { actionButton, button, confirmAction, definitionList, notify, toggle } from "../core/components.js";
import { h } from "../core/h.js";
import { t, tOr } from "../core/i18n.js";
import { load } from "../core/loading.js";
import { difference } from "../settings/difference.js";
import { CONFLICT, reviewChange, sendChange } from "../settings/review.js";
import { openEditDialog } from "./edit-dialog.js";
import { renderSignIn } from "./sign-ins.js";

const STATE_TONES = { connected: "good", disconnected: "bad", sign_in_required: "bad" };

/** Render a server. `reload` loads the screen again. */
export function renderServer(server, signIns, reload) {
  const { name } = server;
  return h(
    "article.card.stack",
    { "aria-label": name },
    h(
      "div.bar",
      {},
      h("h2", {}, name),
      h(
        "span.badge",
        { data: { tone: STATE_TONES[server.state] ?? "" } },
        tOr(`servers.state.${server.state}`, server.state),
      ),
      enableSwitch(server, reload),
    ),
    definitionList([
      [t("servers.kind"), t(`servers.kind.${server.kind}`)],
      [t("servers.where"), server.entry.values.url ?? formatCommand(server.entry.values)],
      [
        t("servers.tools"),
        server.toolCount === null ? t("servers.tools.unknown") : t("tools.count", { n: server.toolCount }),
      ],
      [t("servers.problem"), server.problem && h("span.pre", {}, server.problem)],
      [t("servers.file"), server.entry.etag ? server.entry.file : null],
    ]),
    signIns.map((one) => renderSignIn(one, reload)),
    server.changes.length ? renderChanges(server, reload) : null,
    h("div.actions", {}, renderActions(server, reload)),
    renderDetails(server),
  );
}

const formatCommand = ({ command, args = [] }) => command && [command, ...args].join(" ");

function enableSwitch(server, reload) {
  const label = t("servers.switch", { name: server.name });
  const change = async (isOn) => {
    const body = { settings: { enabled: isOn ? null : false } };
    await sendChange({
      method: "PATCH",
      path: `/api/servers${encodePath(server.name)}`,
      body,
      etag: server.entry.etag,
    });
    notify(t(isOn ? "notice.enabled" : "notice.disabled", { name: server.name }));
    await reload();
  };
  return toggle(label, server.isEnabled, change);
}

function renderActions(server, reload) {
  const { name } = server;
  const action = server.state === "connected" ? "stop" : "start";
  const run = async () => {
    await send("POST", `/api/servers${encodePath(name, action)}`);
    await reload();
  };
  const label = t(`servers.${action}.label`, { name });
  const remove = { class: "quiet", "aria-label": t("servers.remove.label", { name }) };
  return [
    server.isEnabled
      ? actionButton(t(`servers.${action}`), run, { "aria-label": label, data: { key: "start or stop" } })
      : null,
    server.entry.etag
      ? button(t("servers.edit"), () => openEditDialog(server, reload), {
          "aria-label": t("servers.edit.label", { name }),
        })
      : null,
    server.entry.etag ? actionButton(t("servers.remove"), () => removeServer(server, reload), remove) : null,
  ];
}

async function removeServer(server, reload) {
  const path = `/api/servers${encodePath(server.name)}`;
  try {
    const title = t("servers.remove.title", { name: server.name });
    if (!(await reviewChange(title, { method: "DELETE", path, etag: server.entry.etag }))) return;
    notify(t("servers.removed", { name: server.name }));
  } catch (error) {
    if (error.status !== CONFLICT) throw error;
    notify(t("servers.conflict", { name: server.name }), "bad");
  }
  await reload();
}

function renderChanges(server, reload) {
  const { name, changes } = server;
  const accept = async () => {
    const question = t("servers.accept.sure", { name, n: changes.length });
    if (!(await confirmAction(question, t("servers.accept")))) return;
    try {
      await send("POST", `/api/servers${encodePath(name)}/accept`, { digest: server.digest });
      notify(t("servers.accepted", { name }));
    } catch (error) {
      if (error.code !== "definitions_changed") throw error;
      notify(t("servers.accept.changed", { name }), "bad");
    }
    await reload();
  };
  return h(
    "section.changes.stack",
    { "aria-label": t("servers.changes.of", { name }) },
    h("h3", {}, t("servers.changes", { n: changes.length })),
    h("p.hint", {}, t(server.pin === "strict" ? "servers.changes.strict" : "servers.changes.warn")),
    changes.map((change) => [
      h("h4", {}, `${change.tool} · ${t(`servers.change.${change.kind}`)}`),
      difference(change.difference),
    ]),
    h(
      "div.actions",
      {},
      actionButton(t("servers.accept"), accept, {
        class: "primary",
        "aria-label": t("servers.accept.label", { name }),
      }),
    ),
  );
}

function renderDetails(server) {
  const content = h("div.stack");
  const fetchDetails = () =>
    load(content, async () => {
      const details = await get(`/api/servers${encodePath(server.name)}`);
      return [
        h("h3", {}, t("servers.tools")),
        details.tools.length
          ? h(
              "ul.tool-list",
              {},
              details.tools.map((tool) =>
                h(
                  "li",
                  {},
                  h("code", {}, tool.name),
                  tool.isRejected ? h("span.badge", { data: { tone: "bad" } }, t("servers.rejected")) : null,
                  " ",
                  h("span.hint", {}, tool.description),
                ),
              ),
            )
          : h("p.hint", {}, t("servers.tools.none")),
        h("h3", {}, t("servers.output")),
        details.output ? h("pre.output", { tabindex: "0" }, details.output) : h("p.hint", {}, t("servers.output.none")),
      ];
    });
  const label = t("servers.details.label", { name: server.name });
  const element = h("details", {}, h("summary", { "aria-label": label }, t("servers.details")), content);
  element.addEventListener("toggle", () => element.open && fetchDetails());
  return element;
}
