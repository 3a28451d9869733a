// Readings as a Parquet file (parquet.apache.org/docs/file-format): one row group, one plain page for
// each column, metadata in Thrift's compact protocol.

const THRIFT = { i32: 5, i64: 6, binary: 8, list: 9, struct: 12 };
const PHYSICAL = { boolean: 0, int64: 2, double: 5, binary: 6 };
const UTF8 = 0;
const TIMESTAMP_MICROS = 10;

/// A number in groups of seven bits, the lowest first.
function varint(number) {
  const bytes = [];
  for (; number >= 128; number = Math.floor(number / 128)) bytes.push((number % 128) | 128);
  return [...bytes, number];
}

/// A value of a type of Thrift. A list is its type and its items, a struct its fields.
function thrift(type, value) {
  if (type === "binary") {
    const bytes = new TextEncoder().encode(value);
    return [...varint(bytes.length), ...bytes];
  }
  if (type === "list") {
    const [of, items] = value;
    const head = items.length < 15 ? [(items.length << 4) | THRIFT[of]] : [0xf0 | THRIFT[of], ...varint(items.length)];
    return [...head, ...items.flatMap((item) => thrift(of, item))];
  }
  if (type !== "struct") return varint(2 * value);
  let last = 0;
  const fields = value.filter((field) => field !== null).flatMap(([id, of, content]) => {
    const head = ((id - last) << 4) | THRIFT[of];
    last = id;
    return [head, ...thrift(of, content)];
  });
  return [...fields, 0];
}

/// Bits, eight in a byte, the first one lowest.
function packed(bits) {
  const bytes = new Array(Math.ceil(bits.length / 8)).fill(0);
  bits.forEach((bit, at) => { if (bit) bytes[at >> 3] |= 1 << (at & 7); });
  return bytes;
}

/// The values of a column as a plain page has them; null takes no room.
function plainValues(kind, values) {
  const present = values.filter((value) => value !== null);
  if (kind === "boolean") return new Uint8Array(packed(present));
  if (kind === "binary") {
    const texts = present.map((text) => new TextEncoder().encode(text));
    const view = new DataView(new ArrayBuffer(texts.reduce((sum, text) => sum + 4 + text.length, 0)));
    let at = 0;
    for (const text of texts) {
      view.setUint32(at, text.length, true);
      new Uint8Array(view.buffer).set(text, at + 4);
      at += 4 + text.length;
    }
    return new Uint8Array(view.buffer);
  }
  const view = new DataView(new ArrayBuffer(8 * present.length));
  present.forEach((value, at) => {
    if (kind === "int64") view.setBigInt64(8 * at, BigInt(value), true); else view.setFloat64(8 * at, value, true);
  });
  return new Uint8Array(view.buffer);
}

/// Which values of an optional column are there: their number of bytes, and one run of bits.
function levels(values) {
  const bits = packed(values.map((value) => value !== null));
  const run = [...varint(2 * bits.length + 1), ...bits];
  return [run.length, 0, 0, 0].map((_, at) => (run.length >> (8 * at)) & 255).concat(run);
}

/// A file of columns, each with a name, a kind, whether it may be null, what it means, and its values.
function parquetFile(columns, metadata) {
  const rows = columns[0].values.length;
  const parts = [new TextEncoder().encode("PAR1")];
  let at = 4;
  const chunks = columns.map(({ name, kind, isOptional, values }) => {
    const body = [new Uint8Array(isOptional ? levels(values) : []), plainValues(kind, values)];
    const size = body[0].length + body[1].length;
    const page = [[1, "i32", rows], [2, "i32", 0], [3, "i32", 3], [4, "i32", 3]];
    const head = new Uint8Array(thrift("struct", [[1, "i32", 0], [2, "i32", size], [3, "i32", size], [5, "struct", page]]));
    const [start, length] = [at, head.length + size];
    parts.push(head, ...body);
    at += length;
    return [[2, "i64", start], [3, "struct", [
      [1, "i32", PHYSICAL[kind]], [2, "list", ["i32", [0, 3]]], [3, "list", ["binary", [name]]], [4, "i32", 0],
      [5, "i64", rows], [6, "i64", length], [7, "i64", length], [9, "i64", start]]]];
  });
  const leaves = columns.map(({ name, kind, isOptional, meaning }) => [
    [1, "i32", PHYSICAL[kind]], [3, "i32", isOptional ? 1 : 0], [4, "binary", name], meaning === undefined ? null : [6, "i32", meaning]]);
  const schema = [[[4, "binary", "readings"], [5, "i32", columns.length]], ...leaves];
  const footer = new Uint8Array(thrift("struct", [
    [1, "i32", 1], [2, "list", ["struct", schema]], [3, "i64", rows],
    [4, "list", ["struct", [[[1, "list", ["struct", chunks]], [2, "i64", at - 4], [3, "i64", rows]]]]],
    [5, "list", ["struct", [[[1, "binary", "hushflow"], [2, "binary", metadata]]]]], [6, "binary", "hushflow"]]));
  const end = new DataView(new ArrayBuffer(4));
  end.setUint32(0, footer.length, true);
  return new Blob([...parts, footer, end.buffer, "PAR1"], { type: "application/vnd.apache.parquet" });
}

/// What a place shows as a Parquet file, with the guarantee in its metadata.
function parquetOf(shown) {
  const rows = rowsOf(shown);
  const column = (name, kind, isOptional, meaning, value = (row) => row[name]) =>
    ({ name, kind, isOptional, meaning, values: rows.map((row) => value(row) ?? null) });
  const text = (name) => column(name, "binary", false, UTF8, (row) => row[name] ?? "");
  const number = (name) => column(name, "double", true, undefined, (row) => (isNumber(row[name]) ? row[name] : null));
  const columns = [
    column("epoch", "int64", false),
    ...(about.start === null ? [] : [column("start", "int64", false, TIMESTAMP_MICROS, (row) => microsOf(row.epoch))]),
    text("key"), text("statistic"), text("of"), number("value"), number("lower"), number("upper"),
    column("clear", "boolean", false),
  ];
  return parquetFile(columns, JSON.stringify(metadataOf(shown)));
}

/// Microseconds since 1970 at which an epoch begins.
function microsOf(epoch) {
  const { first, start, length } = runOf(epoch);
  return start + length * (epoch - first);
}
