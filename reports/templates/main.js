// What happens when: opening cells by their address, choosing, filtering, redrawing, printing.

const PRINTED = 25; // findings that are printed in full
const place = document.getElementById('cell');
let opened = null;

function open(number, {go}) {
  const cell = run.cells[number - 1];
  if (!cell) return;
  finish(opened?.node);
  const node = buildCell(number);
  place.replaceChildren(node);
  opened = {number, node, cell};
  drawCell(node, cell);
  markOpened(number);
  if (!go) return;
  place.scrollIntoView();
  node.querySelector('h2').focus({preventScroll: true});
}

function addressed() {
  const found = /^#cell-(\d+)$/.exec(location.hash);
  return found ? Number(found[1]) : null;
}

addEventListener('hashchange', () => {
  if (addressed()) open(addressed(), {go: true});
});

document.addEventListener('click', (event) => {
  const link = event.target.closest('a[href^="#"]');
  if (!link) return;
  if (link.dataset.filter !== undefined) filterRows(link.dataset.filter);
  // The address does not change when the opened cell is chosen again.
  if (addressed() && link.hash === location.hash) open(addressed(), {go: true});
});

document.getElementById('choice')?.addEventListener('change', (event) => showChoice(event.target.value));
document.addEventListener('keydown', moveInMap);

const filter = document.getElementById('filter');
filter.addEventListener('change', () => filterRows(filter.value));

function filterRows(kind) {
  document.getElementById('all-cells').open = true;
  filter.value = kind;
  for (const row of document.querySelectorAll('#cells tbody tr')) row.hidden = kind !== '' && row.dataset.kind !== kind;
}

// Redraw when the width changes, not when drawing changes the height.
let drawnWidth = place.clientWidth;
new ResizeObserver(() => {
  if (place.clientWidth === drawnWidth || !opened) return;
  drawnWidth = place.clientWidth;
  requestAnimationFrame(() => drawCell(opened.node, opened.cell));
}).observe(place);

// On paper nothing can be opened: print the findings one after another.
const printed = document.getElementById('printed');

function spread() {
  if (printed.childElementCount) return;
  const found = run.cells.map((cell, i) => (isFinding(cell) ? i + 1 : 0)).filter(Boolean);
  const shown = found.filter((number) => number !== opened?.number).slice(0, PRINTED);
  for (const number of shown) {
    const node = buildCell(number);
    printed.append(node);
    drawCell(node, run.cells[number - 1]);
  }
  const left = found.length - shown.length - (opened && isFinding(opened.cell) ? 1 : 0);
  if (left > 0) printed.append(element('p', {class: 'note'}, `${plural(left, 'more finding')}: see the table, or print them from the file.`));
}

function gather() {
  for (const node of printed.children) finish(node);
  printed.replaceChildren();
}

addEventListener('beforeprint', spread);
addEventListener('afterprint', gather);
matchMedia('print').addEventListener('change', (event) => (event.matches ? spread() : gather()));

showChoice('');
const rank = (cell) => (cell.verdict.kind === 'vacuous' ? run.kinds.length : run.kinds.findIndex((look) => look.kind === cell.verdict.kind));
const worse = (a, b) => rank(a) - rank(b) || b.verdict.tokens - a.verdict.tokens;
if (addressed() && run.cells[addressed() - 1]) open(addressed(), {go: true});
else if (run.cells.length) open(run.cells.indexOf([...run.cells].sort(worse)[0]) + 1, {go: false});
