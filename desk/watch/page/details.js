// SPDX-License-Identifier: Apache-2.0
//
// Samples, evaluations, settings, events and memory.

const sampleSection = section('Samples', 'Samples');
const evaluationSection = element('section', {class: 'none'});
const configSection = element('section', {class: 'none'});
const eventSection = section('Events', 'Events');
const eventKind = element('select', {'aria-label': 'events: of which kind'});
const eventCount = element('span', {class: 'soft'});
eventSection.made.classList.add('events');
eventSection.body.before(
    element('div', {class: 'toolbar'},
        element('label', {}, 'kind ', eventKind), eventCount));
eventKind.addEventListener('change', drawEvents);
const memorySection = element('section', {class: 'none'});

// ------------------------------------------------------------------- samples

function textBox(title, text) {
  return element(
      'div', {class: 'sample'}, element('h3', {}, title),
      element('pre', {}, text === '' ? '(empty)' : text));
}

// The samples of one prompt: a slider over the steps, beside the first one.
function samplesOf(prompt, samples) {
  const slider = element('input', {
    type: 'range', min: '0', max: String(samples.length - 1),
    value: String(samples.length - 1), 'aria-label': 'the step of the sample',
  });
  const told = element('output', {});
  const grid = element('div', {class: 'grid'});
  const show = () => {
    const sample = samples[slider.value];
    told.textContent = `step ${sample.step.toLocaleString('en')}`;
    slider.setAttribute('aria-valuetext', told.textContent);
    const first = samples[0];
    grid.replaceChildren(
        ...(sample === first ?
                [] :
                [textBox(`step ${first.step}`, first.text)]),
        textBox(`step ${sample.step}`, sample.text));
  };
  slider.addEventListener('input', show);
  show();
  return element(
      'div', {class: 'prompt'},
      element('pre', {class: 'asked'}, prompt),
      samples.length > 1 ?
          element('label', {class: 'slider'}, slider, told) : '',
      grid);
}

function drawSamples() {
  drawSection(sampleSection, (run) => run.samples?.length > 0, (run) => {
    const prompts = new Map();
    for (const sample of run.samples) {
      if (!prompts.has(sample.prompt)) prompts.set(sample.prompt, []);
      prompts.get(sample.prompt).push(sample);
    }
    return [...prompts].map(([prompt, list]) => samplesOf(prompt, list));
  });
}

// --------------------------------------------------------------- evaluations

// A table of runs by names, of which the fewer are columns; `cell(run, name)`
// is a text.
function tableByRun(names, shown, cell) {
  const made = (head, rows, columns, rowText, columnText, text) => table(
      [head, ...columns.map(columnText)],
      rows.map((row) => element(
          'tr', {}, element('td', {class: 'name'}, rowText(row)),
          ...columns.map((column) => element('td', {}, text(row, column))))));
  const label = (run) => run.label, same = (name) => name;
  return shown.length > names.length ?
      made('run', shown, names, label, same, cell) :
      made('', names, shown, same, label, (name, run) => cell(run, name));
}

function drawEvaluations() {
  const shown = runs.filter((run) => run.shown && run.status);
  const names = [...new Set(shown.flatMap(
      (run) => Object.keys(run.status.latest)
                   .filter((name) => name.startsWith('eval_'))))].sort();
  evaluationSection.classList.toggle('none', names.length === 0);
  if (names.length === 0) return;
  evaluationSection.replaceChildren(
      element('h2', {}, 'Evaluations, the latest'),
      tableByRun(names, shown, (run, name) => {
        const value = run.status.latest[name];
        return value === undefined ? '' : String(Number(value.toPrecision(5)));
      }));
}

// ------------------------------------------------------------------ settings

function drawConfig() {
  const shown = runs.filter((run) => run.shown && run.config?.text);
  configSection.classList.toggle('none', shown.length === 0);
  if (shown.length === 0) return;
  const differing = differingFields(shown);
  const several = shown.length > 1;
  const open = new Set([...configSection.querySelectorAll('details[open]')].map(
      (details) => details.dataset.run));
  configSection.replaceChildren(
      element('h2', {}, several ? 'What differs between the runs' : 'Settings'),
      several && differing.length === 0 ?
          element('p', {class: 'soft'}, 'Their configs are the same.') : '',
      differing.length > 0 ? tableByRun(differing, shown, settingOf) : '',
      ...shown.map((run) => {
        const details = element(
            'details', {open: open.has(run.name) ? 'open' : ''},
            element('summary', {}, `The config of ${run.label}`),
            element('pre', {}, run.config.text));
        details.dataset.run = run.name;
        return details;
      }));
}

// -------------------------------------------------------------------- events

// Of these one asks for the rows that the step was trained on.
const ROWS_MATTER = new Set(['spike', 'skipped']);

function eventRow(run, event) {
  const texts = [
    event.kind, event.text,
    event.time > 0 ? new Date(event.time * 1e3).toLocaleString('sv') : '',
    event.seconds ? secondsText(event.seconds) : '',
  ];
  const cells = texts.map(
      (text, i) => element('td', {class: i < 2 ? 'name' : ''}, text));
  if (ROWS_MATTER.has(event.kind)) {
    cells[1].append(
        ' ', button('rows', `show the rows of step ${event.step}`,
            () => showRows(run, event.step)),
        element('code', {}, `trainer who ${run.folder} --step=${event.step}`));
  }
  const step = element(
      'td', {},
      button(String(event.step), `show the curves at step ${event.step}`,
          () => lookAt(run, event.step)));
  return element(
      'tr', {class: LOUD.has(event.kind) ? 'loud' : ''}, ...cells, step);
}

function drawEvents() {
  const MOST = 200;
  drawSection(eventSection, (run) => run.events?.length > 0, (run) => {
    const kinds = [...new Set(run.events.map(({kind}) => kind))].sort();
    offer(
        eventKind, ['all', ...kinds].map((kind) => [kind, kind]),
        eventKind.value || 'all');
    const wanted = run.events.filter(
        ({kind}) => eventKind.value === 'all' || kind === eventKind.value);
    eventCount.textContent =
        wanted.length > MOST ? `the latest ${MOST} of ${wanted.length}` : '';
    const rows = wanted.slice(-MOST).reverse().map(
        (event) => eventRow(run, event));
    return [table(['kind', 'what', 'time', 'took', 'step'], rows, 2)];
  });
}

// Zooms in around a step of a run.
function lookAt(run, step) {
  if (!run.curves) return;
  const whole = wholeRange();
  const width = (whole.max - whole.min) / 20;
  const x = xOfStep(run, step);
  setZoom({min: Math.max(x - width / 2, 0), max: x + width / 2});
  curveGrid.scrollIntoView();
}

// -------------------------------------------------------------------- memory

function drawMemory() {
  const bars = runs
      .filter((run) => run.shown && Object.keys(run.summary?.memory || {}).length)
      .map((run) => ({label: run.label.split(' · '), memory: run.summary.memory}));
  memorySection.classList.toggle('none', bars.length === 0);
  memorySection.chart?.destroy();
  if (bars.length === 0) return;
  const box = element('div', {class: 'chart wide'});
  memorySection.replaceChildren(element('h2', {}, 'Memory'), box);
  memorySection.chart = drawInto(box, memoryChart(bars));
}
