// SPDX-License-Identifier: Apache-2.0
//
// Ranks and hosts: who is late and in what, and where a step's time goes.

const rankSection = section('Ranks', 'Ranks and hosts');
// Of parts whose names in the files say less.
const PART_NAMES = {
  exposed: 'waits for others', outside: 'between steps', rest: 'other work',
};
// What isn't clear by its name of what is done between steps.
const ACTION_TITLES = {
  'catching up':
      'the first samples, or an evaluation that a stop has interrupted',
  'the last save': 'the checkpoint at the end of the run, or when it stops',
};
const PART_COLORS = {exposed: '#9aa5b1', outside: MEMORY_COLORS[6]};

// A part of the page, hidden until it has something to show, for one of the
// runs at a time: view.selected, if it has something.
function section(name, title) {
  const select = element('select', {'aria-label': `${name}: of which run`});
  const body = element('div');
  const made = element(
      'section', {class: 'none', 'aria-label': title},
      element('h2', {}, `${title} `, select), body);
  select.addEventListener('change', () => {
    view.selected = Number(select.value);
    drawSelected();
  });
  return {made, select, body};
}

// Has one choose among the runs, if there are several.
function offerRuns(select, some) {
  offer(select, some.map((run) => [run.index, run.label]), view.selected);
  select.classList.toggle('none', some.length <= 1);
}

// Has one choose among [value, text] pairs. `value` is chosen, if it is among
// them, else what was before.
function offer(select, pairs, value) {
  const before = select.value;
  const known = [...select.options].map((option) => option.value).join();
  if (known !== pairs.map(([one]) => one).join()) {
    select.replaceChildren(...pairs.map(
        ([one, text]) => element('option', {value: String(one)}, text)));
  }
  for (const wanted of [before, String(value)]) {
    if (pairs.some(([one]) => String(one) === wanted)) select.value = wanted;
  }
}

// Draws the section for one of the runs that `has` something: `draw(run)`
// returns its elements. What the user is using is left alone.
function drawSection({made, select, body}, has, draw) {
  const some = runs.filter((run) => run.shown && has(run));
  made.classList.toggle('none', some.length === 0);
  if (some.length === 0) return;
  offerRuns(select, some);
  if (body.contains(document.activeElement)) return;
  body.replaceChildren(...draw(runs[select.value]));
}

function milliseconds(seconds) {
  return seconds === undefined ? '' : (seconds * 1e3).toFixed(1);
}

function rankLabel(row) {
  return `rank ${row.rank}` + (row.host ? ` · ${row.host}` : '');
}

function partName(part) {
  return PART_NAMES[part] || part;
}

// Of a step. Most objectives have no rollouts.
function partsOf(ranks) {
  return [...ranks.parts, 'exposed', 'outside'].filter(
      (part) => part !== 'rollout' ||
          ranks.rows.some((row) => row.means[part] > 0));
}

function rankTable(ranks) {
  const parts = partsOf(ranks);
  const columns = [
    'rank', 'host', 'device',
    ...parts.map((part) => `${partName(part).replace(/ /g, '\n')}\nms`),
    'slowest,\nof steps', 'CPU\ncores', 'steal', 'memory',
  ];
  const rows = ranks.rows.map((row) => {
    const share = (value) =>
        value === undefined ? '' : `${(100 * value).toFixed(1)} %`;
    const cores = row.means.cpu_cores;
    const texts = [
      String(row.rank), row.host, row.device,
      ...parts.map((part) => milliseconds(row.means[part])),
      ranks.rows.length > 1 ? share(row.latest_share) : '',
      cores === undefined ? '' : cores.toFixed(2), share(row.means.steal),
      row.means.rss_bytes === undefined ? '' : bytesText(row.means.rss_bytes),
    ];
    return element('tr', {}, ...texts.map(
        (text, i) => element('td', {class: i < 3 ? 'name' : ''}, text)));
  });
  return table(columns, rows, 3);
}

// How late a rank was, as a color: its opacity.
function lateColor(late, work) {
  if (late === null) return null;
  const share = Math.min(Math.abs(late) / (0.3 * work || 1), 1);
  return late > 0 ? `rgba(213, 94, 0, ${share})` :
                    `rgba(86, 180, 233, ${0.6 * share})`;
}

// A row a rank, a column some steps; orange: it works longer than the median.
function timeline(ranks) {
  const HEIGHT = 18;
  const canvas = element('canvas', {
    width: String(ranks.columns), height: String(ranks.rows.length),
    role: 'img', tabindex: '0',
    'aria-label': `who is late, by step: ${ranks.late || 'nobody'}`,
  });
  canvas.style.height = `${HEIGHT * ranks.rows.length}px`;
  const context = canvas.getContext('2d');
  ranks.rows.forEach((row, y) => row.late.forEach((late, x) => {
    context.fillStyle = lateColor(late, ranks.median_work) || cssColor('--head');
    context.fillRect(x, y, 1, 1);
  }));
  const told = element('p', {class: 'soft', 'aria-live': 'polite'},
      'Orange: it works longer than the median rank; blue: shorter. Point at ' +
      'it, or use the arrow keys.');
  const show = (x, y) => {
    const row = ranks.rows[y];
    const late = row?.late[x];
    if (late === undefined || late === null) return;
    const from = x * ranks.width;
    told.textContent = `steps ${from} to ${from + ranks.width - 1}, ` +
        `${rankLabel(row)}: works ${milliseconds(Math.abs(late))} ms ` +
        (late > 0 ?
             `longer a step, most in ${partName(ranks.parts[row.cause[x]])}` :
             'shorter a step');
  };
  canvas.addEventListener('pointermove', (event) => {
    const {left, top, width} = canvas.getBoundingClientRect();
    show(Math.floor((event.clientX - left) / width * ranks.columns),
        Math.floor((event.clientY - top) / HEIGHT));
  });
  let x = 0, y = 0;
  canvas.addEventListener('keydown', (event) => {
    const step = {
      ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1],
      ArrowDown: [0, 1],
    }[event.key];
    if (!step) return;
    event.preventDefault();
    x = Math.min(Math.max(x + step[0], 0), ranks.columns - 1);
    y = Math.min(Math.max(y + step[1], 0), ranks.rows.length - 1);
    show(x, y);
  });
  const names = element('div', {class: 'ranknames', 'aria-hidden': 'true'},
      ...ranks.rows.map((row) => element('span', {}, rankLabel(row))));
  return [element('div', {class: 'timeline'}, names, canvas), told];
}

// Where a step's time goes, a bar a rank.
function partsChart(ranks) {
  const parts = partsOf(ranks);
  return {
    type: 'bar',
    data: {
      labels: ranks.rows.map(rankLabel),
      datasets: parts.map((part, i) => ({
        label: partName(part),
        data: ranks.rows.map((row) => 1e3 * (row.means[part] || 0)),
        backgroundColor: PART_COLORS[part] || at(COLORS, i),
        maxBarThickness: 46,
      })),
    },
    options: barOptions(
        'Where a step\'s time goes', 'milliseconds', true,
        (ms) => secondsText(ms / 1e3)),
  };
}

function actionTexts(row) {
  const actions = Object.entries(row.actions)
      .filter(([, seconds]) => seconds > 0).sort((a, b) => b[1] - a[1]);
  if (actions.length === 0) return [];
  return [
    'Between steps, so far: ',
    ...actions.flatMap(([name, seconds], i) => [
      i > 0 ? ', ' : '',
      element(
          ACTION_TITLES[name] ? 'abbr' : 'span',
          {title: ACTION_TITLES[name]}, name),
      ` ${secondsText(seconds)}`,
    ]),
    '.',
  ];
}

function drawRanks() {
  drawSection(
      rankSection, (run) => run.ranks?.rows.length > 0, ({ranks}) => {
        rankSection.chart?.destroy();
        rankSection.chart = null;
        const parts = element('div', {class: 'chart'});
        const all = ranks.all > ranks.rows.length ?
            ` Of ${ranks.all} ranks those that were latest.` : '';
        const several = ranks.rows.length > 1;
        const late = ranks.late || (several ? 'No rank is late.' : '');
        requestAnimationFrame(() => {
          if (!parts.isConnected) return;
          rankSection.chart = drawInto(parts, partsChart(ranks));
        });
        return [
          element('p', {class: ranks.late ? 'late' : 'soft'}, late + all),
          ...(several ? timeline(ranks) : []), parts,
          element('p', {class: 'soft'}, ...actionTexts(ranks.rows[0])),
          rankTable(ranks),
        ];
      });
}
