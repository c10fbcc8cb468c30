/** Observable values, and storage of this tab and this browser. */

export function signal(value) {
  const listeners = new Set();
  return {
    get value() {
      return value;
    },
    set value(next) {
      if (next === value) return;
      value = next;
      for (const listener of [...listeners]) listener(value);
    },
    /** Return a function that removes the listener. */
    listen(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}

/** For arguments and tokens: deleted when the tab is closed. */
export const tabStorage = createStorage(() => sessionStorage);
/** For preferences, and for what is worthless without a cookie. */
export const browserStorage = createStorage(() => localStorage);

/** Storage that falls back to memory if the browser blocks it. */
function createStorage(storage) {
  const values = new Map();
  return {
    read(name, fallback) {
      if (values.has(name)) return values.get(name);
      try {
        return JSON.parse(storage().getItem(`onetool.${name}`)) ?? fallback;
      } catch {
        return fallback;
      }
    },
    write(name, value) {
      values.set(name, value);
      try {
        storage().setItem(`onetool.${name}`, JSON.stringify(value));
      } catch {
        // full or blocked: the values are still in memory
      }
    },
  };
}
