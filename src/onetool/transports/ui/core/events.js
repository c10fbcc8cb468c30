/** An event stream as it is read with fetch, which can send a token and be cancelled. */

export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  let seen = 0;
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      text += value.replaceAll("\r", "");
      for (let end = text.indexOf("\n\n", seen); end >= 0; end = text.indexOf("\n\n", seen)) {
        const event = parsed(text.slice(0, end));
        text = text.slice(end + 2);
        seen = 0;
        if (event) yield event;
      }
      seen = Math.max(0, text.length - 1);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parsed(block) {
  let name = "message";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
  }
  return data.length ? { name, data: JSON.parse(data.join("\n")) } : null;
}
