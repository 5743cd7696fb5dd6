// SPDX-License-Identifier: Apache-2.0
//
// Draws report.json, and puts the page together. Follows text.js in the same
// script.

const BOUND_COLOR = cssColor('--bad');
// Of the references, by precision.
const REFERENCE_COLORS = darkTheme.matches ?
    ['#35506b', '#57502f', '#454d55'] :
    ['#b9d3ea', '#e3d9b8', '#d3d9df'];

function runStyle(run, index) {
  return lineStyle(
      at(COLORS, strategies.indexOf(run.strategy)),
      at(DASHES, worldSizes.indexOf(run.processes)),
      // Later ones lie on top.
      100 - index);
}

// Step by step; null is a gap.
function points(values) {
  return values.map((y, i) => ({x: i + 1, y: y === null ? NaN : y}));
}

function stepChart(title, yTitle, datasets, yScale) {
  return lineChart(
      title, 'optimizer step', yTitle, datasets,
      {min: 0, max: Math.max(report.max_steps, 2)}, yScale);
}

// All curves of one kind; the references are wide and pale below the others.
function addCurves(grid, title, yTitle, key) {
  const datasets = completed.map((run, index) => {
    const style = runStyle(run, index);
    const precision = precisions.indexOf(run.precision);
    if (run.id === run.reference) {
      style.borderWidth = at([9, 6, 4], precision);
      style.borderColor = style.backgroundColor =
          at(REFERENCE_COLORS, precision);
      style.order = 200 - precision;
    }
    const reference = run.id === run.reference ? ' (reference)' : '';
    return {
      label: (precisions.length > 1 ? fullLabel(run) : shortLabel(run)) +
          reference,
      data: points(run[key]),
      ...style,
    };
  });
  addChart(grid, stepChart(title, yTitle, datasets), {size: 'tall'});
}

// The powers of ten where a logarithmic axis begins and ends: one below all
// that isn't 0, and one above everything.
function logarithmicRange(series, bounds) {
  let least = Math.min(1, ...bounds.filter((bound) => bound > 0));
  let greatest = Math.max(1e-18, ...bounds);
  for (const {delta} of series) {
    for (const value of delta.values) {
      if (value === null || value === 0) continue;
      least = Math.min(least, value);
      greatest = Math.max(greatest, value);
    }
  }
  return [
    Math.max(10 ** (Math.floor(Math.log10(least)) - 1), 1e-18),
    10 ** Math.ceil(Math.log10(greatest * 1.5)),
  ];
}

// Relative distances on a logarithmic axis, at whose lower end the zeros lie,
// and a line for each of the `bounds`.
function deltaChart(title, series, bounds) {
  const [floor, ceiling] = logarithmicRange(series, bounds);
  const datasets = series.map((one) => ({
                                ...one.style,
                                label: one.label,
                                data: points(one.delta.values.map(
                                    (v) => v === 0 ? floor : v)),
                              }));
  for (const bound of bounds) {
    const y = Math.max(bound, floor);
    datasets.push({
      label: `bound ${bound.toExponential(0)}`,
      data: [{x: 0, y}, {x: Math.max(report.max_steps, 2), y}],
      borderColor: BOUND_COLOR,
      backgroundColor: BOUND_COLOR,
      borderWidth: 2,
      pointStyle: 'line',
      pointRadius: 0,
      order: 0,
    });
  }
  // About eight labels, however far it reaches.
  const every = Math.ceil(Math.log10(ceiling / floor) / 8);
  const powerOfTen = (value) => {
    if (value <= floor * 1.001) return '0';
    const power = Math.log10(value);
    const whole = Math.abs(power - Math.round(power)) < 1e-6;
    return whole && Math.round(power) % every === 0 ? value.toExponential(0) :
                                                      null;
  };
  const chart = stepChart(title, 'relative distance', datasets, {
    type: 'logarithmic',
    min: floor,
    max: ceiling,
    ticks: {callback: powerOfTen, autoSkip: false},
  });
  chart.options.plugins.tooltip = {
    callbacks: {
      label: (item) => `${item.dataset.label}: ` +
          (item.parsed.y <= floor ? '0' : item.parsed.y.toExponential(2)),
    },
  };
  return chart;
}

function addDeltas(grid, precision, title, key) {
  const series =
      completed
          .map((run, index) => ({run, style: runStyle(run, index)}))
          .filter(
              ({run}) => run.precision === precision.name &&
                  run.id !== run.reference && run[key] !== null)
          .map(
              ({run, style}) =>
                  ({run, label: shortLabel(run), delta: run[key], style}));
  if (series.length === 0) return;
  const reference = report.runs.find((run) => run.id === precision.reference);
  const bound = key.replace('_delta', '');
  const bounds = [...new Set(series.map(({run}) => run.bounds[bound]))];
  addChart(
      grid,
      deltaChart(
          `${precision.name}: ${title}, distance from ${fullLabel(reference)}`,
          series, bounds));
}

function addBetweenPrecisions(grid) {
  for (const [key, title] of [['loss', 'loss'],
                              ['grad_norm', 'gradient norm']]) {
    const series = [];
    for (const [index, precision] of report.precisions.entries()) {
      if (precision.from_first === null) continue;
      const color = at(COLORS, index);
      series.push({
        label: precision.name,
        delta: precision.from_first[key],
        style: lineStyle(color, [], index),
      });
    }
    if (series.length === 0) return;
    addChart(
        grid,
        deltaChart(
            `Between precisions: ${title}, distance from ${precisions[0]}`,
            series, []),
        {note: 'For information: no bound.'});
  }
}

// One bar a run, coloured by precision.
function addBars(grid, title, yTitle, runs, value, format) {
  const known = runs.filter((run) => value(run) !== null);
  if (known.length === 0) {
    addUnknown(grid, title);
    return;
  }
  const labels = [...new Set(known.map(shortLabel))];
  const datasets = precisions.map(
      (name, index) => ({
        label: name,
        data: labels.map((label) => {
          const run = known.find(
              (one) => one.precision === name && shortLabel(one) === label);
          return run === undefined ? null : value(run);
        }),
        backgroundColor: at(COLORS, index),
        maxBarThickness: 46,
      }));
  const options = barOptions(title, yTitle, false, format);
  options.plugins.legend.display = precisions.length > 1;
  addChart(grid, {type: 'bar', data: {labels, datasets}, options});
}

function addUnknown(grid, title) {
  grid.append(element(
      'div', {class: 'chart'}, element('strong', {}, title),
      element('p', {}, 'These runs did not measure it.')));
}

function addCommunication(grid) {
  const title = 'Communication in a step: hidden behind work, and exposed';
  const runs = completed.filter(
      (run) => run.processes > 1 && hiddenSeconds(run) !== null);
  if (runs.length === 0) {
    addUnknown(grid, title);
    return;
  }
  const dataset = (label, color, value) => ({
    label,
    data: runs.map((run) => 1e3 * value(run)),
    backgroundColor: color,
    maxBarThickness: 46,
  });
  addChart(
      grid, {
        type: 'bar',
        data: {
          labels: runs.map(axisLabel),
          datasets: [
            dataset(
                'exposed: the step waits', '#d55e00',
                (run) => run.exposed_communication_seconds),
            dataset('hidden', '#56b4e9', hiddenSeconds),
          ],
        },
        options: barOptions(
            title, 'milliseconds', true, (ms) => secondsText(ms / 1e3)),
      });
}

function addMemory(grid) {
  const runs = completed.filter((run) => Object.keys(run.memory).length > 0);
  if (runs.length === 0) {
    addUnknown(grid, 'Memory of the fullest rank by category');
    return;
  }
  addChart(
      grid,
      memoryChart(runs.map(
          (run) => ({label: axisLabel(run), memory: run.memory}))),
      {size: 'wide'});
}

function addCharts() {
  page.append(
      element('h2', {}, 'One curve'),
      element(
          'p', {class: 'soft'},
          'A pale wide line is a reference; all lines of its precision should ' +
              'lie on it. The distances from it are relative, per step.'));
  const curves = element('div', {class: 'grid'});
  page.append(curves);
  addCurves(curves, 'Loss', 'loss', 'loss');
  addCurves(
      curves, 'Gradient norm, before clipping', 'global norm', 'grad_norm');
  for (const precision of report.precisions) {
    addDeltas(curves, precision, 'loss', 'loss_delta');
    addDeltas(curves, precision, 'gradient norm', 'grad_norm_delta');
  }
  addBetweenPrecisions(curves);

  page.append(
      element('h2', {}, 'What each costs'),
      element('p', {class: 'soft'}, 'Medians over the steps.'));
  const costs = element('div', {class: 'grid'});
  page.append(costs);
  const several = completed.filter((run) => run.processes > 1);
  addBars(
      costs, 'Speed', `${report.unit} a second, all ranks`, completed, speedOf,
      (value) =>
          `${Math.round(value).toLocaleString('en')} ${report.unit}/s`);
  addBars(
      costs, 'Time of a step', 'milliseconds', completed,
      (run) => 1e3 * run.step_seconds, (ms) => secondsText(ms / 1e3));
  addBars(
      costs, 'Bytes sent by a rank in a step', 'MiB', several,
      (run) => run.bytes_sent_per_step === null ?
          null :
          run.bytes_sent_per_step / (1024 * 1024),
      (value) => bytesText(value * 1024 * 1024));
  addCommunication(costs);
  addMemory(costs);
}

addHeader();
addTable();
addCharts();
addLeftOut();
addConfig();
