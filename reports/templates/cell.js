// One opened cell, built from its template.

function buildCell(number) {
  const cell = run.cells[number - 1];
  const look = lookOf(cell);
  const node = document.getElementById('cell-template').content.cloneNode(true).firstElementChild;
  const part = (name) => node.querySelector(`[data-part="${name}"]`);
  const drop = (name) => node.querySelector(`[data-section="${name}"]`)?.remove();
  part('where').textContent = `Cell ${number} of ${run.cells.length}: ${geometryName(cell)}, prompt ${promptName(cell)}`;
  part('mark').textContent = look.mark;
  part('mark').classList.add(look.slug);
  part('verdict').textContent = cell.verdict.text;
  part('meaning').textContent = look.id ? `${look.id}: ${look.meaning}` : look.meaning;
  part('advice').textContent = look.advice ? `What to do first: ${look.advice}` : '';
  const against = cell.against_baseline;
  part('baseline').textContent = against ? `Against the baseline: ${against.standing}. ${against.why}` : '';
  part('ruler-words').textContent = rulerWords(cell);
  part('command').textContent = cell.reproduce;
  part('copy').addEventListener('click', () => copy(part('command'), part('copied')));
  fillLedger(cell, part('ledger')) || drop('ledger');
  if (cell.diff) part('diff-words').textContent = diffWords(cell);
  else drop('diff');
  if (cell.located) part('locator-words').textContent = locatorWords(cell);
  else drop('locator');
  for (const step of historySteps(cell)) {
    const lines = step.lines.map((line) => element('li', {}, line));
    part('history').append(element('li', {}, element('b', {}, step.title), element('ul', {}, ...lines)));
  }
  for (const [name, value] of numbers(cell)) {
    part('numbers').append(element('div', {}, element('dt', {}, name), element('dd', {}, String(value))));
  }
  fillSiblings(number, cell, part('siblings')) || drop('siblings');
  steer(number, part('previous'), part('next'));
  return node;
}

// Draw the ruler and the plots at the width that the cell has in the page. May be called again when that changes.
function drawCell(node, cell) {
  const place = (name) => node.querySelector(`[data-part="${name}"]`);
  const width = Math.floor(place('ruler').clientWidth) || 680;
  place('ruler').replaceChildren(drawRuler(cell, width));
  finish(node);
  node.plots = [];
  const plot = (name, data, words) => {
    if (!place(name)) return;
    if (data) node.plots.push(drawPlot(place(name), name, data, words, width));
    else place(name).parentElement.replaceWith(element('p', {class: 'note'}, missing(cell)));
  };
  plot('diff', cell.details && diffData(cell), cell.diff && diffWords(cell));
  plot('locator', cell.details?.distances && locatorData(cell), cell.located && locatorWords(cell));
}

// Let go of what a cell's plots listen to.
function finish(node) {
  for (const plot of node?.plots ?? []) plot.then((drawn) => drawn.finalize());
}

function missing(cell) {
  if (cell.details) return 'There is no curve: no state was donated.';
  return 'The curve of this cell is not kept in this file. The command above brings it back.';
}

function fillLedger(cell, rows) {
  const words = ['never: skipped', 'once', 'twice: double-computed'];
  for (const {start, end, times} of cell.ledger ?? []) {
    const mark = element('span', {class: `swatch ${['never', 'once', 'twice'][times] ?? 'twice'}`, 'aria-hidden': 'true'});
    const told = element('td', {class: 'text'}, mark, ` ${words[times] ?? `${times} times`}`);
    rows.append(element('tr', {}, element('td', {}, `[${start}, ${end})`), element('td', {}, String(end - start)), told));
  }
  return cell.ledger !== null;
}

function numbers(cell) {
  const or = (value) => value ?? '–';
  const rows = [
    ['claimed depth', or(cell.claimed_depth)],
    ['state depth, by its tag', or(cell.state_depth)],
    ['convolution window, by its tag', or(cell.conv_depth)],
    ['cached_tokens', cell.cached_tokens],
    ['reusable tokens', cell.reusable_tokens],
    ['prompt length', cell.length],
    ['tree page', cell.tree_page],
    ['checkpoint grid', cell.checkpoint_grid],
  ];
  if (cell.located) {
    rows.push(['located depth, by its numbers', cell.located.depth ?? cell.located.standing]);
    const windows = cell.located.windows;
    const off = cell.located.window_distance ? `, off by ${cell.located.window_distance.toExponential(1)}` : '';
    rows.push(['located convolution window', windows.slice(0, 5).join(', ') + (windows.length > 5 ? ' ...' : '') + off || 'nowhere']);
  }
  if (cell.diff) {
    rows.push(
      ['largest error', scientific(cell.diff.largest)],
      ['error against float64', scientific(cell.diff.against_oracle)],
      ['noise: a clean resume', scientific(cell.diff.noise_clean)],
      ['noise: rounding', scientific(cell.diff.noise_rounding)],
    );
  }
  return rows;
}

function fillSiblings(number, cell, list) {
  const same = (other) => ['chunk', 'page', 'dcp', 'interval'].every((size) => other[size] === cell[size]);
  run.cells.forEach((other, i) => {
    if (i + 1 === number || !same(other)) return;
    const look = lookOf(other);
    const mark = element('span', {class: `mark ${look.slug}`, 'aria-hidden': 'true'}, look.mark);
    list.append(element('li', {}, element('a', {href: `#cell-${i + 1}`}, mark, ` ${promptName(other)}: ${other.verdict.text}`)));
  });
  return list.childElementCount > 0;
}

// Links to the findings before and after this cell.
function steer(number, previous, next) {
  const found = run.cells.map((cell, i) => (isFinding(cell) ? i + 1 : 0)).filter(Boolean);
  for (const [link, target] of [
    [previous, found.filter((n) => n < number).at(-1)],
    [next, found.find((n) => n > number)],
  ]) {
    if (target) link.href = `#cell-${target}`;
    else link.remove();
  }
}

// Copy text, also where the page may not use the clipboard: then it is left selected.
async function copy(code, status) {
  let done = false;
  try {
    await navigator.clipboard.writeText(code.textContent);
    done = true;
  } catch {
    getSelection().selectAllChildren(code);
    done = document.execCommand('copy');
  }
  status.textContent = done ? 'Copied.' : 'Selected: press Ctrl+C to copy.';
}
