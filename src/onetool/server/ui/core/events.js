/** Parses a stream of server-sent events read with fetch, which, unlike EventSource, can send a token. */

export async function* parseEvents(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  let scanned = 0;
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      text += value.replaceAll("\r", "");
      for (let end = text.indexOf("\n\n", scanned); end >= 0; end = text.indexOf("\n\n", scanned)) {
        const event = parseEvent(text.slice(0, end));
        text = text.slice(end + 2);
        scanned = 0;
        if (event) yield event;
      }
      scanned = Math.max(0, text.length - 1);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parseEvent(block) {
  let name = "message";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
  }
  return data.length ? { name, data: JSON.parse(data.join("\n")) } : null;
}
