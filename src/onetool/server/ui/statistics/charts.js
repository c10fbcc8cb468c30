/** Charts: calls over time, and bars in tables. */
import { draw, h } from "../core/h.js";
import { t } from "../core/i18n.js";
import { formatCompact } from "../core/text.js";

const WIDTH = 1000;
const HEIGHT = 170;
const AXIS_WIDTH = 44;
const AXIS_HEIGHT = 20;

/** A bar chart of calls over time, with failed calls in a different color. */
export function bars({ start, widthSeconds, calls, errors }) {
  const highest = Math.max(1, ...calls);
  const step = (WIDTH - AXIS_WIDTH) / calls.length;
  const scale = (count) => (HEIGHT * count) / highest;
  const columns = calls.flatMap((count, index) => {
    if (!count) return [];
    const x = AXIS_WIDTH + index * step + step * 0.12;
    const title = draw(
      "title",
      {},
      t("plot.bar", { when: formatStart(start, widthSeconds, index), n: count, failed: errors[index] }),
    );
    const width = Math.max(1, step * 0.76);
    return [
      draw(
        "g",
        {},
        title,
        draw("rect", {
          class: "calls",
          x,
          width,
          y: HEIGHT - scale(count),
          height: Math.max(1.5, scale(count)),
          rx: Math.min(2, width / 3),
        }),
        errors[index]
          ? draw("rect", {
              class: "errors",
              x,
              width,
              y: HEIGHT - Math.max(1.5, scale(errors[index])),
              height: Math.max(1.5, scale(errors[index])),
            })
          : null,
      ),
    ];
  });
  const lines = [...new Set([0, Math.round(highest / 2), highest])].map((count) => [
    draw("line", { class: "grid", x1: AXIS_WIDTH, x2: WIDTH, y1: HEIGHT - scale(count), y2: HEIGHT - scale(count) }),
    draw(
      "text",
      { class: "axis", x: AXIS_WIDTH - 6, y: HEIGHT - scale(count) + 4, "text-anchor": "end" },
      formatCompact(count),
    ),
  ]);
  const labelIndexes = [0, 0.25, 0.5, 0.75].map((fraction) => Math.floor(fraction * calls.length));
  const axisLabels = labelIndexes.map((index) =>
    draw(
      "text",
      { class: "axis", x: AXIS_WIDTH + index * step, y: HEIGHT + 16 },
      formatStart(start, widthSeconds, index),
    ),
  );
  return h(
    "div.plot",
    { tabindex: "0", role: "group", "aria-label": t("stats.overTime") },
    draw(
      "svg",
      {
        viewBox: `0 -10 ${WIDTH} ${HEIGHT + AXIS_HEIGHT + 12}`,
        role: "img",
        "aria-label": t("plot.calls", {
          n: calls.reduce((sum, count) => sum + count, 0),
          failed: errors.reduce((sum, count) => sum + count, 0),
        }),
      },
      lines,
      columns,
      axisLabels,
    ),
  );
}

const timeFormat = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const dateFormat = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });
const dateTimeFormat = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit" });

function formatStart(start, widthSeconds, index) {
  const when = new Date(new Date(start).getTime() + index * widthSeconds * 1000);
  return (widthSeconds < 3 * 3600 ? timeFormat : widthSeconds < 86_400 ? dateTimeFormat : dateFormat).format(when);
}

/** A bar for a number in a table. */
export function share(value, maximum) {
  const bar = h("span.share", { "aria-hidden": "true" }, h("span"));
  bar.firstElementChild.style.width = `${maximum ? (100 * value) / maximum : 0}%`;
  return bar;
}
