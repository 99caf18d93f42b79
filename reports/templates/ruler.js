// The ruler: one axis in tokens, zoomed on what matters, below a small overview of the whole prompt.
//
// Lanes from top to bottom: what the donated state has absorbed, what the resumed run computes, and how often each token was absorbed
// in all. Where the first two overlap, tokens are double-computed; where a gap is left between them, skipped.

const EDGE = 6; // px left free at both ends
const LANE = 18; // px, the height of a bar
const ROW = 16; // px, the height of a line of names
const pen = document.createElement('canvas').getContext('2d');

// The width of a text in px, as it will be drawn.
function textWidth(text, weight) {
  pen.font = `${weight} 12px ${getComputedStyle(document.body).fontFamily}`;
  return pen.measureText(text).width;
}

// The depths that a cell is about, by name; those that are equal share one mark.
function depthMarks(cell) {
  const located = cell.located?.depth ?? null;
  const named = [];
  const offered = cell.donations.filter((donation) => donation.claimed_depth === cell.claimed_depth).at(-1);
  if (cell.claimed_depth !== null) named.push(['claimed depth', cell.claimed_depth]);
  if (located !== null && cell.claimed_depth !== null) named.push(['true depth', located]);
  if (located === null && cell.state_depth !== null) named.push(['depth by its tag', cell.state_depth]);
  const window = windowDepth(cell);
  if (window !== null && window !== (located ?? cell.state_depth)) named.push(['convolution window', window]);
  if (offered) named.push(['node depth', offered.node_depth]);
  named.push(['cached_tokens', cell.cached_tokens]);
  if (cell.reusable_tokens > cell.cached_tokens) named.push(['reusable', cell.reusable_tokens]);
  named.push(['end of the prompt', cell.length]);
  const marks = new Map();
  for (const [name, depth] of named) marks.set(depth, [...(marks.get(depth) ?? []), name]);
  return [...marks].map(([depth, names]) => ({depth, names})).sort((a, b) => a.depth - b.depth);
}

function windowDepth(cell) {
  if (cell.claimed_depth === null) return null;
  const windows = cell.located?.windows ?? [];
  if (!windows.length) return cell.conv_depth;
  return windows.reduce((a, b) => (Math.abs(b - cell.cached_tokens) < Math.abs(a - cell.cached_tokens) ? b : a));
}

// Where the donated state stands: by its numbers if they say so, else by its tag.
function stateDepth(cell) {
  if (cell.claimed_depth === null) return null;
  return cell.located === null ? cell.state_depth : cell.located.depth;
}

// The depths to zoom on: everything that differs, with some air, and the end of the prompt if it is near.
function zoomed(cell) {
  if (cell.claimed_depth === null && cell.reusable_tokens === 0) return [0, Math.max(cell.length, cell.tree_page) * 1.05];
  const depths = depthMarks(cell).map((mark) => mark.depth).filter((depth) => depth !== cell.length);
  const low = Math.min(...depths);
  let high = Math.max(...depths);
  const span = Math.max(high - low, 2 * cell.chunk);
  if (cell.length - high < 2 * span) high = cell.length;
  const air = Math.max(0.2 * span, 1.5 * cell.chunk, Math.min(0.6 * cell.tree_page, 2 * span));
  return [Math.max(0, low - air), Math.min(Math.max(cell.length, low + span), high + air)];
}

function drawRuler(cell, width) {
  const [low, high] = zoomed(cell);
  const x = (depth) => EDGE + ((Math.min(Math.max(depth, low), high) - low) / (high - low)) * (width - 2 * EDGE);
  const svg = shape('svg', {class: 'ruler', role: 'img', 'aria-label': rulerWords(cell)});
  let y = low > 0 || high < cell.length ? drawOverview(svg, cell, low, high, width) : 4;
  const marks = depthMarks(cell).filter((mark) => mark.depth >= low && mark.depth <= high);
  const top = y;
  y = placeNames(marks, x, width, y);
  const lines = shape('g');
  svg.append(lines);
  y = drawLanes(svg, cell, x, [low, high], y + 6);
  y = drawTicks(svg, cell, x, [low, high], width, y + 8);
  for (const mark of marks) {
    const at = x(mark.depth);
    const below = mark.y + ROW * (mark.lines.length - 1) + 3;
    lines.append(shape('line', {x1: at, x2: at, y1: below, y2: y - 16, class: 'mark-line'}));
    mark.lines.forEach((line, i) => {
      svg.append(shape('text', {x: mark.x, y: mark.y + ROW * i, 'text-anchor': 'middle', class: 'mark-name'}, line));
    });
  }
  svg.setAttribute('viewBox', `0 0 ${width} ${Math.max(y, top)}`);
  svg.setAttribute('width', width);
  return svg;
}

function drawOverview(svg, cell, low, high, width) {
  const x = (depth) => EDGE + (depth / cell.length) * (width - 2 * EDGE);
  svg.append(shape('text', {x: EDGE, y: 12, class: 'lane-name'}, `the whole prompt, ${cell.length} tokens`));
  const bar = (from, to, kind) => {
    if (to > from) svg.append(shape('rect', {x: x(from), y: 18, width: Math.max(x(to) - x(from), 1), height: 8, class: kind}));
  };
  bar(0, cell.length, 'plain');
  for (const piece of accounts(cell)) bar(piece.start, piece.end, piece.kind);
  const end = Math.min(high, cell.length);
  svg.append(shape('rect', {x: x(low) - 1, y: 15, width: Math.max(x(end) - x(low), 3) + 2, height: 14, class: 'lens'}));
  const fan = `M${x(low) - 1} 29L${EDGE} 46H${width - EDGE}L${x(end) + 1} 29Z`;
  svg.append(shape('path', {d: fan, class: 'fan'}));
  return 50;
}

// The names above the lanes, in rows so that none runs into another. Gives each mark its lines and place; returns where the rows end.
function placeNames(marks, x, width, y) {
  const ends = []; // of each row so far
  for (const mark of marks) {
    mark.lines = wrapped(mark, width - 2 * EDGE);
    const size = Math.max(...mark.lines.map((line) => textWidth(line, 600)));
    const left = Math.max(EDGE, Math.min(x(mark.depth) - size / 2, width - EDGE - size));
    let row = 0;
    while (mark.lines.some((_, i) => (ends[row + i] ?? -Infinity) + 10 > left)) row += 1;
    mark.lines.forEach((_, i) => (ends[row + i] = left + size));
    Object.assign(mark, {x: left + size / 2, y: y + 13 + ROW * row});
  }
  return y + ROW * ends.length;
}

// The names of one mark and its depth, on as few lines as fit.
function wrapped(mark, room) {
  const lines = [''];
  mark.names.forEach((name, i) => {
    const piece = i + 1 < mark.names.length ? `${name} = ` : `${name} ${mark.depth}`;
    if (lines.at(-1) && textWidth(lines.at(-1) + piece, 600) > room) lines.push('');
    lines[lines.length - 1] += piece;
  });
  return lines.map((line) => line.trimEnd());
}

function drawLanes(svg, cell, x, [low, high], y) {
  const state = stateDepth(cell);
  const window = windowDepth(cell);
  const lane = (name, pieces) => {
    svg.append(shape('text', {x: EDGE, y: y + 13, class: 'lane-name'}, name));
    y += 18;
    svg.append(shape('rect', {x: x(low), y, width: x(high) - x(low), height: LANE, class: 'lane'}));
    for (const piece of pieces) drawPiece(svg, piece, x, [low, high], y);
    y += LANE + 4;
  };
  if (state !== null) lane('the donated state has absorbed', [{start: 0, end: state, kind: 'state'}]);
  else if (cell.claimed_depth !== null) {
    const standing = cell.located?.standing ?? 'not located';
    lane('the donated state is claimed to have absorbed', [{start: 0, end: cell.claimed_depth, kind: 'claimed', text: `state: ${standing}`}]);
  }
  if (window !== null && window !== state) {
    lane('its convolution window ends at', [{start: 0, end: window, kind: 'window'}]);
  }
  lane(cell.cached_tokens ? 'the resumed run computes' : 'the run computes, from an empty state', [
    {start: cell.cached_tokens, end: cell.length, kind: 'computed'},
  ]);
  const pieces = accounts(cell);
  if (pieces.length) lane(cell.ledger ? 'so each token is absorbed' : 'so what could have been reused', pieces);
  return y;
}

// The ledger as spans to be drawn, and reuse that was lost.
function accounts(cell) {
  const pieces = (cell.ledger ?? []).map(({start, end, times}) => ({
    start,
    end,
    kind: ['never', 'once', 'twice'][times] ?? 'twice',
    text: ['never', 'once', 'twice'][times] ?? `${times} times`,
  }));
  const {kind, start, end, part} = cell.verdict;
  if (kind === 'refused' || kind === 'reuse lost') pieces.push({start, end, kind: 'lost', text: 'reuse lost'});
  if (part === 'convolution window' && start !== null) {
    pieces.push({start, end, kind: kind === 'skipped' ? 'never' : 'twice', text: kind === 'skipped' ? 'never' : 'twice'});
  }
  return pieces;
}

function drawPiece(svg, piece, x, [low, high], y) {
  const from = Math.max(piece.start, low);
  const to = Math.min(piece.end, high);
  if (to <= from) return;
  const size = Math.max(x(to) - x(from), 1);
  svg.append(shape('rect', {x: x(from), y, width: size, height: LANE, class: piece.kind}));
  const long = piece.text && ['twice', 'never', 'lost'].includes(piece.kind) ? `${piece.end - piece.start} ${piece.text}` : piece.text;
  const text = [long, piece.text].find((words) => words && textWidth(words, 700) + 12 < size);
  if (!text) return;
  const middle = x(from) + size / 2;
  const plate = textWidth(text, 700) + 8;
  if (piece.kind === 'lost' || piece.kind === 'twice' || piece.kind === 'never') {
    svg.append(shape('rect', {x: middle - plate / 2, y: y + 2, width: plate, height: LANE - 4, rx: 3, class: `plate ${piece.kind}-plate`}));
  }
  svg.append(shape('text', {x: middle, y: y + 13, 'text-anchor': 'middle', class: `on-${piece.kind}`}, text));
}

function drawTicks(svg, cell, x, [low, high], width, y) {
  const rows = [
    ['kernel chunks', cell.chunk],
    ['pages', cell.page],
    ['tree pages', cell.tree_page],
  ];
  for (const [name, step] of rows) {
    let shown = step;
    while (x(low + shown) - x(low) < 4 && shown < high - low) shown *= 2;
    const some = shown > step ? `, one in ${shown / step} drawn` : '';
    svg.append(shape('text', {x: EDGE, y: y + 11, class: 'lane-name'}, `${name} of ${step}${some}`));
    y += 15;
    let d = `M${x(low)} ${y + 4}H${x(high)}`;
    for (let depth = Math.ceil(low / shown) * shown; depth <= high; depth += shown) d += `M${x(depth).toFixed(1)} ${y}v8`;
    svg.append(shape('path', {d, class: 'ticks'}));
    y += 12;
  }
  return drawDepths(svg, x, [low, high], width, y);
}

// Round numbers below the ticks.
function drawDepths(svg, x, [low, high], width, y) {
  const wanted = (high - low) / Math.max(2, Math.floor(width / 70));
  const power = 10 ** Math.floor(Math.log10(wanted));
  const step = Math.max(1, [1, 2, 2.5, 5, 10].find((round) => round * power >= wanted) * power);
  let free = 0;
  for (let depth = Math.ceil(low / step) * step; depth <= high; depth += step) {
    const half = textWidth(String(depth), 400) / 2;
    const at = Math.min(Math.max(x(depth), EDGE + half), width - EDGE - half);
    if (at - half < free) continue;
    svg.append(shape('text', {x: at, y: y + 12, 'text-anchor': 'middle', class: 'depth'}, depth));
    free = at + half + 8;
  }
  return y + 18;
}
