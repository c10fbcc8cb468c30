/** A value that tells when it changes, and memory of this browser. */

export function signal(value) {
  const listeners = new Set();
  return {
    get value() {
      return value;
    },
    set value(wanted) {
      if (wanted === value) return;
      value = wanted;
      for (const listener of [...listeners]) listener(value);
    },
    /** What comes back ends it. */
    listen(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}

/** Of this tab for as long as it is open: arguments and tokens are nothing to leave behind. */
export const ofThisTab = kept(() => sessionStorage);
/** Of this browser: taste only. */
export const ofThisBrowser = kept(() => localStorage);

/** Where a browser keeps nothing, it is known for as long as the page is open. */
function kept(storage) {
  const known = new Map();
  return {
    read(name, otherwise) {
      if (known.has(name)) return known.get(name);
      try {
        return JSON.parse(storage().getItem(`onetool.${name}`)) ?? otherwise;
      } catch {
        return otherwise;
      }
    },
    write(name, value) {
      known.set(name, value);
      try {
        storage().setItem(`onetool.${name}`, JSON.stringify(value));
      } catch {
        // no room, or not allowed: the page works without
      }
    },
  };
}
