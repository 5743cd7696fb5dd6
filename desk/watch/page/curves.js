// SPDX-License-Identifier: Apache-2.0
//
// The curves: a chart a metric, with the runs' lines and events.

const TITLES = {
  loss: 'Training loss',
  eval_loss: 'Evaluation loss',
  lr: 'Learning rate',
  grad_norm: 'Gradient norm, before clipping',
  tokens_per_second: 'Tokens a second',
  samples_per_second: 'Samples a second',
  step_seconds: 'Time of a step',
  mfu: 'Model FLOPs utilisation (MFU)',
  gpu_allocated_bytes: 'GPU memory in tensors',
  gpu_reserved_bytes: 'GPU memory reserved',
  gpu_peak_bytes: 'GPU memory in tensors, peak',
  rss_bytes: 'Memory of the ranks\' processes',
  cpu_cores: 'CPU cores busy, of each rank',
  steal: 'CPU time stolen by other machines',
  iowait: 'CPU time waiting for disks',
  exposed_seconds: 'Communication that a step waits for',
  communication_seconds: 'Communication in a step',
  bytes_sent: 'Bytes sent by a rank in a step',
  padding: 'Padding, share of positions',
  loss_scale: 'Loss scale',
  skipped: 'Skipped steps',
  spike: 'Loss spikes, in standard deviations',
};
const NO_CHARTS =
    new Set(['step', 'time', 'tokens', 'samples', 'trained_tokens']);
// Lines across the whole chart; others are short, at its foot.
const LOUD = new Set([
  'resume', 'restart', 'skipped', 'spike', 'warning', 'control', 'stop',
]);
// Not in charts.
const SILENT = new Set(['start', 'evaluation', 'note', 'end']);
const MARK_COLORS = {
  skipped: '--bad', spike: '--bad', warning: '--bad', restart: '--bad',
  save: '--good', control: '--accent',
};

const charts = new Map();  // by metric: {box, chart, visible}
const curveGrid = element('div', {class: 'grid'});
const leftOut = element('p', {class: 'soft'});  // what has no chart

function titleOf(metric) {
  return Object.hasOwn(TITLES, metric) ? TITLES[metric] : metric.replace(/^eval_/, 'Evaluation: ')
      .replaceAll('_', ' ').replace(/^./, (first) => first.toUpperCase());
}

// The metrics that are more than zeros: losses and evaluations first, then
// those of TITLES.
function metrics() {
  const names = new Set();
  for (const run of shownRuns()) {
    for (const source of [run.curves, run.ranks?.usage]) {
      for (const [name, series] of Object.entries(source?.series || {})) {
        if (series.mean.some((value) => value !== 0)) names.add(name);
      }
    }
  }
  const known = Object.keys(TITLES);
  const rank = (name) => known.indexOf(name) >= 2 ? known.indexOf(name) + 100 :
      name === 'loss'             ? 0 :
      name === 'eval_loss'        ? 1 :
      name.startsWith('eval_')    ? 2 :
                                    1000;
  return [...names].filter((name) => !NO_CHARTS.has(name))
      .sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1));
}

function runColor(run) {
  return at(COLORS, run.index);
}

function runDash(run) {
  return at(DASHES, Math.floor(run.index / COLORS.length));
}

// On the axis of time a run that went on later has a gap there.
const LATER = new Set(['resume', 'restart']);

// `points` of curves whose steps are `steps`, at `x`, with such gaps.
function withGaps(run, points, {steps, x}) {
  if (view.x !== 'time') return points;
  const all = [...points];
  for (const {kind, step} of run.events || []) {
    const first = x[lowerBound(steps, step + 0.5)];
    const place = all.findIndex((point) => point.x >= first);
    if (!LATER.has(kind) || place < 1 || isNaN(all[place - 1].y)) continue;
    all.splice(place, 0, {x: first, y: NaN, low: NaN, high: NaN});
  }
  return all;
}

// The curve's points: {x, y, low, high}.
function pointsOf(run, metric) {
  let source = run.curves;
  const detail = run.detail?.series[metric];
  if (view.zoom && detail && detail.at.length > 0) source = run.detail;
  const series = source.series[metric];
  if (series) {
    const axis = axisOf(source, view.x);
    const points = series.mean.map(
        (y, i) => ({
          x: axis.x[lowerBound(axis.at, series.at[i])],
          y,
          low: series.low ? series.low[i] : y,
          high: series.high ? series.high[i] : y,
        }));
    return withGaps(
        run, points, {steps: source.series.step?.mean || [], x: axis.x});
  }
  const usage = run.ranks?.usage.series[metric];
  if (!usage) return [];
  return usage.mean.map((y, i) => ({
                          x: xOfStep(run, usage.at[i] * run.ranks.usage.width),
                          y,
                          low: usage.low ? usage.low[i] : y,
                          high: usage.high ? usage.high[i] : y,
                        }));
}

// An exponential moving average, corrected for its start; `weight` of the past.
function smoothed(points, weight) {
  let sum = 0, weights = 0;
  return points.map((point) => {
    if (isNaN(point.y)) return point;
    sum = weight * sum + (1 - weight) * point.y;
    weights = weight * weights + (1 - weight);
    return {x: point.x, y: sum / weights};
  });
}

// A dataset's colours, paler while the user looks at another run.
function emphasize(dataset) {
  const {color} = dataset;
  const faint = view.highlight !== null && view.highlight !== dataset.run;
  dataset.borderColor = faint ? `${color.slice(0, 7)}28` : color;
  return dataset;
}

// Has one run's lines stand out in all charts; null: none.
function highlight(index) {
  if (runs.length === 1 || view.highlight === index) return;
  view.highlight = index;
  for (const marked of document.querySelectorAll('[data-run-index]')) {
    marked.classList.toggle(
        'highlighted', marked.dataset.runIndex === String(index));
  }
  for (const {chart, visible} of charts.values()) {
    if (!chart || !visible) continue;
    chart.data.datasets.forEach(emphasize);
    chart.update('none');
  }
}

// Has an element, which is a run's, do so while it is pointed at.
function highlightBy(made, run) {
  made.dataset.runIndex = run.index;
  for (const [event, index] of [
    ['pointerenter', run.index], ['focusin', run.index],
    ['pointerleave', null], ['focusout', null],
  ]) {
    made.addEventListener(event, () => highlight(index));
  }
}

function datasetsOf(run, metric, alone) {
  const points = pointsOf(run, metric);
  if (points.length === 0) return [];
  const color = runColor(run);
  const dots = points.length <= 30 ? 3 : 0;
  const baseline = run.index === view.baseline;
  const weight = points.length > 30 ? view.smoothing : 0;
  const main = {
    run: run.index,
    label: run.label + (baseline ? ' (baseline)' : ''),
    color,
    data: weight > 0 ? smoothed(points, weight) : points,
    ...lineStyle(color, runDash(run), 100 - run.index),
    pointRadius: dots,
    pointStyle: dots ? 'circle' : 'line',
  };
  // Chart.js keeps a point's colour, but asks a function each time.
  if (dots) {
    main.pointBackgroundColor = main.pointBorderColor =
        ({dataset}) => dataset.borderColor;
  }
  if (baseline) {
    Object.assign(main, {borderWidth: 7, color: color + '66', order: 300});
  }
  const pale = {
    run: run.index,
    color: color + '40',
    ...lineStyle(color + '40', [], 200),
    borderWidth: 1,
    pointHitRadius: 0,
  };
  if (weight > 0 && runs.length <= 6) {
    return [main, {...pale, data: points}];
  }
  if (!alone || !points.some((point) => point.low < point.high)) return [main];
  const edge = (name) => points.map((point) => ({x: point.x, y: point[name]}));
  const none = {...pale, borderWidth: 0, backgroundColor: color + '30'};
  return [
    main, {...none, data: edge('low')},
    {...none, data: edge('high'), fill: '-1'},
  ];
}

// A run that went on later did so with the step after.
function xOfEvent(run, {kind, step}) {
  const steps = run.curves.series.step?.mean || [];
  const next = lowerBound(steps, step + 0.5);
  return view.x === 'time' && LATER.has(kind) && next < steps.length ?
      axisOf(run.curves, view.x).x[next] : xOfStep(run, step);
}

// The events that a chart shows: {x, event}, of the runs shown.
function marks() {
  if (!view.marks) return [];
  return shownRuns().flatMap(
      (run) => (run.events || [])
                   .filter(({kind}) => !SILENT.has(kind))
                   .map((event) => ({x: xOfEvent(run, event), event, run})));
}

function markColor(kind) {
  return cssColor(Object.hasOwn(MARK_COLORS, kind) ? MARK_COLORS[kind] : '--soft');
}

function markDash(kind) {
  return LOUD.has(kind) ? [3, 3] : [];
}

// The marks in view from left to right, each place's of a kind once; only the
// run's that is pointed at.
function marksInView({chartArea: {left, right}, scales: {x}}, marks) {
  const places = new Map();
  for (const {x: value, event: {kind}, run} of marks) {
    if (view.highlight !== null && view.highlight !== run.index) continue;
    const pixel = Math.round(x.getPixelForValue(value));
    if (pixel < left || pixel > right) continue;
    places.set(`${kind} ${pixel}`, {kind, pixel});
  }
  return [...places.values()].sort((a, b) => a.pixel - b.pixel);
}

// Draws options.plugins.eventMarks.marks; the loud ones with their kinds, where
// those don't cover each other.
const eventMarks = {
  id: 'eventMarks',
  afterDatasetsDraw(chart, args, options) {
    const ROW = 12;
    const {ctx, chartArea: {top, bottom, left, right}} = chart;
    const free = [left, left, left];  // where each row of kinds has room
    const told = {};                  // where the last one of a kind ends
    ctx.save();
    ctx.font = `10px ${Chart.defaults.font.family}`;
    for (const {kind, pixel} of marksInView(chart, options.marks || [])) {
      ctx.strokeStyle = ctx.fillStyle = markColor(kind);
      ctx.lineWidth = 1;
      ctx.setLineDash(markDash(kind));
      ctx.beginPath();
      ctx.moveTo(pixel, bottom);
      ctx.lineTo(pixel, LOUD.has(kind) ? top : bottom - 10);
      ctx.stroke();
      if (!LOUD.has(kind)) continue;
      const {width} = ctx.measureText(kind);
      const place = Math.min(pixel + 3, right - width);
      const row = free.findIndex((from) => from <= place);
      if (row < 0 || told[kind] > place) continue;
      told[kind] = free[row] = place + width + 4;
      ctx.strokeStyle = cssColor('--box');
      ctx.lineWidth = 3;
      ctx.setLineDash([]);
      ctx.strokeText(kind, place, top + ROW * (row + 1) - 3);
      ctx.fillText(kind, place, top + ROW * (row + 1) - 3);
    }
    ctx.restore();
  },
};

// The events within a few pixels of the tooltip's point, a line each.
function marksAt(items) {
  if (items.length === 0) return [];
  const {chart, parsed} = items[0];
  const {x} = chart.scales;
  const near = (chart.options.plugins.eventMarks.marks || []).filter(
      (mark) => Math.abs(x.getPixelForValue(mark.x) -
                         x.getPixelForValue(parsed.x)) < 5);
  const most = chart.width / 7;  // characters: what is longer is cut off
  return near.slice(0, 5).map(({event, run}) => {
    const whose = runs.length > 1 ? `${run.label}: ` : '';
    return `${whose}${event.kind} at step ${event.step}: ${event.text}`
        .slice(0, most);
  });
}

function optionsOf(metric, datasets) {
  const {options} = lineChart(
      titleOf(metric), AXES[view.x].title, '', datasets, {
        ...(view.zoom || wholeRange()),
        afterBuildTicks: view.x === 'time' ? takeClockTicks : undefined,
        ticks: {
          maxRotation: 0,
          precision: 0,
          includeBounds: false,
          callback: (x) => AXES[view.x].text(x),
        },
      },
      {
        type: view.logarithmic ? 'logarithmic' : 'linear',
        title: {display: false},
        afterDataLimits: widen,
        afterBuildTicks: kindOf(metric) === 'bytes' ?
            (axis) => takeByteTicks(metric, axis) : undefined,
        ticks: {callback: (y, i, ticks) => tickText(metric, y, ticks)},
      });
  options.onHover = (event, items, chart) => {
    const [{element, datasetIndex} = {}] = chart.getElementsAtEventForMode(
        event, 'nearest', {axis: 'xy', intersect: false}, false);
    const near = element &&
        Math.hypot(element.x - event.x, element.y - event.y) < 30;
    highlight(near ? chart.data.datasets[datasetIndex].run : null);
  };
  const {plugins} = options;
  plugins.decimation.enabled = false;  // the server has done it
  plugins.legend.display = false;      // the page has one for all charts
  plugins.eventMarks = {marks: marks()};
  plugins.tooltip = {
    filter: (item) => Boolean(item.dataset.label),
    itemSort: (a, b) => b.parsed.y - a.parsed.y,  // as the lines lie
    callbacks: {
      title: (items) => items.length === 0 ?
          '' : `${AXES[view.x].title} ${AXES[view.x].text(items[0].parsed.x)}`,
      label: (item) =>
          `${item.dataset.label}: ${valueText(metric, item.parsed.y)}`,
      footer: (items) => [
        ...marksAt(items),
        ...(ROW_CHARTS.has(metric) ? ['click: the rows of this step'] : []),
      ],
    },
  };
  return options;
}

// What a chart says to those who don't see it.
function describe(metric) {
  const values = shownRuns().map((run) => {
    const value = run.status?.latest[metric];
    return value === undefined ? '' : `${run.label} ${valueText(metric, value)}`;
  });
  return `${titleOf(metric)}; latest: ${values.filter(Boolean).join(', ')}. ` +
      'Keys plus, minus, left and right look closer and move, 0 shows all.';
}

function drawChart(metric) {
  const entry = charts.get(metric);
  if (!entry.visible) return;
  const shown = shownRuns();
  const datasets =
      shown.flatMap((run) => datasetsOf(run, metric, shown.length === 1))
          .map(emphasize);
  const options = optionsOf(metric, datasets);
  if (entry.chart) {
    options.plugins.title.text = titleLines(titleOf(metric), entry.box);
    entry.chart.options = options;
    entry.chart.data.datasets = datasets;
    entry.chart.update('none');
  } else {
    entry.chart = drawInto(
        entry.box,
        {type: 'line', data: {datasets}, options, plugins: [eventMarks]});
  }
  entry.box.setAttribute('aria-label', describe(metric));
}

const whenVisible = new IntersectionObserver((changes) => {
  for (const {target, isIntersecting} of changes) {
    const entry = charts.get(target.dataset.metric);
    if (!entry) continue;
    entry.visible = isIntersecting;
    if (isIntersecting) drawChart(target.dataset.metric);
  }
}, {rootMargin: '200px'});

// One legend for all charts, of runs and of events. A run's entry hides it.
const legend = element('div', {class: 'legend'});

function drawLegend() {
  const kinds = [...new Set(marks().map(({event}) => event.kind))].sort();
  const several = runs.length > 1 ? runs.filter((run) => run.status) : [];
  const now = JSON.stringify([
    kinds, several.map((run) => [run.index, run.label, run.shown]),
    view.baseline,
  ]);
  if (legend.shows === now) return;  // the user may be in it
  legend.shows = now;
  legend.replaceChildren(
      ...several.map((run) => {
        const entry = button('', '', () => setShown(run, !run.shown));
        entry.setAttribute('aria-pressed', run.shown);
        entry.append(lineSample(runColor(run), runDash(run)), run.label +
            (run.index === view.baseline ? ' (baseline)' : ''));
        highlightBy(entry, run);
        return entry;
      }),
      ...kinds.map((kind) => element(
          'span', {}, lineSample(markColor(kind), markDash(kind)), kind)));
}

// Draws the charts that are on the screen; others as they come to be.
function drawCurves() {
  drawLegend();
  const wanted = metrics();
  for (const [metric, entry] of charts) {
    if (wanted.includes(metric)) continue;
    entry.chart?.destroy();
    entry.box.remove();
    charts.delete(metric);
  }
  for (const metric of wanted) {
    if (!charts.has(metric)) {
      const box = element('div', {
        class: 'chart zoomable', tabindex: '0', role: 'group',
        'aria-label': titleOf(metric),
      });
      box.dataset.metric = metric;
      charts.set(metric, {box, chart: null, visible: false});
      zoomByPointer(box);
      whenVisible.observe(box);
    }
  }
  // In their order, without moving what is there: that would take the focus.
  wanted.forEach((metric, i) => {
    const {box} = charts.get(metric);
    if (curveGrid.children[i] !== box) {
      curveGrid.insertBefore(box, curveGrid.children[i] || null);
    }
    drawChart(metric);
  });
  const most = Math.max(0, ...shownRuns().map((run) => run.curves.left_out));
  leftOut.textContent = most === 0 ? '' :
      `${plural(most, 'further metric')} of metrics.jsonl without a curve here.`;
}

// Also those that nobody has scrolled to.
function drawAllCurves() {
  for (const [metric, entry] of charts) {
    if (entry.chart) continue;
    entry.visible = true;
    drawChart(metric);
  }
}

addEventListener('beforeprint', drawAllCurves);

// --------------------------------------------------------------------- zoom

function setZoom(zoom) {
  view.zoom = zoom;
  runs.forEach((run) => run.detail = null);
  drawCurves();
  clearTimeout(setZoom.timer);
  setZoom.timer = setTimeout(() => refine().then(drawCurves), 150);
}

// 0.5 looks twice as close; `shift`: by so much of the width to the right.
function changeZoom(factor, shift) {
  const whole = wholeRange();
  const {min, max} = view.zoom || whole;
  const width = Math.min((max - min) * factor, whole.max - whole.min);
  let from = (min + max - width) / 2 + shift * width;
  from = Math.min(Math.max(from, whole.min), whole.max - width);
  setZoom(width >= whole.max - whole.min ? null :
                                           {min: from, max: from + width});
}

const ZOOM_KEYS = {
  '+': () => changeZoom(0.5, 0),
  '=': () => changeZoom(0.5, 0),
  '-': () => changeZoom(2, 0),
  'ArrowLeft': () => changeZoom(1, -0.25),
  'ArrowRight': () => changeZoom(1, 0.25),
  '0': () => setZoom(null),
  'Escape': () => setZoom(null),
};

// A drag across a chart looks closer there, a double click shows all, and a
// click the rows of that step.
function zoomByPointer(box) {
  const band = element('div', {class: 'band'});
  let start = null;
  let dragged = false, clicked = 0;
  const valueAt = (event) => {
    const {chart} = charts.get(box.dataset.metric);
    const place = event.clientX - chart.canvas.getBoundingClientRect().left;
    return chart.scales.x.getValueForPixel(place);
  };
  box.addEventListener('keydown', (event) => {
    const act = event.ctrlKey || event.altKey || event.metaKey ?
        undefined : ZOOM_KEYS[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
  box.addEventListener('dblclick', () => setZoom(null));
  box.addEventListener('pointerleave', () => highlight(null));
  box.addEventListener('click', (event) => {
    clearTimeout(clicked);
    const found = dragged || event.detail > 1 ? null : stepAt(box, event);
    // A double click begins as a click.
    if (found) clicked = setTimeout(() => showRows(found.run, found.step), 300);
  });
  box.addEventListener('pointerdown', (event) => {
    dragged = false;
    if (event.button !== 0 || event.pointerType === 'touch' ||
        !charts.get(box.dataset.metric).chart) {
      return;
    }
    start = {x: event.clientX, value: valueAt(event)};
    box.setPointerCapture(event.pointerId);
  });
  box.addEventListener('pointermove', (event) => {
    if (!start || Math.abs(event.clientX - start.x) < 5) return;
    const left = box.getBoundingClientRect().left;
    band.style.left = `${Math.min(event.clientX, start.x) - left}px`;
    band.style.width = `${Math.abs(event.clientX - start.x)}px`;
    box.append(band);
  });
  box.addEventListener('pointerup', (event) => {
    band.remove();
    if (start && Math.abs(event.clientX - start.x) >= 5) {
      dragged = true;
      const end = valueAt(event);
      setZoom({
        min: Math.max(Math.min(start.value, end), 0),
        max: Math.max(start.value, end),
      });
    }
    start = null;
  });
}
