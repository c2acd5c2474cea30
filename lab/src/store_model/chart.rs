//! The chart of a trace: bytes written over those of the images, against the space that they take.

use super::command::{GOALS, GRANULE_BYTES, Outcome, segments};
use super::layout::{Codec, Load};
use super::segments::{Options as Layout, Sharing, Streams, Victim};
use super::trace::Writes;
use crate::report::svg::{Anchor, Svg};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 380.0;
const MARGIN: f64 = 60.0;
/// Room for the names of the curves.
const RIGHT: f64 = 210.0;

struct Curve {
    name: &'static str,
    colour: char,
    /// Space and amplification.
    points: Vec<(f64, f64)>,
}

fn curves(writes: &Writes) -> Vec<Curve> {
    let load = Load::new(writes, Codec::Zstd, GRANULE_BYTES, 1);
    let chosen = Layout::default();
    let greedy = Layout { streams: Streams::Cleaner, victim: Victim::Greedy, ..chosen };
    let cases = [
        ("chosen", 'a', chosen),
        ("cleaner apart, cost-benefit", 'b', Layout { streams: Streams::Cleaner, ..chosen }),
        ("cleaner apart, greedy", 'c', greedy),
        ("all tables share", 'd', Layout { sharing: Sharing::All, ..chosen }),
    ];
    let curve = |(name, colour, layout)| {
        let point = |goal| {
            let Outcome { counts, stored, .. } = segments(&load, Layout { goal, ..layout });
            let space = stored.disk_bytes as f64 / stored.live_bytes.max(1) as f64;
            (space, counts.amplification())
        };
        Curve { name, colour, points: GOALS.into_iter().map(point).collect() }
    };
    cases.into_iter().map(curve).collect()
}

/// Draws it.
pub fn space(writes: &Writes) -> String {
    let curves = curves(writes);
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let right = points().map(|point| point.0).fold(1.5, f64::max);
    let top = points().map(|point| point.1).fold(1.5, f64::max).ceil();
    let x = |space: f64| MARGIN + (space - 1.0) / (right - 1.0) * (WIDTH - MARGIN - RIGHT);
    let y = |times: f64| HEIGHT - MARGIN - (times - 1.0) / (top - 1.0) * (HEIGHT - 2.0 * MARGIN);
    let mut svg = Svg::new(WIDTH, HEIGHT);
    let title = format!("{}: bytes written and space", writes.about.name);
    svg.text("title", (MARGIN, 24.0), Anchor::Start, &title);
    svg.text("soft", (MARGIN, 44.0), Anchor::Start, "bytes written / bytes of images");
    let below = (x(right), HEIGHT - 20.0);
    svg.text("soft", below, Anchor::End, "bytes on disk / bytes of live images");
    for tenth in 10..=(right * 10.0) as u32 {
        let at = f64::from(tenth) / 10.0;
        let place = (x(at), HEIGHT - MARGIN + 16.0);
        svg.text("soft", place, Anchor::Middle, &format!("{at:.1}"));
    }
    for half in 2..=(top * 2.0) as u32 {
        let at = f64::from(half) / 2.0;
        svg.line("grid", (x(1.0), y(at)), (x(right), y(at)));
        svg.text("soft", (MARGIN - 8.0, y(at) + 4.0), Anchor::End, &format!("{at:.1}"));
    }
    for (number, curve) in curves.iter().enumerate() {
        let fill = format!("f{}", curve.colour);
        let places: Vec<(f64, f64)> = curve.points.iter().map(|at| (x(at.0), y(at.1))).collect();
        svg.polyline(&format!("line {}", curve.colour), &places);
        for (place, (space, times)) in places.iter().zip(&curve.points) {
            svg.dot(&fill, *place, 3.0, &format!("{times:.2} at {space:.2}"));
        }
        let at = (WIDTH - RIGHT + 24.0, 80.0 + 20.0 * number as f64);
        svg.dot(&fill, (at.0 - 8.0, at.1 - 4.0), 4.0, curve.name);
        svg.text("", at, Anchor::Start, curve.name);
    }
    svg.standalone(&title)
}
