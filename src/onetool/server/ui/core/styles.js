/** Loads a style sheet that only one screen needs. */

export function loadStyles(name) {
  const { href } = new URL(`../styles/${name}.css`, import.meta.url);
  if (document.querySelector(`link[href="${href}"]`)) return Promise.resolve();
  const link = document.createElement("link");
  Object.assign(link, { rel: "stylesheet", href });
  return new Promise((resolve) => {
    link.onload = link.onerror = resolve;
    document.head.append(link);
  });
}
