//! What another node brings, and what the model says of it.

use super::{Bound, Row, add, figure_of, ratio, tell};
use crate::experiment::cluster::{LOADS, NODES, case};
use crate::record::Record;

/// Of the throughput of one node, times the nodes.
const LEAST_SHARE: f64 = 0.8;

/// Adds the rows of the experiment.
pub(super) fn rows(records: &[&Record], rows: &mut Vec<Row>) {
    for (load, _) in LOADS {
        for nodes in NODES.into_iter().filter(|nodes| *nodes > 1) {
            let what = format!("{load}: {nodes} nodes, relative to {nodes} times one node");
            add(rows, records, what, Bound::AtLeast(LEAST_SHARE), ratio, |own| {
                let one = figure(own, &case(load, 1), "tps")?;
                Some(figure(own, &case(load, nodes), "tps")? / (one * f64::from(nodes)))
            });
        }
        let what = format!("{load}: processors of nodes that one of the front keeps busy");
        tell(rows, records, what, ratio, |own| {
            let one = case(load, 1);
            Some(figure(own, &one, "node_cpu_ms")? / figure(own, &one, "front_cpu_ms")?)
        });
    }
}

fn figure(records: &[&Record], scenario: &str, name: &str) -> Option<f64> {
    figure_of(records, scenario, name).filter(|value| *value > 0.0)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{record, row};
    use super::*;

    #[test]
    fn nodes_are_compared_with_as_many_times_one() {
        let figures = |tps| [("tps", tps), ("node_cpu_ms", 0.2), ("front_cpu_ms", 0.1)];
        let records = [
            record("cluster", "point selects, 1 node", "tidepool", &figures(100.0)),
            record("cluster", "point selects, 2 nodes", "tidepool", &figures(190.0)),
            record("cluster", "point selects, 4 nodes", "tidepool", &figures(200.0)),
        ];
        let records: Vec<&Record> = records.iter().collect();
        let mut found = Vec::new();
        rows(&records, &mut found);
        let two = row(&found, "point selects: 2 nodes").ours.as_ref().unwrap();
        assert_eq!((two.text.as_str(), two.pass), ("0.950", true));
        let four = row(&found, "point selects: 4 nodes").ours.as_ref().unwrap();
        assert_eq!((four.text.as_str(), four.pass), ("0.500", false));
        let front = row(&found, "one of the front keeps busy").ours.as_ref().unwrap();
        assert_eq!(front.text, "2.000");
    }
}
