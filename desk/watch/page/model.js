// SPDX-License-Identifier: Apache-2.0
//
// What is known of the runs, and how the page asks for it. units.js, curves.js,
// runs.js, ranks.js, details.js, rows.js and main.js follow in the same script.

// By index: {index, shown, label, name, status, config, summary, events, samples,
// ranks, curves, detail}. All but the first three come from the server
// (docs/watch.md); `label` is what users call it, `detail` a part of the curves,
// read more finely.
const runs = [];

// What the user has chosen. `selected`: the index of the run whose ranks,
// events, samples and rows are shown. `zoom`: {min, max} on the x axis, or null.
const view = {
  x: 'step',
  smoothing: 0,
  logarithmic: false,
  marks: true,
  baseline: null,
  selected: 0,
  highlight: null,  // the index of the run that is pointed at
  zoom: null,
};

const key = new URLSearchParams(location.search).get('key') || '';

function address(path, query = {}) {
  return `${path}?${new URLSearchParams({...query, key})}`;
}

// Brings a run up to date. Returns the names of the parts that have changed.
function take(update) {
  while (runs.length <= update.index) {
    runs.push({index: runs.length, shown: true, name: '', label: '', detail: null});
  }
  const run = runs[update.index];
  const {curves, ...parts} = update;
  Object.assign(run, parts);
  for (const [name, value] of Object.entries(parts.status?.latest || {})) {
    run.status.latest[name] = value ?? NaN;  // JSON has no NaN
  }
  if (curves) takeCurves(run, curves);
  if (update.config) nameRuns();
  return Object.keys(update);
}

function settingOf(run, field) {
  return run.config.fields[field] ?? '';
}

// The fields that aren't the same in all of `some`, which have configs.
function differingFields(some) {
  const fields = [...new Set(
      some.flatMap((run) => Object.keys(run.config.fields)))];
  return fields.filter(
      (field) => field !== 'name' && field !== 'output_dir' &&
          new Set(some.map((run) => settingOf(run, field))).size > 1);
}

// Sets labels: what differs between the runs, where that is short; else their
// names, without a folder that they share.
function nameRuns() {
  const some = runs.filter((run) => run.config?.text);
  const fields = differingFields(some);
  const settings = (run) => fields.map((field) => {
    const value = settingOf(run, field).replace(/^capstan\./, '') || 'unset';
    return `${field.split('.').at(-1)} ${value}`;
  }).join(' · ');
  const told = some.map(settings);
  const short = fields.length <= 4 && new Set(told).size === runs.length &&
      told.every((text) => text !== '' && text.length <= 60);
  const shared = runs.length > 1 &&
      new Set(runs.map((run) => run.name.split('/')[0])).size === 1;
  for (const run of runs) {
    run.label = short ? settings(run) :
        shared        ? run.name.split('/').slice(1).join('/') || run.name :
                        run.name;
  }
}

// Replaces the buckets from curves.from on.
function takeCurves(run, curves) {
  if (curves.from === 0 || !run.curves || run.curves.width !== curves.width) {
    run.curves = curves;
    return;
  }
  run.curves.left_out = curves.left_out;
  for (const [name, added] of Object.entries(curves.series)) {
    const series = run.curves.series[name] ??= {at: [], mean: []};
    const kept = lowerBound(series.at, curves.from);
    if (!series.low && (added.low || kept === 0)) {
      series.low = [...series.mean];
      series.high = [...series.mean];
    }
    for (const list of ['at', 'mean', 'low', 'high']) {
      if (!series[list]) continue;
      series[list].length = kept;
      series[list].push(...(added[list] || added.mean));
    }
  }
}

// The first index whose value isn't below `value`.
function lowerBound(sorted, value) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < value) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// ------------------------------------------------------------------- x axes

const AXES = {
  step: {title: 'optimizer step', text: (x) => x.toLocaleString('en')},
  tokens: {title: 'tokens', text: (x) => shortNumber(x)},
  time: {title: 'time since its start', text: (x) => clockText(x)},
};

function shortNumber(value) {
  const size = Math.abs(value);
  for (const [unit, name] of [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k']]) {
    if (size >= unit) return `${Number((value / unit).toPrecision(3))} ${name}`;
  }
  return size >= 1e-3 || size === 0 ? String(Number(value.toPrecision(4))) :
                                      value.toExponential(2);
}

// 4000 -> "1:06:40".
function clockText(seconds) {
  const sign = seconds < 0 ? '-' : '';
  const whole = Math.round(Math.abs(seconds));
  const two = (number) => String(number).padStart(2, '0');
  const hours = Math.floor(whole / 3600);
  const minutes = Math.floor(whole / 60) % 60;
  return sign +
      (hours > 0 ? `${hours}:${two(minutes)}:${two(whole % 60)}` :
                   `${minutes}:${two(whole % 60)}`);
}

// What each bucket of `curves` is on the x axis: {at, x}, both ascending.
function axisOf(curves, axis) {
  curves.axes ??= {};
  const steps = curves.series.step;
  if (!steps) return {at: [], x: []};
  const known = curves.axes[axis];
  if (known && known.at.length === steps.at.length &&
      known.at[0] === steps.at[0] && known.last === steps.mean.at(-1)) {
    return known;
  }
  let x = steps.mean;
  if (axis === 'tokens') {
    x = along(steps.at, curves.series.tokens || curves.series.samples);
  } else if (axis === 'time') {
    x = curves.series.time ? along(steps.at, curves.series.time) :
                             summedTimes(curves);
    const origin = curves.origin ?? x[0] ?? 0;
    x = x.map((time) => time - origin);
  }
  return curves.axes[axis] = {at: steps.at, x, last: steps.mean.at(-1)};
}

// The series' value at or before each bucket.
function along(at, series) {
  if (!series) return at.map(() => NaN);
  let value = at.length > 0 && at[0] === 0 && series.at[0] !== 0 ?
      0 : series.mean[0];
  let next = 0;
  return at.map((bucket) => {
    while (next < series.at.length && series.at[next] <= bucket) {
      value = series.mean[next++];
    }
    return value;
  });
}

// Older runs have no times: their steps', added up.
function summedTimes(curves) {
  const steps = curves.series.step;
  const seconds = along(steps.at, curves.series.step_seconds);
  let time = 0;
  return steps.mean.map((step, i) => {
    time += seconds[i] * (step - (i > 0 ? steps.mean[i - 1] : 0));
    return time;
  });
}

// Where a step is on the x axis, and the other way round.
function xOfStep(run, step) {
  return between(
      run.curves.series.step?.mean || [], axisOf(run.curves, view.x).x, step);
}

function stepOfX(run, x) {
  return between(
      axisOf(run.curves, view.x).x, run.curves.series.step?.mean || [], x);
}

function between(from, to, value) {
  if (from.length === 0) return 0;
  const i = Math.min(Math.max(lowerBound(from, value), 1), from.length - 1);
  if (from.length === 1 || from[i] === from[i - 1]) return to[i] ?? to[0];
  const share = (value - from[i - 1]) / (from[i] - from[i - 1]);
  return to[i - 1] + Math.min(Math.max(share, 0), 1) * (to[i] - to[i - 1]);
}

// The whole range of the x axis, of the runs that are shown.
function wholeRange() {
  let max = 0;
  for (const run of shownRuns()) {
    const {x} = axisOf(run.curves, view.x);
    if (x.length > 0) max = Math.max(max, x[x.length - 1]);
  }
  return {min: 0, max: max || 1};
}

function shownRuns() {
  return runs.filter((run) => run.shown && run.curves);
}

// ------------------------------------------------------------------ requests

// Calls `changed` with the parts' names after each update.
function follow(changed) {
  const source = new EventSource(address('/api/events'));
  source.onmessage = (event) => changed(take(JSON.parse(event.data)));
  source.onerror = () => say(
      'The server has gone, or can\'t be reached; what is here stays. Asking ' +
      'again ..');
  source.onopen = () => say('');
}

// Reads what of each run's curves is in view more finely.
async function refine() {
  const zoom = view.zoom;
  if (!report.live || !zoom) return;
  await Promise.all(shownRuns().map(async (run) => {
    const from = Math.max(0, Math.floor(stepOfX(run, zoom.min)) - 1);
    const to = Math.ceil(stepOfX(run, zoom.max)) + 1;
    const answer = await fetch(
        address('/api/curves', {run: run.index, from, to, points: 1000}));
    if (!answer.ok || view.zoom !== zoom) return;
    const origin = run.curves.series.time?.mean[0];
    run.detail = Object.assign(await answer.json(), {origin});
  }));
}

async function tell(run, words) {
  const answer = await fetch(address('/api/control'), {
    method: 'POST',
    headers: {'Content-Type': 'application/json'},
    body: JSON.stringify({run: run.index, ...words}),
  });
  const {error, id} = await answer.json();
  say(error ? error.message : `${run.label} was told; it will answer ..`);
  asked = error ? null : {run, id};
  sayAnswer();
}
