//! One chart a run: throughput, latency, the pool and the memory around it, disk and swap, below
//! each other on one time axis.
//!
//! Five quantities on one set of axes could not be read; five panels with one time axis can, and
//! what happens in the same second stands in one vertical line.

use super::svg::{Anchor, Svg};
use crate::record::{Point, Record};

const WIDTH: f64 = 860.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 46.0;
const BOTTOM: f64 = 30.0;
const PANEL_GAP: f64 = 14.0;

/// A quantity over time.
struct Line {
    name: &'static str,
    /// One of the style sheet's colours, "a" to "e".
    colour: char,
    of: fn(&Point) -> f64,
    /// Dashed and thin: for what is only there to compare with.
    thin: bool,
    area: bool,
}

struct Panel {
    unit: &'static str,
    height: f64,
    lines: Vec<Line>,
    /// The top of the axis is at least this.
    least_top: f64,
}

const fn line(name: &'static str, colour: char, of: fn(&Point) -> f64) -> Line {
    Line { name, colour, of, thin: false, area: false }
}

fn panels() -> Vec<Panel> {
    vec![
        Panel {
            unit: "queries/s",
            height: 120.0,
            lines: vec![Line { area: true, ..line("throughput", 'a', |point| point.qps) }],
            least_top: 10.0,
        },
        Panel {
            unit: "ms",
            height: 60.0,
            lines: vec![line("p95 latency", 'b', |point| point.p95_ms)],
            least_top: 1.0,
        },
        Panel {
            unit: "MiB",
            height: 100.0,
            lines: vec![
                line("pool", 'c', |point| (point.pool_bytes >> 20) as f64),
                Line {
                    thin: true,
                    ..line("pool's target", 'c', |point| (point.target_bytes >> 20) as f64)
                },
                line("pages held", 'e', |point| (point.data_bytes >> 20) as f64),
                Line {
                    area: true,
                    ..line("neighbour", 'd', |point| (point.neighbour_bytes >> 20) as f64)
                },
            ],
            least_top: 16.0,
        },
        Panel {
            unit: "MB/s",
            height: 70.0,
            lines: vec![
                line("disk reads", 'a', |point| point.disk_read_mb_s),
                line("disk writes", 'c', |point| point.disk_write_mb_s),
            ],
            least_top: 1.0,
        },
        Panel {
            unit: "MB/s",
            height: 56.0,
            lines: vec![
                line("swap-in", 'b', |point| point.swap_in_mb_s),
                line("swap-out", 'd', |point| point.swap_out_mb_s),
            ],
            least_top: 1.0,
        },
    ]
}

/// The time series of a run.
pub fn run(record: &Record) -> Svg {
    let mut panels = panels();
    for panel in &mut panels {
        // A line that is zero throughout would only hide the axis, except the first of its panel,
        // whose zero says something.
        let mut first = true;
        panel.lines.retain(|line| {
            let keep = first || record.series.iter().any(|point| (line.of)(point) > 0.0);
            first = false;
            keep
        });
    }
    let height = TOP + panels.iter().map(|panel| panel.height + PANEL_GAP).sum::<f64>() + BOTTOM;
    let mut svg = Svg::new(WIDTH, height);
    svg.text("title", (12.0, 20.0), Anchor::Start, &title(record));
    svg.text("soft", (12.0, 36.0), Anchor::Start, &subtitle(record));

    let first_s = record.series.first().map_or(0.0, |point| point.at_s - 1.0);
    let last_s = record.series.last().map_or(1.0, |point| point.at_s).max(first_s + 1.0);
    let right = WIDTH - RIGHT;
    let x = |at_s: f64| LEFT + (at_s - first_s) / (last_s - first_s) * (right - LEFT);
    let bottom = height - BOTTOM - PANEL_GAP;
    if first_s < 0.0 {
        svg.rect("band", x(first_s), TOP, x(0.0) - x(first_s), bottom - TOP);
    }
    let step = nice_step((last_s - first_s) / 10.0).max(1.0);
    // Plus zero: −4 / 5 rounds up to a zero that is written "-0".
    let mut tick = (first_s / step).ceil() * step + 0.0;
    while tick <= last_s {
        svg.line("grid", (x(tick), TOP), (x(tick), bottom));
        svg.text("soft", (x(tick), bottom + 16.0), Anchor::Middle, &format!("{tick:.0} s"));
        tick += step;
    }
    let mut top = TOP;
    for panel in &panels {
        draw(&mut svg, panel, record, top, &x);
        top += panel.height + PANEL_GAP;
    }
    for (number, event) in record.events.iter().enumerate() {
        let at = x(event.at_s);
        svg.line("event", (at, TOP - 4.0), (at, bottom));
        // Labels next to each other would cover each other: alternate heights.
        let y = TOP + 9.0 + 12.0 * (number % 3) as f64;
        svg.text("soft", (at + 3.0, y), Anchor::Start, &event.what);
    }
    svg
}

fn draw(svg: &mut Svg, panel: &Panel, record: &Record, top: f64, x: &dyn Fn(f64) -> f64) {
    let right = WIDTH - RIGHT;
    let values =
        panel.lines.iter().flat_map(|line| record.series.iter().map(move |point| (line.of)(point)));
    let highest = values.fold(panel.least_top, f64::max) * 1.04;
    let bottom = top + panel.height;
    let y = |value: f64| bottom - value / highest * panel.height;
    let step = nice_step(highest / (panel.height / 26.0));
    // At least one tick above zero.
    let step = if step > highest * 0.9 { step / 2.0 } else { step };
    let mut tick = 0.0;
    while tick <= highest {
        svg.line("grid", (LEFT, y(tick)), (right, y(tick)));
        svg.text("soft", (LEFT - 6.0, y(tick) + 4.0), Anchor::End, &number(tick));
        tick += step;
    }
    svg.line("axis", (LEFT, bottom), (right, bottom));
    svg.text("soft", (right + 10.0, top + 8.0), Anchor::Start, panel.unit);
    for (number, line) in panel.lines.iter().enumerate() {
        let points: Vec<(f64, f64)> =
            record.series.iter().map(|point| (x(point.at_s), y((line.of)(point)))).collect();
        if line.area {
            svg.area(&format!("area f{}", line.colour), &points, bottom);
        }
        let thin = if line.thin { " thin" } else { "" };
        svg.polyline(&format!("line {}{thin}", line.colour), &points);
        let row = top + 24.0 + 15.0 * number as f64;
        let sample = [(right + 10.0, row - 4.0), (right + 28.0, row - 4.0)];
        svg.polyline(&format!("line {}{thin}", line.colour), &sample);
        svg.text("", (right + 34.0, row), Anchor::Start, line.name);
    }
}

/// What was run.
pub fn title(record: &Record) -> String {
    format!("{} — {}: {}", record.experiment, record.label(), record.scenario)
}

fn subtitle(record: &Record) -> String {
    use crate::record::Outcome;
    let outcome = match &record.outcome {
        Outcome::Finished => String::new(),
        Outcome::OomKilled => "the kernel killed the server: out of memory · ".into(),
        Outcome::Failed(why) => format!("failed: {} · ", why.lines().next().unwrap_or_default()),
    };
    let figure = |name: &str, digits: usize| {
        record.figure(name).map_or("–".to_string(), |value| format!("{value:.digits$}"))
    };
    format!(
        "{outcome}{} · {} · median {} queries/s, p95 {} ms · configuration {}",
        record.server_version,
        record.config.get("script").map_or("", String::as_str),
        figure("qps", 0),
        figure("p95_ms", 2),
        record.config_hash
    )
}

/// A number for an axis: 1500 as "1.5k".
pub fn number(value: f64) -> String {
    let short = |value: f64| {
        let text = match value.abs() {
            magnitude if magnitude >= 100.0 => return format!("{value:.0}"),
            magnitude if magnitude >= 10.0 => format!("{value:.1}"),
            _ => format!("{value:.2}"),
        };
        text.trim_end_matches('0').trim_end_matches('.').to_string()
    };
    match value.abs() {
        magnitude if magnitude >= 1e6 => format!("{}M", short(value / 1e6)),
        magnitude if magnitude >= 1e3 => format!("{}k", short(value / 1e3)),
        _ => short(value),
    }
}

/// The next of 1, 2, 5, 10, 20, 50, … that is not below.
pub fn nice_step(least: f64) -> f64 {
    if !(least.is_finite() && least > 0.0) {
        return 1.0;
    }
    let power = 10f64.powf(least.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= least * 0.999);
    factor.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_numbers_of_axes_are_round() {
        assert_eq!(nice_step(0.7), 1.0);
        assert_eq!(nice_step(1300.0), 2000.0);
        assert_eq!(nice_step(5.0), 5.0);
        assert_eq!(nice_step(0.0), 1.0);
        assert_eq!(number(1500.0), "1.5k");
        assert_eq!(number(0.0), "0");
        assert_eq!(number(20_000.0), "20k");
        assert_eq!(number(613.74), "614");
        assert_eq!(number(12_345.0), "12.3k");
    }
}
