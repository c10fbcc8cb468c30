/** Plots, drawn and not written: bars over time, and the share of each. */
import { draw, h } from "../core/h.js";
import { say } from "../core/say.js";
import { few } from "../core/text.js";

const WIDTH = 1000;
const HEIGHT = 170;
const LEFT = 44;
const BELOW = 20;

/** Calls over time, failed ones in their own colour. Its figures are in the table beside it too. */
export function bars({ start, widthSeconds, calls, errors }) {
  const most = Math.max(1, ...calls);
  const step = (WIDTH - LEFT) / calls.length;
  const at = (count) => (HEIGHT * count) / most;
  const drawn = calls.flatMap((count, place) => {
    if (!count) return [];
    const x = LEFT + place * step + step * 0.12;
    const title = draw(
      "title",
      {},
      say("plot.bar", { when: moment(start, widthSeconds, place), n: count, failed: errors[place] }),
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
          y: HEIGHT - at(count),
          height: Math.max(1.5, at(count)),
          rx: Math.min(2, width / 3),
        }),
        errors[place]
          ? draw("rect", {
              class: "errors",
              x,
              width,
              y: HEIGHT - Math.max(1.5, at(errors[place])),
              height: Math.max(1.5, at(errors[place])),
            })
          : null,
      ),
    ];
  });
  const lines = [...new Set([0, Math.round(most / 2), most])].map((count) => [
    draw("line", { class: "grid", x1: LEFT, x2: WIDTH, y1: HEIGHT - at(count), y2: HEIGHT - at(count) }),
    draw("text", { class: "axis", x: LEFT - 6, y: HEIGHT - at(count) + 4, "text-anchor": "end" }, few(count)),
  ]);
  const labels = [0, 0.25, 0.5, 0.75].map((part) => Math.floor(part * calls.length));
  const below = labels.map((place) =>
    draw("text", { class: "axis", x: LEFT + place * step, y: HEIGHT + 16 }, moment(start, widthSeconds, place)),
  );
  return h(
    "div.plot",
    { tabindex: "0", role: "group", "aria-label": say("stats.overTime") },
    draw(
      "svg",
      {
        viewBox: `0 -10 ${WIDTH} ${HEIGHT + BELOW + 12}`,
        role: "img",
        "aria-label": say("plot.calls", {
          n: calls.reduce((sum, count) => sum + count, 0),
          failed: errors.reduce((sum, count) => sum + count, 0),
        }),
      },
      lines,
      drawn,
      below,
    ),
  );
}

const hours = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const days = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });
const both = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit" });

function moment(start, widthSeconds, place) {
  const when = new Date(new Date(start).getTime() + place * widthSeconds * 1000);
  return (widthSeconds < 3 * 3600 ? hours : widthSeconds < 86_400 ? both : days).format(when);
}

/** A length for a figure in a table. */
export function share(value, most) {
  const bar = h("span.share", { "aria-hidden": "true" }, h("span"));
  bar.firstElementChild.style.width = `${most ? (100 * value) / most : 0}%`;
  return bar;
}
