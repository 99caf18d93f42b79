// The run's document, and small helpers. Text enters the page through textContent and setAttribute alone: never as markup.
const run = JSON.parse(document.getElementById('run').textContent);
const looks = new Map(run.kinds.map((look) => [look.kind, look]));
const SILENT = new Set(['ok', 'vacuous', 'engine failure']);

function lookOf(cell) {
  return looks.get(cell.verdict.kind) ?? {kind: 'unknown', slug: 'unknown', mark: '?', id: '', meaning: '', advice: ''};
}

function isFinding(cell) {
  return !SILENT.has(cell.verdict.kind);
}

function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

function shape(name, attributes = {}, ...children) {
  return filled(document.createElementNS('http://www.w3.org/2000/svg', name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function plural(count, noun) {
  return `${count} ${noun}${count === 1 ? '' : 's'}`;
}

function scientific(value) {
  if (value === null) return 'infinite';
  return value === 0 ? '0' : value.toExponential(1);
}

function promptName(cell) {
  const source = cell.stream === 'seeded' ? '' : `${cell.stream}: `;
  return source + cell.prompt + (cell.label ? ` (${cell.label})` : '');
}

function geometryName(cell) {
  return `chunk ${cell.chunk}, page ${cell.page}, dcp ${cell.dcp}, interval ${cell.interval}`;
}
