//! `summary.md`: what was required, and the runs of each experiment, as tables in Markdown.

use std::fmt::Write as _;

use super::bounds::Row;
use super::{Verdict, columns, ours, outcome, peers, reservations};
use crate::record::Record;

pub(super) fn markdown(records: &[Record], rows: &[Row]) -> String {
    let mut text = String::from("# Results of the lab\n\n");
    for reservation in reservations(records) {
        let _ = writeln!(text, "{}\n", cell(&reservation));
    }
    text.push_str(
        "| experiment | what | bound | tidepool | verdict | peers |\n|---|---|---|---|---|---|\n",
    );
    for row in rows {
        let verdict = match Verdict::of(row) {
            Verdict::NotMet => format!("**{}**", Verdict::NotMet.text()),
            verdict => verdict.text().to_string(),
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} |",
            row.experiment,
            cell(&row.what),
            row.bound,
            ours(row),
            verdict,
            cell(&peers(row))
        );
    }
    text.push_str("\n## Runs\n");
    // Runs of an experiment follow each other.
    for runs in records.chunk_by(|one, next| one.experiment == next.experiment) {
        let runs: Vec<&Record> = runs.iter().collect();
        of_experiment(&mut text, &runs);
    }
    text
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// The figures of its runs, and what the pools held.
fn of_experiment(text: &mut String, records: &[&Record]) {
    let columns = columns::of(records);
    let mut headings = vec!["case", "engine"];
    headings.extend(columns.iter().map(|column| column.heading));
    headings.push("outcome");
    let rows = records.iter().map(|record| {
        let mut cells = vec![cell(&record.scenario), cell(&record.label())];
        cells.extend(columns::cells(&columns, record));
        cells.push(cell(&outcome(record)));
        cells
    });
    let experiment = records.first().map_or("", |record| &record.experiment);
    let _ = writeln!(text, "\n### {experiment}\n");
    table(text, &headings, columns.len(), rows);
    let Some(contents) = columns::contents(records) else { return };
    let _ = writeln!(text, "\nWhat the pool held at the end, MiB:\n");
    let headings: Vec<&str> = ["case", "engine"].into_iter().chain(contents.indexes).collect();
    let rows = contents.rows.into_iter().map(|(record, cells)| {
        let names = [cell(&record.scenario), cell(&record.label())];
        names.into_iter().chain(cells).collect()
    });
    table(text, &headings, headings.len() - 2, rows);
}

/// A table whose third column and the next ones are numbers.
fn table(
    text: &mut String,
    headings: &[&str],
    numbers: usize,
    rows: impl Iterator<Item = Vec<String>>,
) {
    let rest = headings.len().saturating_sub(2 + numbers);
    let _ = writeln!(text, "| {} |", headings.join(" | "));
    let _ = writeln!(text, "|---|---|{}{}", "---:|".repeat(numbers), "---|".repeat(rest));
    for row in rows {
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::finished;

    #[test]
    fn each_experiment_has_a_table_with_its_own_figures() {
        let records = [
            finished("swap", "a | b", "innodb", &[("qps", 5.0)]),
            finished("resize", "4 → 2", "tidepool", &[("seconds_below_90_percent", 2.0)]),
        ];
        let text = markdown(&records, &[]);
        let swap = "### swap\n\n| case | engine | queries/s | outcome |\n|---|---|---:|---|\n| a \\| b | innodb | 5 | finished |";
        assert!(text.contains(swap), "{text}");
        let resize = "| case | engine | seconds below 90 % | outcome |\n|---|---|---:|---|\n| 4 → 2 | tidepool | 2 | finished |";
        assert!(text.contains(resize), "{text}");
    }
}
