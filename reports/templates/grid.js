// The heat maps: which prompt they show, and moving between squares by keyboard.

function showChoice(choice) {
  for (const place of document.querySelectorAll('.heat td')) {
    // Squares stand worst first, so the first that fits is the worst of those that fit.
    const squares = [...place.children];
    const shown = squares.find((square) => choice === '' || square.dataset.choice === choice);
    for (const square of squares) square.hidden = square !== shown;
  }
  for (const map of document.querySelectorAll('.heat')) rove(map, map.querySelector('.square:not([hidden])'));
}

// One square of each map is reached by Tab; the arrow keys reach the others.
function rove(map, square) {
  for (const other of map.querySelectorAll('.square')) other.tabIndex = other === square ? 0 : -1;
}

const MOVES = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]};

function moveInMap(event) {
  const square = event.target.closest('.square');
  const map = event.target.closest('.heat');
  if (!square || !MOVES[event.key] || event.altKey || event.ctrlKey || event.metaKey) return;
  const [down, right] = MOVES[event.key];
  const place = square.parentElement;
  const rows = map.tBodies[0].rows;
  let [i, j] = [place.parentElement.rowIndex - 1 + down, place.cellIndex + right];
  for (; rows[i]?.cells[j]; i += down, j += right) {
    const next = rows[i].cells[j].querySelector('.square:not([hidden])');
    if (!next) continue;
    rove(map, next);
    next.focus();
    break;
  }
  event.preventDefault();
}

function markOpened(number) {
  for (const old of document.querySelectorAll('[aria-current]')) old.removeAttribute('aria-current');
  for (const link of document.querySelectorAll(`a[href="#cell-${number}"]`)) link.setAttribute('aria-current', 'true');
  const square = document.querySelector(`.square[href="#cell-${number}"]`);
  if (square && !square.hidden) rove(square.closest('.heat'), square);
}
