//! Advice on a trace: what the advisor predicts, and what the policy does at full size.

use super::SIZE_FACTORS;
use super::curve::{Curve, holding, request_of};
use crate::access_sampling::{Event, Touch};
use crate::error::Result;
use crate::replacement::{ReplacementConfig, Simulation};
use crate::trace::{Trace, TraceRequest};

/// Prediction and truth at one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// Relative to the size that the pool has.
    pub size_factor: f64,
    /// Hit ratio that the advisor of a pool of the present size predicts.
    pub predicted: f64,
    /// Hit ratio of the whole policy on all of the trace's pages.
    pub measured: f64,
}

/// How often the pool's background thread comes by.
const STEP_US: u64 = 100_000;

/// Replays the trace for a pool of `frames` frames, at every size of [`SIZE_FACTORS`]. What the
/// first `warm_up` requests did is not counted, neither in the prediction nor in the measurement.
///
/// # Errors
/// A wrong configuration, or no memory.
pub fn compare(
    config: &ReplacementConfig,
    frames: u32,
    trace: &Trace,
    warm_up: usize,
) -> Result<Vec<Comparison>> {
    let warm_up = warm_up.min(trace.requests.len());
    let events: Vec<Event> = trace.requests.iter().map(event_of).collect();
    let mut curve = Curve::new(config, frames)?;
    feed(&mut curve, &events[..warm_up])?;
    curve.forget();
    feed(&mut curve, &events[warm_up..])?;
    SIZE_FACTORS
        .iter()
        .map(|&size_factor| {
            let size = f64::from(frames) * size_factor;
            let predicted = 1.0 - curve.miss_ratio(size).unwrap_or(0.0);
            let mut whole = Simulation::new(config, holding(size).round() as u32)?;
            let (mut misses, mut requests) = (0u64, 0u64);
            for (position, event) in events.iter().enumerate() {
                let hit = whole.request(&request_of(event));
                if position >= warm_up {
                    requests += 1;
                    misses += u64::from(!hit && event.touch != Touch::Created);
                }
            }
            let measured = 1.0 - misses as f64 / requests.max(1) as f64;
            Ok(Comparison { size_factor, predicted, measured })
        })
        .collect()
}

/// Feeds the curve as the sampler and the background thread would.
fn feed(curve: &mut Curve, events: &[Event]) -> Result<()> {
    let steps = events.chunk_by(|a, b| a.at_us / STEP_US == b.at_us / STEP_US);
    let mut heard = Vec::new();
    let mut last_us = events.first().map_or(0, |event| event.at_us);
    for step in steps {
        heard.clear();
        heard.extend(step.iter().filter(|event| curve.sample().holds(event.page)));
        curve.drop_certain_hits(&mut heard);
        curve.observe(&heard);
        let now_us = step.last().map_or(last_us, |event| event.at_us);
        curve.account(step.len() as u64, 0.0, (now_us - last_us) as f64 / 1e6)?;
        last_us = now_us;
    }
    Ok(())
}

fn event_of(request: &TraceRequest) -> Event {
    let touch = match request {
        TraceRequest { created: true, .. } => Touch::Created,
        TraceRequest { scan: true, .. } => Touch::Scan,
        _ => Touch::Normal,
    };
    let statement = request.statement as u32;
    Event { page: request.page, at_us: request.at_us, statement, touch, count: 1 }
}
