// SPDX-License-Identifier: Apache-2.0
//
// The rows that a step was trained on, which the server has `trainer who` find:
// for a click on a curve or an event, or a step that is typed in.

// Of these charts a click on any point asks for its step's rows, of others one
// on an event of ROWS_MATTER.
const ROW_CHARTS = new Set(['loss', 'grad_norm']);

const rowSection = section('Rows', 'Rows of a step');
const rowStep = element('input', {
  type: 'number', min: '1', step: '1', value: '1', 'aria-label': 'the step',
});
const rowButton = button('Show its rows', 'show the rows of this step', () => {
  showRows(runs[rowSection.select.value], Number(rowStep.value));
});
const rowSaying = element('p', {class: 'soft', role: 'status'});
rowSection.made.classList.add('rows');
rowSection.body.before(
    element('div', {class: 'toolbar'},
        element('label', {}, 'step ', rowStep), rowButton),
    rowSaying);

function drawRows() {
  const some = runs.filter((run) => run.shown && run.status);
  rowSection.made.classList.toggle('none', some.length === 0);
  offerRuns(rowSection.select, some);
}

// Where the pointer is: {run, step}, or null.
function stepAt(box, event) {
  const {chart} = charts.get(box.dataset.metric);
  const {x} = chart.scales;
  const pixel = event.clientX - chart.canvas.getBoundingClientRect().left;
  const distance = (mark) => Math.abs(x.getPixelForValue(mark.x) - pixel);
  const near = marks()
      .filter((mark) => ROWS_MATTER.has(mark.event.kind) && distance(mark) < 7)
      .sort((a, b) => distance(a) - distance(b));
  if (near.length > 0) return {run: near[0].run, step: near[0].event.step};
  if (!ROW_CHARTS.has(box.dataset.metric)) return null;
  const [item] = chart.getElementsAtEventForMode(
      event, 'nearest', {axis: 'xy', intersect: false}, true);
  if (!item) return null;
  const {run, data} = chart.data.datasets[item.datasetIndex];
  const step = Math.round(stepOfX(runs[run], data[item.index].x));
  return {run: runs[run], step: Math.max(step, 1)};
}

function rowBox(row, all) {
  const facts = [
    `rank ${row.rank}`, `micro-batch ${row.micro_batch}`, `row ${row.row}`,
    `sample ${row.sample.toLocaleString('en')}`,
  ];
  if (row.loss !== null) {
    const share = 100 * row.loss_sum / (all.loss * all.targets);
    facts.push(`loss ${row.loss.toFixed(4)}, ${share.toFixed(1)} % of the step's`);
  }
  facts.push(`${row.trained_tokens.toLocaleString('en')} of ` +
      `${plural(row.tokens, 'token')} trained on`);
  const texts = row.texts.length > 0 ? row.texts :
      [{name: '', text: (row.tensors || []).join('\n')}];
  return element(
      'div', {class: 'sample'}, element('h3', {}, facts.join(' · ')),
      ...texts.map(({name, text}) => element(
          'pre', {tabindex: '0'}, name ? `${name}: ${text}` : text)));
}

function rowsText(run, found) {
  const all = found.global_batch_size;
  const count = found.rows.length < all ?
      `the ${found.rows.length} of ${plural(all, 'row')} that add most to its loss` :
      plural(all, 'row');
  const weights = found.weights_are_the_steps ?
      'the weights that it was computed with' :
      found.weights ? `the weights in ${found.weights}` :
                      'the weights of the beginning';
  const recorded = found.recorded_loss === null ?
      '' : `, in the run ${found.recorded_loss.toFixed(4)}`;
  const loss = found.loss === null ?
      '' : ` Loss ${found.loss.toFixed(4)} by ${weights}${recorded}.`;
  return `${run.label}, step ${found.step.toLocaleString('en')}: ${count}.` +
      [loss, ...found.notes.map((note) => ` Note: ${note}.`)].join('');
}

// Has the rows of a run's step shown.
async function showRows(run, step) {
  view.selected = run.index;
  drawSelected();
  rowStep.value = step;
  rowSection.body.replaceChildren();
  rowSection.made.scrollIntoView({block: 'nearest'});
  if (!report.live) {
    rowSaying.textContent = 'This page has no server to find them; this does:';
    rowSection.body.append(
        element('code', {}, `trainer who ${run.folder} --step=${step}`));
    return;
  }
  const asked = showRows.asked = {};
  rowSaying.textContent =
      `Looking for the rows of step ${step.toLocaleString('en')} of ${run.label} ..`;
  let found;
  try {
    const answer = await fetch(address('/api/rows', {run: run.index, step}));
    found = await answer.json();
  } catch {
    found = {error: {message: 'the server can\'t be reached'}};
  }
  if (showRows.asked !== asked) return;
  if (found.error) {
    rowSaying.textContent = `Step ${step}: ${found.error.message}`;
    return;
  }
  rowSaying.textContent = rowsText(run, found);
  rowSection.body.replaceChildren(
      ...found.rows.map((row) => rowBox(row, found)));
  rowSection.made.scrollIntoView({block: 'start'});
}
