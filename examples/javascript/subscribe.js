// Prints every record of a running service: camera, sequence number, tensors, and what is missing before it.
//
//   node subscribe.js [ENDPOINT] [CAMERA]

import { decode } from "@msgpack/msgpack";
import { Subscriber } from "zeromq";

const SCHEMA = 1;
const scratch = new DataView(new ArrayBuffer(4));
const formats = {
  "<f4": { bytes: 4, read: (view, at) => view.getFloat32(at, true) },
  "<f2": { bytes: 2, read: (view, at) => halfToFloat(view.getUint16(at, true)) },
  bf16: { bytes: 2, read: (view, at) => bf16ToFloat(view.getUint16(at, true)) },
};

const [endpoint = "tcp://127.0.0.1:5555", camera] = process.argv.slice(2);

const socket = new Subscriber({
  receiveHighWaterMark: 8, // a small queue: a slow program sees recent records
  reconnectInterval: 20, // lose little when the service restarts
});
socket.connect(endpoint);
socket.subscribe(camera ? `features/${camera}/` : "features/");

const last = new Map();
for await (const [, packed, ...parts] of socket) {
  const header = decode(packed, { useBigInt64: true }); // times in nanoseconds are BigInt, counters are numbers
  if (header.schema > SCHEMA) throw new Error(`the service sends schema ${header.schema}: this program is too old`);
  printGaps(header, last.get(header.camera));
  last.set(header.camera, header);

  const [width, height] = header.source_size;
  console.log(`${header.camera} ${header.seq} ${width}x${height} ${header.flags.join(",") || "-"}`);
  header.tensors.forEach((tensor, i) => {
    const values = toFloats(tensor.dtype, parts[i]);
    console.log(`  ${tensor.name} [${tensor.shape.join(", ")}] first ${Number(values[0]?.toPrecision(6))}`);
  });
  printPose(header, parts);
}

/** The camera's position: the last column of the pose [3, 4], which is stored by rows; NaN if it is unknown. */
function printPose(header, parts) {
  const i = header.tensors.findIndex((tensor) => tensor.name === "pose/world_from_camera");
  if (i < 0 || !header.geometry) return;
  const pose = toFloats(header.tensors[i].dtype, parts[i]);
  const position = [pose[3], pose[7], pose[11]].map((number) => Number(number.toPrecision(6)));
  console.log(`  camera at ${position.join(" ")} (${header.geometry.unit})`);
}

function printGaps(now, before) {
  if (!before) return; // the first record of a camera: joining late is no gap
  let { seq, source_seq: sourceSeq } = before;
  if (now.instance !== before.instance || now.stream_epoch !== before.stream_epoch) {
    const gap = now.instance !== before.instance ? "restart 1" : `reconnect ${now.stream_epoch - before.stream_epoch}`;
    console.log(`${now.camera}: ${gap}`);
    seq = sourceSeq = -1; // both start at 0 again
  }
  const lost = now.seq - seq - 1;
  const dropped = now.source_seq - sourceSeq - 1 - lost;
  if (dropped > 0) console.log(`${now.camera}: source_drop ${dropped}`);
  if (lost > 0) console.log(`${now.camera}: wire_loss ${lost}`);
}

/** The numbers of a tensor as a Float32Array. */
function toFloats(dtype, part) {
  if (!(dtype in formats)) throw new Error(`no decoder for dtype ${dtype}`);
  const { bytes, read } = formats[dtype];
  const view = new DataView(part.buffer, part.byteOffset, part.byteLength); // a part may start at an odd address
  const values = new Float32Array(part.byteLength / bytes);
  for (let i = 0; i < values.length; i++) values[i] = read(view, i * bytes);
  return values;
}

function halfToFloat(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 0x1f) return fraction ? NaN : sign * Infinity;
  return exponent ? sign * 2 ** (exponent - 15) * (1 + fraction / 1024) : sign * 2 ** -24 * fraction;
}

function bf16ToFloat(bits) {
  scratch.setUint16(0, bits); // the upper half of a float32
  return scratch.getFloat32(0);
}
