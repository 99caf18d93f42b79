// A small engine behind the engine protocol, in another language than Python: node page_cache.mjs [FAULT]
// Its cache maps prefixes of whole tree pages to a state. It keeps one snapshot a pass, the deepest on the checkpoint
// grid, and one every interval of decoding. FAULT: deeper (keeps the deepest state of the kernel instead), zeros
// (with tensors: hands back an empty state).
import { createInterface } from 'node:readline';

const fault = process.argv[2];
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const write = (message) => process.stdout.write(`${JSON.stringify(message)}\n`);
const read = async () => {
  const { value, done } = await lines.next();
  if (done) process.exit(0);
  return JSON.parse(value);
};
const gcd = (a, b) => (b ? gcd(b, a % b) : a);
const lcm = (a, b) => (a / gcd(a, b)) * b;

let geometry, treePage, grid, cache, requests;

function open(call) {
  geometry = call.geometry;
  treePage = geometry.page * geometry.dcp;
  grid = lcm(Math.max(geometry.chunk, geometry.page), treePage);
  cache = new Map();
  requests = [];
  return {};
}

const prefix = (tokens, depth) => tokens.slice(0, depth).join(' ');

function match({ tokens }) {
  let depth = Math.floor((tokens.length - 1) / treePage) * treePage;
  while (depth > 0 && !cache.has(prefix(tokens, depth))) depth -= treePage;
  const found = cache.get(prefix(tokens, depth));
  requests.push({ tokens: [...tokens], absorbed: depth });
  const answer = { request: requests.length - 1, cached_tokens: depth, snapshot: found ? found.snapshot : null };
  if (found) answer.claimed_depth = found.depth;
  if (found && found.state) answer.state = fault === 'zeros' ? found.state.map(emptied) : found.state;
  return answer;
}

const emptied = (layer) => ({ ...layer, recurrent: { ...layer.recurrent, data: zeros(layer.recurrent.data) } });
const zeros = (data) => Buffer.alloc(Buffer.from(data, 'base64').length).toString('base64');

async function take(index, convEnd) {
  write({ take: { index, conv_end: convEnd } });
  const answer = await read();
  if (answer.error) throw new Error(answer.error);
  return answer;
}

async function keep(number, request, index, depth) {
  const snapshot = await take(index, depth);
  const node = Math.floor(depth / treePage) * treePage;
  const key = prefix(request.tokens, node);
  const fate = node === 0 ? 'no node' : cache.has(key) ? 'already there' : 'attached';
  if (fate === 'attached') cache.set(key, { ...snapshot, depth });
  return { donations: [{ request: number, claimed_depth: depth, node_depth: node, fate }] };
}

async function extend({ request, start, end }) {
  const step = fault === 'deeper' ? geometry.chunk : grid;
  const depth = Math.floor(end / step) * step;
  const live = alive(request);
  live.absorbed = end;
  const index = (depth - start) / geometry.chunk;
  if (depth <= start || !Number.isInteger(index)) return {};
  return keep(request, live, depth === end ? null : index, depth);
}

async function decode({ request, token }) {
  const live = alive(request);
  live.tokens.push(token);
  live.absorbed += 1;
  return live.absorbed % lcm(grid, geometry.interval) ? {} : keep(request, live, null, live.absorbed);
}

function alive(request) {
  if (!requests[request]) throw new Error(`there is no request ${request}`);
  return requests[request];
}

function finish({ request }) {
  alive(request);
  requests[request] = undefined;
  return {};
}

const hello = () => ({
  protocol: 1, engine: 'page cache', versions: { node: process.version }, payloads: ['tag', 'tensors'],
});
const calls = { hello, open, match, extend, decode, finish, close: () => ({}) };

for (;;) {
  const call = await read();
  try {
    if (!calls[call.call]) throw new Error(`there is no call ${call.call}`);
    write({ id: call.id, ...(await calls[call.call](call)) });
  } catch (error) {
    write({ id: call.id, error: error.message });
  }
  if (call.call === 'close') process.exit(0);
}
