// SPDX-License-Identifier: Apache-2.0
//
// What report.json, which the page holds, says in words and tables. charts.js,
// which follows in the same script, draws it.
const completed = report.runs.filter((run) => run.status === 'completed');
const strategies = [...new Set(report.runs.map((run) => run.strategy))];
const worldSizes = [...new Set(report.runs.map((run) => run.processes))];
const precisions = report.precisions.map((precision) => precision.name);

// ------------------------------------------------------------------ helpers

function shortLabel(run) {
  return `${run.strategy} ×${run.processes}`;
}

function fullLabel(run) {
  return `${run.strategy} ${run.precision} ×${run.processes}`;
}

// Two lines where there are several precisions.
function axisLabel(run) {
  return precisions.length > 1 ? [shortLabel(run), run.precision] :
                                 shortLabel(run);
}

// Of all ranks, in report.unit.
function speedOf(run) {
  return run[`${report.unit}_per_second`];
}

function hiddenSeconds(run) {
  if (run.communication_seconds === null ||
      run.exposed_communication_seconds === null) {
    return null;
  }
  return Math.max(
      0, run.communication_seconds - run.exposed_communication_seconds);
}

// ----------------------------------------------------------- text and tables

function addHeader() {
  document.title = report.name;
  page.append(
      element('h1', {}, report.name),
      element(
          'p', {class: 'soft'},
          `${report.time} · ${report.device} · ` +
              `${plural(completed.length, 'run')} of ` +
              `${plural(report.max_steps, 'step')} of ` +
              `${plural(report.global_batch_size, 'sample')} · one seed, the ` +
              'same data'));
  const verdict =
      element('div', {class: `verdict ${report.passed ? 'passed' : 'failed'}`});
  verdict.append(
      element('strong', {}, report.passed ? 'PASSED' : 'FAILED'),
      report.passed ?
          'Every run follows the reference of its precision within the bounds.' :
          plural(report.problems.length, 'problem') + ':');
  if (!report.passed) {
    verdict.append(element(
        'ul', {}, ...report.problems.map((text) => element('li', {}, text))));
  }
  page.append(verdict);
}

function deltaCell(run, key, bound) {
  if (run.id === run.reference) return element('td', {}, 'reference');
  const delta = run[key];
  if (delta === null) return element('td', {}, '?');
  const text = delta.max === null ? 'not finite' :
      delta.max === 0             ? '0' :
                                    delta.max.toExponential(1);
  const far = delta.max === null || delta.max > bound;
  const cell = element('td', {class: far ? 'far' : ''}, text);
  cell.title = `step ${delta.max_step}; bound ${bound.toExponential(0)}`;
  return cell;
}

function runRow(run) {
  const total = run.memory.total || {predicted: null, measured: null};
  const row =
      element('tr', {class: run.id === run.reference ? 'reference' : ''});
  row.append(
      element('td', {class: 'name'}, run.strategy),
      element('td', {class: 'name'}, run.precision),
      element('td', {}, String(run.processes)),
      element('td', {}, String(run.accumulation)),
      element('td', {}, (run.loss[run.loss.length - 1] ?? NaN).toFixed(6)),
      deltaCell(run, 'loss_delta', run.bounds.loss),
      deltaCell(run, 'grad_norm_delta', run.bounds.grad_norm),
      element(
          'td', {}, Math.round(speedOf(run)).toLocaleString('en')),
      element('td', {}, bytesText(total.predicted)),
      element('td', {}, bytesText(total.measured)),
      element('td', {}, bytesText(run.peak_memory_bytes)),
      element('td', {}, bytesText(run.bytes_sent_per_step)),
      element('td', {}, secondsText(hiddenSeconds(run))),
      element('td', {}, secondsText(run.exposed_communication_seconds)));
  return row;
}

function addTable() {
  const columns = [
    'strategy', 'precision', 'ranks', 'accu-\nmulation', 'final loss',
    'loss:\nmax delta', 'grad norm:\nmax delta', `${report.unit}/s`,
    'memory\npredicted', 'memory\nmeasured', 'whole\nprocess',
    'sent\na step', 'hidden\ncomm.', 'exposed\ncomm.',
  ];
  page.append(table(columns, completed.map(runRow), 2));
}

function addLeftOut() {
  const skipped = report.runs.filter((run) => run.status === 'skipped');
  if (skipped.length === 0) return;
  page.append(
      element('h2', {}, 'Left out'),
      element(
          'ul', {},
          ...skipped.map(
              (run) => element('li', {}, `${fullLabel(run)}: ${run.reason}`))));
}

function addConfig() {
  page.append(element(
      'details', {}, element('summary', {}, 'The configs'),
      element('pre', {}, report.config),
      element('pre', {}, report.shared_config)));
}
