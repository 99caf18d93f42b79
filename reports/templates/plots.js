// The plots of a cell: its curves go into the specification of their kind, and Vega draws them at the width that there is.

const tooltip = document.getElementById('tooltip');

// Returns a promise, kept long enough to be finalized. Nothing is loaded, so the drawing is there before the next task: in time for a printer.
function drawPlot(place, name, data, description, width) {
  const plot = structuredClone(run.plots[name]);
  for (const set of plot.data) if (set.name in data) set.values = data[set.name];
  Object.assign(plot, {description, width: Math.max(180, width - 80)});
  const quiet = {mode: 'vega', renderer: 'svg', actions: false, defaultStyle: false, tooltip: showTooltip};
  return vegaEmbed(place, plot, quiet);
}

function showTooltip(_handler, event, _item, value) {
  tooltip.hidden = !value;
  if (!value) return;
  tooltip.textContent = Object.entries(value).map(([name, text]) => `${name} ${text}`).join(', ');
  const box = tooltip.getBoundingClientRect();
  tooltip.style.left = `${Math.max(4, Math.min(event.clientX + 12, document.documentElement.clientWidth - box.width - 4))}px`;
  tooltip.style.top = `${Math.max(4, event.clientY - box.height - 10)}px`;
}

// A logarithmic scale has no zero: errors of exactly 0 are drawn at the lower edge.
function diffData(cell) {
  const {tokens, errors} = cell.details;
  const noise = Math.max(cell.diff.noise_clean ?? 0, cell.diff.noise_rounding ?? 0);
  const positive = errors.flat().filter((error) => error > 0).concat(noise > 0 ? [noise] : []);
  const low = 10 ** Math.floor(Math.log10(Math.min(...positive, 1)));
  const high = Math.max(...positive, 10 * low);
  const rows = errors.flatMap((layer, i) =>
    layer.map((error, j) => ({
      token: tokens[j],
      error: error === null ? high : Math.max(error, low),
      measured: error === null ? 'not a number' : scientific(error),
      layer: `layer ${i}`,
    })),
  );
  const start = tokens[0];
  const marks = [{token: start, name: cell.cached_tokens ? 'resumed here' : 'started here', align: 'left', row: 0}];
  if (cell.diff.last_wrong !== null && cell.diff.last_wrong < tokens.at(-1)) {
    marks.push({token: cell.diff.last_wrong, name: 'last wrong token', align: 'right', row: 1});
  }
  return {errors: rows, noise: [{low, limit: Math.max(2 * noise, low)}], marks};
}

function locatorData(cell) {
  const {depths, distances} = cell.details;
  const rows = depths.map((depth, i) => ({depth, distance: distances[i]})).filter((row) => row.distance !== null);
  if (!rows.length) return null;
  const nearest = rows.reduce((best, row) => (row.distance < best.distance ? row : best));
  const last = depths.at(-1) ?? 1;
  const named = new Map();
  const name = (depth, text) => named.set(depth, [...(named.get(depth) ?? []), text]);
  if (cell.claimed_depth !== null) name(cell.claimed_depth, 'claimed');
  if (cell.located?.depth > 0) name(cell.located.depth, 'true depth');
  name(cell.cached_tokens, 'cached_tokens');
  const marks = [...named].map(([depth, texts], row) => ({
    depth,
    name: texts.join(' = '),
    align: depth > last / 2 ? 'right' : 'left',
    row,
  }));
  return {distances: rows, nearest: [nearest], marks};
}
