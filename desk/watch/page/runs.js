// SPDX-License-Identifier: Apache-2.0
//
// The table of runs, where one chooses them, and tells them what to do.

const runBody = element('tbody');
const runRows = [];  // by index: {row, cells}
const RUN_COLUMNS = [
  'run', 'state', 'step', 'time left', 'loss', 'evaluation', 'speed',
  'baseline', 'control',
];

// What happened to a request, for screen readers, too.
const saying = element('p', {class: 'saying', role: 'status'});

function say(text) {
  clearTimeout(say.timer);
  saying.textContent = text;
}

// The request that a run hasn't answered yet: {run, id}, or null.
let asked = null;

// Shows the answer, which is an event, where one has asked; for some time.
function sayAnswer() {
  const answer = asked?.run.events?.find(({id}) => id === asked.id);
  if (!answer) return;
  say(`${asked.run.label}: ${answer.text}`);
  asked = null;
  say.timer = setTimeout(() => say(''), 20000);
}

function runTable() {
  return element(
      'div', {class: 'scroll'},
      element(
          'table', {class: 'runs'},
          element(
              'thead', {},
              element(
                  'tr', {},
                  ...RUN_COLUMNS.map(
                      (name, i) => element(
                          'th', {
                            scope: 'col', class: i < 2 ? 'name' : '',
                            'data-column': name,
                          },
                          name)))),
          runBody));
}

function button(text, label, act) {
  const made = element('button', {type: 'button', 'aria-label': label}, text);
  made.addEventListener('click', act);
  return made;
}

function setShown(run, on) {
  run.shown = on;
  document.getElementById(`shown${run.index}`).checked = on;
  drawAll();
}

function addRunRow(run) {
  const shown = element(
      'input', {type: 'checkbox', checked: 'checked', id: `shown${run.index}`});
  shown.addEventListener('change', () => setShown(run, shown.checked));
  const baseline = element('input', {
    type: 'checkbox',
    'aria-label': `lay ${run.name} below the others as the baseline`,
  });
  baseline.addEventListener('change', () => {
    view.baseline = baseline.checked ? run.index : null;
    runRows.forEach((other) => {
      if (other.baseline !== baseline) other.baseline.checked = false;
    });
    drawCurves();
  });
  const label = element('span');
  const cells = Object.fromEntries(RUN_COLUMNS.map((name, i) => {
    const cell = element('td', {class: i < 2 ? 'name' : ''});
    cell.dataset.column = name;
    return [name, cell];
  }));
  cells.run.append(element(
      'label', {for: shown.id}, shown, lineSample(runColor(run), runDash(run)),
      label));
  cells.baseline.append(baseline);
  cells.step.append(element('span'), element('progress', {
                      max: '1', 'aria-label': `progress of ${run.name}`}));
  const row = element('tr', {}, ...Object.values(cells));
  highlightBy(row, run);
  runBody.append(row);
  return runRows[run.index] = {row, cells, label, baseline, told: false};
}

function addControls(run, cell) {
  const end = element('input', {
    type: 'number', min: '1', step: '1', value: String(run.status.max_steps),
    'aria-label': `the last step of ${run.name}`,
  });
  cell.append(
      button('Save', `have ${run.name} save`, () => tell(run, {do: 'save'})),
      button('Stop', `have ${run.name} save and stop`, () => {
        if (confirm(`Have ${run.name} save and stop?`)) {
          tell(run, {do: 'stop'});
        }
      }),
      end,
      button('Set end', `have ${run.name} end after this step`, () => {
        tell(run, {do: 'max_steps', value: Number(end.value)});
      }));
}

function speedText(latest) {
  for (const [name, value] of Object.entries(latest)) {
    if (!name.endsWith('_per_second')) continue;
    return `${shortNumber(value)} ${name.replace('_per_second', '')}/s`;
  }
  return '';
}

function drawRun(run) {
  const {row, cells, label, told} = runRows[run.index] || addRunRow(run);
  const {status} = run;
  const most = status.max_steps;
  const number = (name) => status.latest[name] === undefined ?
      '' : Number(status.latest[name].toPrecision(5)).toString();
  row.classList.toggle('hidden', !run.shown);
  // A sweep's runs are called by their settings anyway.
  label.replaceChildren(
      run.label, run.label === run.name || report.sweep ?
          '' : element('small', {class: 'soft'}, ` ${run.name}`));
  row.title = run.folder;
  const lines = status.unreadable_lines;
  cells.state.textContent = status.text + (lines > 0 ?
      `; ${lines} ${lines === 1 ? 'line' : 'lines'} of metrics.jsonl unreadable` :
      '');
  cells.state.dataset.state =
      status.state === 'ended' ? status.text : status.state;
  cells.step.firstChild.textContent = status.step.toLocaleString('en') +
      (most > 0 ? ` of ${most.toLocaleString('en')}` : '');
  cells.step.lastChild.value = most > 0 ? Math.min(status.step / most, 1) : 0;
  cells['time left'].textContent =
      status.seconds_left === null ? '' : clockText(status.seconds_left);
  cells.loss.textContent = number('loss');
  cells.evaluation.textContent = number('eval_loss');
  cells.speed.textContent = speedText(status.latest);
  if (told !== status.control) {
    cells.control.replaceChildren();
    if (status.control && report.live) addControls(run, cells.control);
    runRows[run.index].told = status.control;
  }
}

function drawRuns() {
  // There is nothing to lay one run below.
  runBody.parentElement.classList.toggle('single', runs.length === 1);
  runs.filter((run) => run.status).forEach(drawRun);
}

// A sweep's points, the best first, each with links to its runs' folders.
function sweepParts({text, columns, points, config}) {
  const rows = points.map(({cells, runs}, i) => element(
      'tr', {class: i === 0 ? 'loud' : ''},
      ...cells.map((cell) => element('td', {class: 'name'}, cell)),
      element('td', {class: 'name'}, element('span', {}, ...runs.flatMap(
          ({seed, folder}) => [
            element('a', {href: encodeURI(`${folder}/`)}, `seed ${seed}`), ' ',
          ])))));
  return [
    element('p', {class: 'soft'}, text),
    table([...columns, 'runs'], rows, columns.length + 1),
    element('details', {}, element('summary', {}, 'The sweep\'s config'),
            element('pre', {}, config)),
  ];
}

// --------------------------------------------------------------- the toolbar

function choice(name, options, act) {
  const select = element(
      'select', {},
      ...options.map(
          ([value, text]) => element('option', {value: String(value)}, text)));
  select.addEventListener('change', () => act(select.value));
  return element('label', {}, `${name} `, select);
}

function toggle(name, on, act) {
  const box = element('input', {type: 'checkbox', checked: on});
  box.addEventListener('change', () => act(box.checked));
  return element('label', {}, box, ` ${name}`);
}

function toolbar() {
  const smoothing = element('input', {
    type: 'range', min: '0', max: '0.99', step: '0.01', value: '0',
    'aria-label': 'smoothing',
  });
  smoothing.addEventListener('input', () => {
    view.smoothing = Number(smoothing.value);
    drawCurves();
  });
  return element(
      'div', {class: 'toolbar', role: 'toolbar', 'aria-label': 'curves'},
      choice(
          'by', [['step', 'step'], ['tokens', 'tokens'], ['time', 'time']],
          (value) => {
            view.x = value;
            setZoom(null);
          }),
      element('label', {}, 'smooth ', smoothing),
      toggle('logarithmic', '', (on) => {
        view.logarithmic = on;
        drawCurves();
      }),
      toggle('events', 'checked', (on) => {
        view.marks = on;
        drawCurves();
      }),
      element(
          'span', {class: 'buttons'},
          button('−', 'look from further away', () => changeZoom(2, 0)),
          button('+', 'look closer', () => changeZoom(0.5, 0)),
          button('◀', 'earlier', () => changeZoom(1, -0.25)),
          button('▶', 'later', () => changeZoom(1, 0.25)),
          button('all', 'show the whole run', () => setZoom(null))));
}
