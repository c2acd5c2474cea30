//! The checker: a history in, anomalies out.

use std::fmt::Write as _;

use super::anomaly::{Anomaly, Name};
use super::cycles::short_cycles;
use super::history::{History, Key, Level, Outcome};
use super::lasting::missed;
use super::moments::{Graph, Why, graph};
use super::order::{Versions, order};
use super::reads::{Readings, read};

/// The most cycles that are reported.
const CYCLES: usize = 5;

/// What is wrong with a history, given that each transaction ran at the level that it names.
pub fn check(history: &History) -> Vec<Anomaly> {
    let mut readings = read(history);
    let versions = order(history, &mut readings);
    let mut graph = graph(history, &readings, &versions);
    let mut anomalies = std::mem::take(&mut readings.anomalies);
    anomalies.append(&mut graph.anomalies);
    anomalies.append(&mut missed(history, &readings, &versions));
    anomalies.append(&mut cycles(&graph));
    anomalies.append(&mut durability(history, &readings, &versions));
    anomalies
}

/// The history as if all its transactions had promised as much as this level does.
pub fn claim(history: &mut History, level: Level) {
    for transaction in &mut history.transactions {
        transaction.level = transaction.level.max(level);
    }
}

/// The cycles by the fewest kinds of edges by which there are any: so each gets the name that says
/// most.
fn cycles(graph: &Graph) -> Vec<Anomaly> {
    for most in [Why::Ww, Why::Wr, Why::RwAbsent, Why::Time] {
        let chosen: Vec<usize> =
            (0..graph.edges.len()).filter(|edge| graph.why[*edge].0 <= most).collect();
        let edges: Vec<(u32, u32)> = chosen.iter().map(|edge| graph.edges[*edge]).collect();
        let found = short_cycles(graph.moments.len(), &edges, CYCLES);
        if !found.is_empty() {
            let cycle = |cycle: Vec<usize>| -> Vec<usize> {
                cycle.into_iter().map(|edge| chosen[edge]).collect()
            };
            return found.into_iter().map(|edges| anomaly(graph, &cycle(edges))).collect();
        }
    }
    Vec::new()
}

/// A cycle of moments as one of transactions: what leads from each to the next.
fn collapse(graph: &Graph, cycle: &[usize]) -> Vec<(usize, Why, Option<Key>)> {
    let owner = |node: u32| graph.moments[node as usize].transaction;
    // Begun at a transaction's moment, so that what the clock says is not cut in two.
    let start = cycle.iter().position(|edge| owner(graph.edges[*edge].0).is_some()).unwrap_or(0);
    let mut links: Vec<(usize, Why, Option<Key>)> = Vec::new();
    let mut from = None;
    for edge in cycle[start..].iter().chain(&cycle[..start]) {
        let (tail, head) = graph.edges[*edge];
        let (why, key) = graph.why[*edge];
        from = owner(tail).or(from);
        if let (Some(_), Some(from)) = (owner(head), from)
            && why != Why::Own
        {
            links.push((from, why, key));
        }
    }
    links
}

fn anomaly(graph: &Graph, cycle: &[usize]) -> Anomaly {
    let links = collapse(graph, cycle);
    let mut what = String::new();
    for (from, why, key) in &links {
        let _ = write!(what, "T{from} ");
        let _ = match (why, key) {
            (Why::Time, _) | (_, None) => write!(what, "─ended before→ "),
            (why, Some(key)) => write!(what, "─{} {key}→ ", edge_name(*why)),
        };
    }
    let _ = write!(what, "T{}", links.first().map_or(0, |link| link.0));
    let mut keys: Vec<Key> = links.iter().filter_map(|link| link.2).collect();
    keys.sort_unstable();
    keys.dedup();
    let transactions = links.iter().map(|link| link.0).collect();
    Anomaly { name: name(&links), what, transactions, keys }
}

fn edge_name(why: Why) -> &'static str {
    match why {
        Why::Own => "own",
        Why::Ww => "ww",
        Why::Wr => "wr",
        Why::Rw => "rw",
        Why::RwAbsent => "rw (absent)",
        Why::Time => "time",
    }
}

/// What a cycle is called.
fn name(links: &[(usize, Why, Option<Key>)]) -> Name {
    let is_anti = |why: Why| matches!(why, Why::Rw | Why::RwAbsent);
    let has = |why: Why| links.iter().any(|link| link.1 == why);
    let anti = links.iter().filter(|link| is_anti(link.1)).count();
    let adjacent =
        (0..links.len()).any(|at| is_anti(links[at].1) && is_anti(links[(at + 1) % links.len()].1));
    match (anti, has(Why::Time)) {
        (0, false) if !has(Why::Wr) => Name::G0,
        (0, true) if !has(Why::Wr) => Name::G0Realtime,
        (0, false) => Name::G1c,
        (0, true) => Name::G1cRealtime,
        (1, false) => Name::GSingle,
        (1, true) => Name::GSingleRealtime,
        (_, false) if !adjacent => Name::GNonadjacent,
        (_, true) if !adjacent => Name::GNonadjacentRealtime,
        (_, false) if has(Why::RwAbsent) => Name::G2,
        (_, true) if has(Why::RwAbsent) => Name::G2Realtime,
        (_, false) => Name::G2Item,
        (_, true) => Name::G2ItemRealtime,
    }
}

/// After a crash: all that was acknowledged is there, and what was in doubt is there wholly or not
/// at all.
///
/// A commit is seen by others before it is durable, and a transaction that has only read says
/// nothing of what it has read: so what somebody saw may be gone, but then everything after it is
/// gone as well, and none of that was acknowledged.
fn durability(history: &History, readings: &Readings, versions: &Versions) -> Vec<Anomaly> {
    let Some(after) = &history.after_crash else { return Vec::new() };
    let mut wrong = Vec::new();
    let mut not_durable = |key: Key, number: usize, what: String| {
        wrong.push(Anomaly::of(Name::NotDurable, key, &[number], what));
    };
    for (number, transaction) in history.transactions.iter().enumerate() {
        let writes = !readings.effects[number].is_empty();
        let missing = after.marking.contains(&number) && !after.marked.contains(&number);
        if transaction.outcome == Outcome::Committed && writes && missing {
            let key = *readings.effects[number].keys().next().expect("it writes");
            not_durable(key, number, format!("T{number} was acknowledged, and its mark is gone"));
        }
    }
    // A key may have been written by one that was lost, or not at all: the initial rows count, too.
    for key in versions.keys() {
        let list = versions.of(key);
        let left = after.rows.iter().find(|row| row.key == key);
        let survives = |number: usize| {
            let doubtful = history.transactions[number].outcome == Outcome::Unknown;
            match (doubtful, after.marking.contains(&number)) {
                (false, _) => Some(true),
                (true, true) => Some(after.marked.contains(&number)),
                (true, false) => None,
            }
        };
        let must = |place: usize, what: bool| {
            list[place].writer.map_or(what, |number| survives(number) == Some(what))
        };
        // The versions that may be the one that is left: none after it must be there, and none up
        // to it must not.
        let first = (0..list.len()).rev().find(|place| must(*place, true)).unwrap_or(0);
        let end = (0..list.len())
            .find(|place| list[*place].writer.is_some() && must(*place, false))
            .unwrap_or(list.len());
        let is_left = |place: usize| match (list[place].row, left) {
            (None, None) => true,
            (Some((id, bucket)), Some(row)) => row.list.last() == Some(&id) && row.bucket == bucket,
            _ => false,
        };
        if !(first..end).any(is_left) {
            let number = list[first].writer.unwrap_or(0);
            let what = match left {
                Some(row) => format!("{key} = {:?} after the crash", row.list),
                None => format!("no {key} after the crash"),
            };
            not_durable(
                key,
                number,
                format!("{what}; T{number} was the last whose write must be there"),
            );
        }
    }
    wrong
}
