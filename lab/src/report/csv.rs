//! The seconds of a run as comma-separated values, for plots of one's own: the fields of
//! [`Point`](crate::record::Point), with their names in the first line.

use serde_json::Value;

use crate::record::Record;

pub(super) fn series(record: &Record) -> String {
    let mut text = String::new();
    for point in &record.series {
        let Ok(Value::Object(fields)) = serde_json::to_value(point) else { continue };
        let mut line = |cells: Vec<String>| {
            text += &cells.join(",");
            text.push('\n');
        };
        if point == &record.series[0] {
            line(fields.keys().cloned().collect());
        }
        // A second that is not judged has an empty cell.
        let cell = |value: &Value| if value.is_null() { String::new() } else { value.to_string() };
        line(fields.values().map(cell).collect());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Point, finished};

    #[test]
    fn each_second_is_a_line_below_the_names() {
        let mut record = finished("swap", "rescue", "innodb", &[]);
        for at_s in [-1.0, 0.0, 1.0] {
            let relative = (at_s > 0.0).then_some(0.5);
            record.series.push(Point { at_s, qps: 7.5, relative, ..Point::default() });
        }
        let text = series(&record);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
        assert_eq!(lines.len(), 4);
        assert!(lines.iter().all(|line| line.len() == lines[0].len()));
        let column = |name: &str| {
            let at = lines[0].iter().position(|one| *one == name).unwrap();
            lines[1..].iter().map(|line| line[at]).collect::<Vec<_>>()
        };
        assert_eq!(column("at_s"), ["-1.0", "0.0", "1.0"]);
        assert_eq!(column("qps"), ["7.5"; 3]);
        assert_eq!(column("relative"), ["", "", "0.5"]);
        assert_eq!(series(&finished("swap", "rescue", "innodb", &[])), "");
    }
}
