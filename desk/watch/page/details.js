// SPDX-License-Identifier: Apache-2.0
//
// Samples, evaluations, settings, events and memory.

const sampleSection = section('Samples', 'Samples');
const evaluationSection = element('section', {class: 'none'});
const configSection = element('section', {class: 'none'});
const eventSection = element('section', {class: 'events none'});
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

// A table of a row a name, a column a run; `cell(run, name)` is a text.
function tableByRun(names, shown, head, cell) {
  return table(
      [head, ...shown.map((run) => run.name)],
      names.map((name) => element(
          'tr', {}, element('td', {class: 'name'}, name),
          ...shown.map((run) => element('td', {}, cell(run, name))))));
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
      tableByRun(names, shown, 'measured', (run, name) => {
        const value = run.status.latest[name];
        return value === undefined ? '' : String(Number(value.toPrecision(6)));
      }));
}

// ------------------------------------------------------------------ settings

function drawConfig() {
  const shown = runs.filter((run) => run.shown && run.config?.text);
  configSection.classList.toggle('none', shown.length === 0);
  if (shown.length === 0) return;
  const fields = [...new Set(
      shown.flatMap((run) => Object.keys(run.config.fields)))];
  const value = (run, field) => run.config.fields[field] ?? '';
  const differing = fields.filter(
      (field) => field !== 'output_dir' &&
          new Set(shown.map((run) => value(run, field))).size > 1);
  const several = shown.length > 1;
  const open = new Set([...configSection.querySelectorAll('details[open]')].map(
      (details) => details.dataset.run));
  configSection.replaceChildren(
      element('h2', {}, several ? 'What differs between the runs' : 'Settings'),
      several && differing.length === 0 ?
          element('p', {class: 'soft'}, 'Their configs are the same.') : '',
      differing.length > 0 ? tableByRun(differing, shown, 'field', value) : '',
      ...shown.map((run) => {
        const details = element(
            'details', {open: open.has(run.name) ? 'open' : ''},
            element('summary', {}, `The config of ${run.name}`),
            element('pre', {}, run.config.text));
        details.dataset.run = run.name;
        return details;
      }));
}

// -------------------------------------------------------------------- events

let eventKind = 'all';
// Of these one asks for the rows that the step was trained on.
const ROWS_MATTER = new Set(['spike', 'skipped']);

function drawEvents() {
  const MOST = 200;
  const all = runs.filter((run) => run.shown).flatMap(
      (run) => (run.events || []).map((event) => ({run, event})));
  eventSection.classList.toggle('none', all.length === 0);
  if (all.length === 0) return;
  const kinds = [...new Set(all.map(({event}) => event.kind))].sort();
  const wanted = all.filter(
      ({event}) => eventKind === 'all' || event.kind === eventKind);
  wanted.sort((a, b) => b.event.time - a.event.time);
  const pick = choice(
      'kind', [['all', 'all'], ...kinds.map((kind) => [kind, kind])], (value) => {
        eventKind = value;
        drawEvents();
      });
  pick.querySelector('select').value = eventKind;
  const rows = wanted.slice(0, MOST).map(({run, event}) => {
    const time = event.time > 0 ?
        new Date(event.time * 1e3).toLocaleString('sv') : '';
    const texts = [
      event.kind, event.text, run.name, time,
      event.seconds ? secondsText(event.seconds) : '',
    ];
    const step = element(
        'td', {},
        button(String(event.step), `show the curves at step ${event.step}`,
            () => lookAt(run, event.step)));
    const cells = texts.map(
        (text, i) => element('td', {class: i < 3 ? 'name' : ''}, text));
    if (ROWS_MATTER.has(event.kind)) {
      cells[1].append(element(
          'code', {}, `trainer who ${run.folder} --step=${event.step}`));
    }
    return element(
        'tr', {class: LOUD.has(event.kind) ? 'loud' : ''}, ...cells, step);
  });
  const focused = eventSection.contains(document.activeElement) &&
      document.activeElement.tagName === 'SELECT';
  eventSection.replaceChildren(
      element('h2', {}, 'Events'),
      element('div', {class: 'toolbar'}, pick,
          wanted.length > MOST ? ` the latest ${MOST} of ${wanted.length}` : ''),
      table(['kind', 'what', 'run', 'time', 'took', 'step'], rows, 3));
  if (focused) pick.querySelector('select').focus();
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
      .map((run) => ({label: run.name, memory: run.summary.memory}));
  memorySection.classList.toggle('none', bars.length === 0);
  memorySection.chart?.destroy();
  if (bars.length === 0) return;
  const box = element('div', {class: 'chart wide'});
  memorySection.replaceChildren(element('h2', {}, 'Memory'), box);
  memorySection.chart = drawInto(box, memoryChart(bars));
}
