// What the pictures show, said in words.

function rulerWords(cell) {
  if (cell.verdict.kind === 'engine failure') return `Nothing to draw beyond the prompt: the engine failed. ${cell.verdict.reason}`;
  if (cell.claimed_depth === null) {
    const could = cell.reusable_tokens ? ` The history allows ${plural(cell.reusable_tokens, 'token')} to be reused.` : '';
    return `Nothing was resumed: all ${plural(cell.length, 'token')} are computed from an empty state.${could}`;
  }
  const state = stateDepth(cell);
  const stands = state === null ? `the state it starts from stands at no known depth (${cell.located?.standing ?? 'not located'})`
    : `the state it starts from has absorbed ${plural(state, 'token')}`;
  const {kind, tokens, start, end, part} = cell.verdict;
  const by = part === 'convolution window' ? ' by the convolution window' : '';
  const span = `tokens ${start} to ${end - 1}`;
  const so = {
    'double-computed': `: ${span} go through the linear layers a second time${by}, ${tokens} double-computed`,
    skipped: `: ${span} never reach the linear layers${by}, ${tokens} skipped`,
    'reuse lost': `, and ${span} are computed again although the history allowed them to be reused`,
    refused: `, and ${span} are computed again because a guard rejected their state`,
    ok: ': exactly where it resumes',
  }[kind] ?? '';
  return `The resumed run has cached_tokens = ${cell.cached_tokens}, and ${stands}${so}.`;
}

function diffWords(cell) {
  const diff = cell.diff;
  const floor = Math.max(diff.noise_clean ?? Infinity, diff.noise_rounding ?? Infinity);
  const noise = `the noise floor of ${scientific(Number.isFinite(floor) ? floor : null)}`;
  if (diff.first_wrong === null) {
    return `The resumed run agrees with the cold run: the largest error is ${scientific(diff.largest)}, within twice ${noise}.`;
  }
  const times = diff.over_noise === null ? 'beyond' : `${scientific(diff.over_noise)} times`;
  const to = diff.last_wrong === cell.length - 1 ? 'the last token of the prompt' : `token ${diff.last_wrong}`;
  const fades = diff.last_wrong === cell.length - 1 ? 'The damage reaches the end of the prompt'
    : `The damage fades after ${plural(diff.last_wrong - diff.first_wrong + 1, 'token')}`;
  return `Hidden states are wrong from token ${diff.first_wrong} to ${to}. ${fades}. ` +
    `The largest error is ${scientific(diff.largest)}, ${times} ${noise}.`;
}

function locatorWords(cell) {
  const located = cell.located;
  if (cell.claimed_depth === null) return 'The run started from an empty state.';
  if (located.depth === null) return `By its numbers, the state stands at no single depth of this prompt: ${located.standing}.`;
  const how = located.distance === 0 ? 'bit for bit' : `at a relative distance of ${scientific(located.distance)}`;
  const claims = located.depth === cell.claimed_depth ? 'which is what the engine claims'
    : `while the engine claims ${cell.claimed_depth}`;
  const resumes = located.depth === cell.cached_tokens ? 'and where it resumes' : `but it resumes at ${cell.cached_tokens}`;
  return `By its numbers alone, the state stands at depth ${located.depth}, ${how}, ${claims}, ${resumes}.`;
}

function takenWords(taken) {
  const from = taken.index === null ? 'the final state' : `the intermediate state h[${taken.index}]`;
  const window = taken.conv_depth === taken.depth ? '' : `, its convolution window at ${taken.conv_depth}`;
  return `snapshot: ${from} of this pass, true depth ${taken.depth}${window}`;
}

const FATES = {
  attached: 'the node took it',
  'already there': 'dropped, the node already had a state',
  refused: 'refused by a guard',
  'no node': 'dropped, the tokens fill no tree page',
};

function donationWords(donation) {
  const node = donation.node_depth ? `the node that ends at ${donation.node_depth}` : 'the root';
  return `claimed depth ${donation.claimed_depth}, offered to ${node}: ${FATES[donation.fate] ?? donation.fate}`;
}

// The donor's passes in order, each with the snapshots taken during it; then donations; then the resuming prompt.
function historySteps(cell) {
  const steps = [];
  let start = 0;
  for (const [i, size] of cell.prefill.entries()) {
    const chunk = cell.prefill.length > 1 ? `, chunk ${i + 1} of ${cell.prefill.length}` : '';
    steps.push({title: `Donor prefill${chunk}: tokens ${start} to ${start + size - 1}`, start, end: start + size, lines: []});
    start += size;
  }
  if (cell.decode) {
    const title = `Donor decode: ${plural(cell.decode, 'step')}, tokens ${start} to ${start + cell.decode - 1}`;
    steps.push({title, start, end: start + cell.decode, lines: []});
  }
  for (const taken of cell.taken) {
    const step = steps.find((each) => taken.start >= each.start && taken.end <= each.end) ?? steps.at(-1);
    const within = taken.end - taken.start === 1 ? `token ${taken.start}` : `tokens ${taken.start} to ${taken.end - 1}`;
    const place = step.end - step.start > taken.end - taken.start ? ` (${within})` : '';
    step.lines.push(takenWords(taken) + place);
  }
  for (const step of steps) if (!step.lines.length) step.lines.push('no snapshot taken');
  steps.push({
    title: 'Donated to the tree',
    lines: cell.donations.length ? cell.donations.map(donationWords) : ['nothing'],
  });
  const longer = cell.branch !== null ? `, of its own from token ${cell.branch} on`
    : cell.next_turn ? `, ${plural(cell.next_turn, 'token')} longer than what the donor absorbed` : '';
  const got = cell.claimed_depth === null ? 'got no state from the cache'
    : `got the state that was donated as depth ${cell.claimed_depth}, and cached_tokens = ${cell.cached_tokens}`;
  const computed = `computes tokens ${cell.cached_tokens} to ${cell.length - 1}`;
  const failed = cell.verdict.kind === 'engine failure';
  steps.push({
    title: `Resuming prompt: ${plural(cell.length, 'token')}${longer}`,
    lines: failed ? [`engine failure: ${cell.verdict.reason}`] : [got, computed],
  });
  return steps;
}
