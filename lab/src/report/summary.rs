//! `summary.md`: what was required, and all runs, as two tables in Markdown.

use std::fmt::Write as _;

use super::bounds::Row;
use super::{COLUMNS, QUICK, Verdict, cells, ours, outcome, peers};
use crate::record::Record;

pub(super) fn markdown(records: &[Record], rows: &[Row]) -> String {
    let mut text = String::from("# Results of the lab\n\n");
    if records.iter().any(|record| record.quick) {
        let _ = writeln!(text, "{QUICK}\n");
    }
    let cell = |text: &str| text.replace('|', "\\|");
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
    text.push_str("\n## Runs\n\n| experiment | case | engine |");
    for (_, heading, _) in COLUMNS {
        let _ = write!(text, " {heading} |");
    }
    text.push_str(" outcome |\n|---|---|---|");
    text.push_str(&"---:|".repeat(COLUMNS.len()));
    text.push_str("---|\n");
    for record in records {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            record.experiment,
            cell(&record.scenario),
            cell(&record.label()),
            cells(record).join(" | "),
            cell(&outcome(record))
        );
    }
    text
}
