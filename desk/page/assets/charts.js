// SPDX-License-Identifier: Apache-2.0
//
// Charts of runs, by Chart.js.

Object.assign(Chart.defaults, {animation: false, maintainAspectRatio: false});
Chart.defaults.color = cssColor('--ink');
Chart.defaults.font.family = 'system-ui, "DejaVu Sans", sans-serif';
Chart.defaults.borderColor = cssColor('--rule');
Chart.defaults.plugins.legend.labels.boxHeight = 12;
Chart.defaults.plugins.legend.labels.boxWidth = 18;
Chart.defaults.plugins.title.font = {size: 14, weight: 'bold'};

function cssColor(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name)
      .trim();
}

// Draws a chart in a new box of `grid`.
function addChart(grid, config, {size = '', note = ''} = {}) {
  const box = element('div', {class: `chart ${size}`});
  grid.append(box);
  const chart = drawInto(box, config);
  if (note) box.append(element('p', {}, note));
  return chart;
}

// Lines of words that fit into a box; Chart.js would squeeze the letters.
function titleLines(text, box) {
  const most = (box.clientWidth - 30) / 8;  // characters of about 8 pixels
  return text.split(' ').reduce((lines, word) => {
    const longer = lines.length > 0 ? `${lines.at(-1)} ${word}` : word;
    return lines.length > 0 && longer.length <= most ?
        [...lines.slice(0, -1), longer] :
        [...lines, word];
  }, []);
}

function drawInto(box, config) {
  const {title} = config.options.plugins;
  const canvas = element('canvas', {role: 'img', 'aria-label': title.text});
  box.append(element('div', {}, canvas));
  title.text = titleLines(title.text, box);
  return new Chart(canvas, config);
}

function scaleTitle(text) {
  return {display: true, text, font: {size: 12}};
}

// Of the line that lies on top if `order` is least.
function lineStyle(color, dash, order) {
  return {
    borderColor: color,
    backgroundColor: color,
    borderDash: dash,
    borderWidth: 1.8,
    pointStyle: 'line',
    pointRadius: 0,
    pointHitRadius: 6,
    clip: 6,  // dots on the frame are whole
    order,
  };
}

// Legend entries that look like their lines, dashes included. Lines without a
// label have none.
function lineLabels(chart) {
  const items = Chart.defaults.plugins.legend.labels.generateLabels(chart);
  return items.filter((item) => item.text).map((item) => {
    const dataset = chart.data.datasets[item.datasetIndex];
    return {
      ...item,
      lineDash: dataset.borderDash,
      lineWidth: dataset.borderWidth,
      strokeStyle: dataset.borderColor,
      pointStyle: 'line',
    };
  });
}

// Lines by `xTitle`, over `xScale` and `yScale`.
function lineChart(title, xTitle, yTitle, datasets, xScale, yScale = {}) {
  return {
    type: 'line',
    data: {datasets},
    options: {
      parsing: false,
      interaction: {mode: 'nearest', axis: 'x', intersect: false},
      plugins: {
        title: {display: true, text: title},
        // Chart.js lists what lies on top first.
        legend: {
          position: 'bottom',
          reverse: true,
          labels: {
            usePointStyle: true,
            pointStyleWidth: 34,
            generateLabels: lineLabels,
          },
        },
        decimation: {enabled: true, algorithm: 'min-max'},
      },
      scales: {
        x: {
          type: 'linear',
          title: scaleTitle(xTitle),
          ticks: {precision: 0},
          ...xScale,
        },
        y: {title: scaleTitle(yTitle), ...yScale},
      },
    },
  };
}

function barOptions(title, yTitle, stacked, format) {
  return {
    interaction: {mode: 'index', intersect: false},
    plugins: {
      title: {display: true, text: title},
      legend: {position: 'bottom'},
      tooltip: {
        callbacks: {
          label: (item) => `${item.dataset.label}: ${format(item.parsed.y)}`,
        },
      },
    },
    scales: {
      x: {
        stacked,
        grid: {display: false},
        ticks: {autoSkip: false, maxRotation: 60},
      },
      y: {stacked, beginAtZero: true, grace: '5%', title: scaleTitle(yTitle)},
    },
  };
}

// A line as the charts draw it, for legends outside of them.
function lineSample(color, dash) {
  const sample = element('canvas', {
    class: 'sample-line', width: '60', height: '20', 'aria-hidden': 'true',
  });
  const context = sample.getContext('2d');
  context.scale(2, 2);  // for fine screens
  context.strokeStyle = color;
  context.lineWidth = 2.5;
  context.setLineDash(dash);
  context.beginPath();
  context.moveTo(0, 5);
  context.lineTo(30, 5);
  context.stroke();
  return sample;
}

// Each of `bars`, {label, memory}, as summary.json has the memory.
function memoryChart(bars) {
  const title = 'Memory of the fullest rank by category: predicted (left, ' +
      'pale) and measured (right)';
  const names = new Set(bars.flatMap((bar) => Object.keys(bar.memory)));
  names.delete('total');
  if (names.delete('other')) names.add('other');  // comes last
  const categories = [...names];
  const MIB = 1024 * 1024;
  const datasets = [];
  for (const stack of ['predicted', 'measured']) {
    for (const [index, category] of categories.entries()) {
      const color = at(MEMORY_COLORS, index);
      datasets.push({
        label: category.replaceAll('_', ' ') +
            (stack === 'predicted' ? ', predicted' : ''),
        stack,
        data: bars.map((bar) => {
          const use = bar.memory[category];
          const bytes = use === undefined ? null : use[stack];
          return bytes === null ? null : bytes / MIB;
        }),
        backgroundColor: stack === 'predicted' ? color + '66' : color,
        maxBarThickness: 34,
      });
    }
  }
  const options = barOptions(title, 'MiB', true, (mib) => bytesText(mib * MIB));
  options.plugins.legend.labels = {
    filter: (item) => !item.text.endsWith(', predicted'),
  };
  // The legend shows each category once, and switches both of its bars.
  options.plugins.legend.onClick = (event, item, legend) => {
    const half = datasets.length / 2;
    const visible = legend.chart.isDatasetVisible(item.datasetIndex);
    legend.chart.setDatasetVisibility(item.datasetIndex, !visible);
    legend.chart.setDatasetVisibility(item.datasetIndex - half, !visible);
    legend.chart.update();
  };
  options.plugins.tooltip.filter = (item) => item.parsed.y > 0;
  return {
    type: 'bar',
    data: {labels: bars.map((bar) => bar.label), datasets},
    options,
  };
}

// Colours are chosen once.
darkTheme.addEventListener('change', () => location.reload());
