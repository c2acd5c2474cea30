//! One picture an experiment: its main figure for every case and engine, side by side.

use super::chart::{nice_step, number};
use super::svg::{Anchor, Svg};
use crate::experiment::swap::RESCUE;
use crate::record::{NEVER, Outcome, Record};

const WIDTH: f64 = 860.0;
const LEFT: f64 = 290.0;
const RIGHT: f64 = 96.0;
const TOP: f64 = 62.0;
const BAR: f64 = 15.0;
const GROUP_GAP: f64 = 11.0;

/// A picture of an experiment.
#[derive(Debug)]
pub struct Overview {
    pub experiment: String,
    /// For a file's name.
    pub name: String,
    /// What it shows.
    pub title: String,
    /// The picture.
    pub svg: Svg,
}

/// An experiment's main figure.
struct Measure {
    experiment: &'static str,
    figure: &'static str,
    title: &'static str,
    /// A line to compare the bars with.
    reference: Option<f64>,
    /// Whether a case belongs here.
    has: fn(&Record) -> bool,
}

fn any(_: &Record) -> bool {
    true
}

fn is_rescue(record: &Record) -> bool {
    record.scenario == RESCUE
}

fn is_no_rescue(record: &Record) -> bool {
    !is_rescue(record)
}

fn is_under_pressure(record: &Record) -> bool {
    !record.scenario.starts_with("baseline")
}

const MEASURES: [Measure; 11] = [
    Measure {
        experiment: "swap",
        figure: "qps",
        title: "Oversized pool: queries per second, more is better",
        reference: None,
        has: is_no_rescue,
    },
    Measure {
        experiment: "swap",
        figure: "seconds_to_90_percent",
        title: "Rescue of a pool that swaps: seconds until 90 % of the throughput at the end, less is better",
        reference: None,
        has: is_rescue,
    },
    Measure {
        experiment: "pressure",
        figure: "worst_second_ratio",
        title: "Memory pressure: worst second relative to a fixed pool of the same size, more is better",
        reference: Some(0.8),
        has: is_under_pressure,
    },
    Measure {
        experiment: "limits",
        figure: "swapped_out_mb",
        title: "A limit lowered by half: MB swapped out, less is better",
        reference: Some(50.0),
        has: any,
    },
    Measure {
        experiment: "resize",
        figure: "worst_second_ratio",
        title: "Online resize: worst second relative to the lower steady state, more is better",
        reference: None,
        has: any,
    },
    Measure {
        experiment: "sideload",
        figure: "steady_tps",
        title: "Side load: transactions per second of the OLTP, more is better",
        reference: None,
        has: any,
    },
    Measure {
        experiment: "sideload",
        figure: "missing_share",
        title: "Side load: share of the resident table that the pool has lost, less is better",
        reference: None,
        has: any,
    },
    Measure {
        experiment: "warm",
        figure: "seconds_to_90_percent",
        title: "Restart after kill -9: seconds until 90 % of the later throughput, less is better",
        reference: None,
        has: any,
    },
    Measure {
        experiment: "queries",
        figure: "queries_s",
        title: "The 22 queries of TPC-H: seconds in sum, less is better",
        reference: None,
        has: any,
    },
    Measure {
        experiment: "cluster",
        figure: "tps",
        title: "One table on several nodes: transactions per second, more is better",
        reference: None,
        has: any,
    },
    Measure {
        experiment: "defaults",
        figure: "tps",
        title: "As installed and tuned by hand: TPC-C transactions per second, more is better",
        reference: None,
        has: any,
    },
];

/// All pictures that the records give.
pub fn all(records: &[Record]) -> Vec<Overview> {
    let mut overviews: Vec<Overview> =
        MEASURES.iter().filter_map(|measure| bars(records, measure)).collect();
    overviews.extend(advice(records));
    overviews
}

struct Bar<'a> {
    label: String,
    value: f64,
    record: &'a Record,
}

/// The bars of a measure by scenario, and their labels, in the order of the records.
#[derive(Default)]
struct Bars<'a> {
    groups: Vec<(&'a str, Vec<Bar<'a>>)>,
    labels: Vec<String>,
}

impl<'a> Bars<'a> {
    fn of(records: &'a [Record], measure: &Measure) -> Bars<'a> {
        let mut bars = Bars::default();
        let is_shown =
            |record: &&Record| record.experiment == measure.experiment && (measure.has)(record);
        for record in records.iter().filter(is_shown) {
            let dead = record.outcome != Outcome::Finished;
            let value = match record.figure(measure.figure) {
                Some(value) => value,
                None if dead => 0.0,
                None => continue,
            };
            let bar = Bar { label: record.label(), value, record };
            if !bars.labels.contains(&bar.label) {
                bars.labels.push(bar.label.clone());
            }
            match bars.groups.iter_mut().find(|(scenario, _)| *scenario == record.scenario) {
                Some((_, group)) => group.push(bar),
                None => bars.groups.push((&record.scenario, vec![bar])),
            }
        }
        bars
    }

    fn all(&self) -> impl Iterator<Item = &Bar<'a>> {
        self.groups.iter().flat_map(|(_, bars)| bars)
    }

    /// Whether each bar has its name beside it, as there are not as many colours as engines with
    /// their set-ups. Each engine has one colour then.
    fn named_one_by_one(&self) -> bool {
        self.labels.len() > COLOURS.len()
    }

    /// The colour of each bar, in the order of [`Bars::all`].
    fn colours(&self) -> Vec<char> {
        let mut engines: Vec<&str> = Vec::new();
        for bar in self.all() {
            if !engines.contains(&bar.record.engine.as_str()) {
                engines.push(&bar.record.engine);
            }
        }
        let which = |bar: &Bar| match self.named_one_by_one() {
            true => engines.iter().position(|engine| *engine == bar.record.engine),
            false => self.labels.iter().position(|label| *label == bar.label),
        };
        self.all().map(|bar| colour(which(bar).unwrap_or(0))).collect()
    }
}

/// What is written behind a bar.
fn bar_text(bar: &Bar, named: bool) -> String {
    let text = match &bar.record.outcome {
        Outcome::OomKilled => "killed: out of memory".to_string(),
        Outcome::Failed(_) => "failed".to_string(),
        Outcome::Finished if bar.value >= NEVER => "never".to_string(),
        Outcome::Finished => number(bar.value),
    };
    if named { format!("{text} {}", bar.label) } else { text }
}

fn bars(records: &[Record], measure: &Measure) -> Option<Overview> {
    let bars = Bars::of(records, measure);
    if bars.groups.is_empty() {
        return None;
    }
    let bottom = TOP + bars.all().count() as f64 * BAR + bars.groups.len() as f64 * GROUP_GAP;
    let mut svg = Svg::new(WIDTH, bottom + 30.0);
    svg.text("title", (12.0, 20.0), Anchor::Start, measure.title);
    let named = bars.named_one_by_one();
    if !named {
        legend(&mut svg, &bars.labels);
    }
    let most = bars.all().map(|bar| bar.value).filter(|value| *value < NEVER).fold(0.0, f64::max);
    let most = most.max(measure.reference.unwrap_or(0.0)).max(1e-6) * 1.02;
    let right = WIDTH - if named { RIGHT + 110.0 } else { RIGHT };
    let x = |value: f64| LEFT + value.clamp(0.0, most) / most * (right - LEFT);
    let step = nice_step(most / 6.0);
    let mut tick = 0.0;
    while tick <= most {
        svg.line("grid", (x(tick), TOP - 6.0), (x(tick), bottom));
        svg.text("soft", (x(tick), bottom + 16.0), Anchor::Middle, &number(tick));
        tick += step;
    }
    let mut y = TOP;
    let mut colours = bars.colours().into_iter();
    for (scenario, group) in &bars.groups {
        let middle = y + group.len() as f64 * BAR / 2.0 + 4.0;
        svg.text("", (LEFT - 10.0, middle), Anchor::End, &scenario.replace("oltp_", ""));
        for (bar, colour) in group.iter().zip(colours.by_ref()) {
            let end = if bar.value >= NEVER { most } else { bar.value };
            svg.rect(&format!("f{colour}"), LEFT, y + 1.5, x(end) - LEFT, BAR - 3.0);
            let text = bar_text(bar, named);
            svg.text("soft", (x(end) + 5.0, y + BAR - 4.0), Anchor::Start, &text);
            y += BAR;
        }
        y += GROUP_GAP;
    }
    svg.line("axis", (LEFT, TOP - 6.0), (LEFT, bottom));
    if let Some(reference) = measure.reference {
        svg.line("event", (x(reference), TOP - 6.0), (x(reference), bottom));
    }
    Some(Overview {
        experiment: measure.experiment.into(),
        name: format!("overview-{}-{}", measure.experiment, measure.figure.replace('_', "-")),
        title: measure.title.into(),
        svg,
    })
}

fn legend(svg: &mut Svg, labels: &[String]) {
    let mut left = 12.0;
    for (number, label) in labels.iter().enumerate() {
        svg.rect(&format!("f{}", colour(number)), left, 33.0, 11.0, 11.0);
        svg.text("", (left + 16.0, 43.0), Anchor::Start, label);
        left += 44.0 + 7.0 * label.chars().count() as f64;
    }
}

const COLOURS: [char; 5] = ['a', 'b', 'd', 'c', 'e'];

fn colour(number: usize) -> char {
    COLOURS[number % COLOURS.len()]
}

/// Predicted against measured hit ratio by the pool's size, one panel a load.
fn advice(records: &[Record]) -> Option<Overview> {
    let mut loads: Vec<(&str, Vec<&Record>)> = Vec::new();
    for record in records.iter().filter(|record| record.experiment == "advice") {
        let Some((load, _)) = record.scenario.split_once(", ") else { continue };
        match loads.iter_mut().find(|(name, _)| *name == load) {
            Some((_, records)) => records.push(record),
            None => loads.push((load, vec![record])),
        }
    }
    if loads.is_empty() {
        return None;
    }
    let title = "Advice: hit ratio by the pool's size, predicted (line) and measured (dots)";
    let (panel, gap, top, height) = (230.0, 44.0, 62.0, 190.0);
    let mut svg = Svg::new(WIDTH, top + height + 44.0);
    svg.text("title", (12.0, 20.0), Anchor::Start, title);
    for (at, (load, records)) in loads.iter_mut().enumerate() {
        let left = 48.0 + at as f64 * (panel + gap);
        let factor = |record: &Record| record.figure("size_factor").unwrap_or(1.0);
        records.sort_by(|a, b| factor(a).total_cmp(&factor(b)));
        let x = |factor: f64| left + (factor.log2() + 2.0) / 4.0 * panel;
        let y = |ratio: f64| top + (1.0 - ratio.clamp(0.0, 1.0)) * height;
        svg.text("", (left, top - 10.0), Anchor::Start, load);
        for tenth in (0..=10).step_by(2) {
            let ratio = f64::from(tenth) / 10.0;
            svg.line("grid", (left, y(ratio)), (left + panel, y(ratio)));
            svg.text("soft", (left - 6.0, y(ratio) + 4.0), Anchor::End, &number(ratio));
        }
        for size in [0.25, 0.5, 1.0, 2.0, 4.0] {
            svg.line("grid", (x(size), top), (x(size), top + height));
            let name = match size {
                0.25 => "¼".to_string(),
                0.5 => "½".to_string(),
                _ => format!("{size}"),
            };
            svg.text("soft", (x(size), top + height + 16.0), Anchor::Middle, &name);
        }
        let points = |name: &'static str| -> Vec<(f64, f64)> {
            let value = |record: &&Record| Some((x(factor(record)), y(record.figure(name)?)));
            records.iter().filter_map(value).collect()
        };
        svg.polyline("line a", &points("hit_ratio_predicted"));
        for (point, record) in points("hit_ratio_measured").into_iter().zip(records.iter()) {
            svg.dot("fb", point, 4.0, &record.scenario);
        }
        svg.text(
            "soft",
            (left + panel / 2.0, top + height + 34.0),
            Anchor::Middle,
            "× the present size",
        );
    }
    Some(Overview {
        experiment: "advice".into(),
        name: "overview-advice".into(),
        title: title.into(),
        svg,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::finished;

    #[test]
    fn a_rescue_has_a_picture_of_its_own() {
        let figures = [("qps", 100.0), ("seconds_to_90_percent", NEVER)];
        let mut records = vec![
            finished("swap", "select, 75 %", "innodb", &[("qps", 100.0)]),
            finished("swap", RESCUE, "innodb", &figures),
        ];
        // It is no rescue that failed.
        records[0].outcome = Outcome::OomKilled;
        let names: Vec<String> = all(&records).into_iter().map(|one| one.name).collect();
        assert_eq!(names, ["overview-swap-qps", "overview-swap-seconds-to-90-percent"]);
        for measure in MEASURES.iter().filter(|measure| measure.experiment == "swap") {
            assert_eq!(Bars::of(&records, measure).all().count(), 1, "{}", measure.title);
        }
    }
}
