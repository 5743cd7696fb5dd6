// SPDX-License-Identifier: Apache-2.0
//
// Values in their units, and the ticks of axes that have them.

// What a metric is measured in, the largest first: [size, name].
const UNITS = {
  bytes: [
    [2 ** 40, 'TiB'], [2 ** 30, 'GiB'], [2 ** 20, 'MiB'], [2 ** 10, 'KiB'],
    [1, 'B'],
  ],
  seconds: [[1, 's'], [1e-3, 'ms'], [1e-6, 'µs']],
  share: [[0.01, '%']],
  number: [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k'], [1, '']],
};
const SHARES = new Set(['mfu', 'steal', 'iowait', 'padding']);

function kindOf(metric) {
  return metric.endsWith('_bytes') || metric === 'bytes_sent' ? 'bytes' :
      metric.endsWith('_seconds')                             ? 'seconds' :
      SHARES.has(metric)                                      ? 'share' :
                                                                'number';
}

function unitOf(metric, most) {
  const units = UNITS[kindOf(metric)];
  return units.find(([size]) => most >= size) || units.at(-1);
}

function valueText(metric, value) {
  const size = Math.abs(value);
  if (kindOf(metric) === 'number' && size < 1e-3) return shortNumber(value);
  const [unit, name] = unitOf(metric, size);
  return `${Number((value / unit).toPrecision(4))} ${name}`.trim();
}

// A tick of the y axis, all in one unit, with the digits that tell them apart.
function tickText(metric, value, ticks) {
  if (view.logarithmic || ticks.length < 2) return valueText(metric, value);
  const most = Math.max(...ticks.map((tick) => Math.abs(tick.value)));
  const step = Math.abs(ticks[1].value - ticks[0].value);
  const power = (number) => Math.floor(Math.log10(number) + 1e-6);
  if (kindOf(metric) === 'number' && most < 1e-3) {
    return value === 0 ?
        '0' : value.toExponential(Math.max(power(most) - power(step), 0));
  }
  const [unit, name] = unitOf(metric, most);
  const digits = Math.min(Math.max(-power(step / unit), 0), 10);
  return `${(value / unit).toFixed(digits)} ${name}`.trim();
}

function ticksBy(step, {min, max}) {
  const ticks = [];
  for (let i = Math.ceil(min / step); i * step <= max; ++i) {
    ticks.push({value: i * step});
  }
  return ticks;
}

// A value that hardly changes isn't told by its last digits.
function widen(axis) {
  const lacks = 1e-3 * Math.abs(axis.max) - (axis.max - axis.min);
  if (!(lacks > 0)) return;
  axis.min -= lacks / 2;
  axis.max += lacks / 2;
}

// Steps of 1, 2 or 5 KiB, MiB or so: no round numbers of bytes.
function takeByteTicks(metric, axis) {
  const rough = (axis.max - axis.min) / 7;
  if (view.logarithmic || !(rough > 0)) return;
  const [unit] = unitOf(metric, Math.abs(axis.max));
  const power = unit * 10 ** Math.floor(Math.log10(rough / unit));
  const step = [1, 2, 5, 10].find((count) => count * power >= rough) * power;
  axis.ticks = ticksBy(step, axis);
}

function takeClockTicks(axis) {
  const DAY = 86400;
  const rough = (axis.max - axis.min) / 6;
  const step = [
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600,
    43200, DAY,
  ].find((seconds) => seconds >= rough) || Math.ceil(rough / DAY) * DAY;
  axis.ticks = ticksBy(step, axis);
}
