// What html.py and columns.py packed: JSON in which arrays are numbers of blocks → the payload.

/** Base64 → bytes. */
function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

async function inflated(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Planes of floating-point numbers → the numbers. */
function floats(planes, note) {
  const width = note.planes;
  const bytes = new Uint8Array(note.count * width);
  for (let plane = 0; plane < width; plane++) {
    const from = plane * note.count;
    for (let i = 0; i < note.count; i++) bytes[i * width + plane] = planes[from + i];
  }
  return note.type === "f4" ? new Float32Array(bytes.buffer) : new Float64Array(bytes.buffer);
}

/** Planes of folded whole numbers → the numbers, but for what `delta` says. */
function integers(planes, note) {
  const { count, type, signed } = note;
  // Doubles hold whole numbers up to 2^53 ps, which is two and a half hours, to the last digit.
  const values = new Float64Array(count);
  let weight = 1;
  for (let plane = 0; plane < note.planes; plane++, weight *= 256) {
    const from = plane * count;
    for (let i = 0; i < count; i++) values[i] += planes[from + i] * weight;
  }
  if (signed) {
    for (let i = 0; i < count; i++) {
      const value = values[i];
      values[i] = value % 2 ? -(value + 1) / 2 : value / 2;
    }
  }
  if (note.delta === "before") for (let i = 1; i < count; i++) values[i] += values[i - 1];
  return type === "i4" && note.delta !== "after" ? Int32Array.from(values) : values;
}

/** The payload, with typed arrays for columns. `early` gets it before they are unpacked. */
async function readPayload(early) {
  const payload = JSON.parse(document.getElementById("payload").textContent);
  early(payload);
  const blocks = document.querySelectorAll("script[data-column]");
  const waiting = [];
  const unpack = async (holder, key, note) => {
    const block = blocks[note.$column];
    const planes = await inflated(bytesOf(block.textContent));
    block.remove(); // half of the page's memory
    holder[key] = note.type[0] === "f" ? floats(planes, note) : integers(planes, note);
  };
  const begins = [];
  const visit = (holder) => {
    for (const [key, value] of Object.entries(holder)) {
      if (value === null || typeof value !== "object") continue;
      if ("$column" in value) {
        waiting.push(unpack(holder, key, value));
        if (value.delta === "after") begins.push(holder);
      } else if (!Array.isArray(value) || typeof value[0] === "object") visit(value);
    }
  };
  visit(payload);
  await Promise.all(waiting);
  for (const rows of begins) {
    const { begin, duration } = rows;
    for (let i = 1; i < begin.length; i++) begin[i] += begin[i - 1] + duration[i - 1];
  }
  return payload;
}
