/** Renders lists whose entries keep their elements until they change, with the focus and everything that is open. */

/** Return a function that returns the elements for a list of entries. `getKey(entry)` identifies an entry. */
export function keyedList(getKey, render) {
  let known = new Map();
  return (entries) => {
    const next = new Map();
    for (const entry of entries) {
      let key = getKey(entry);
      while (next.has(key)) key += "'";
      const text = JSON.stringify(entry);
      next.set(key, known.get(key)?.text === text ? known.get(key) : { text, element: render(entry) });
      next.get(key).element.dataset.key = key;
    }
    known = next;
    return [...next.values()].map(({ element }) => element);
  };
}
