//! `report.html`: one page with everything in it, no script and nothing from elsewhere.

use std::fmt::Write as _;

use super::bounds::Row;
use super::overview::{self, Overview};
use super::svg::{self, escape};
use super::{Verdict, chart, columns, ours, outcome, peers, reservations};
use crate::record::Record;

const PAGE_STYLE: &str = "\
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;background:#fff;color:#1f2933}
table{border-collapse:collapse;margin:1rem 0;font-size:14px}
th,td{text-align:left;padding:.25rem .6rem;border-bottom:1px solid #e4e7eb;vertical-align:top}
.num{text-align:right;font-variant-numeric:tabular-nums}
.met{color:#00704a}.missed{color:#b3261e;font-weight:600}
.wide{overflow-x:auto}
figure{margin:1.5rem 0;overflow-x:auto}
details summary{cursor:pointer;font-weight:600;margin:.5rem 0}
.soft{color:#616e7c}
@media (prefers-color-scheme:dark){body{background:#14181d;color:#e4e7eb}th,td{border-color:#2d343c}.met{color:#35c99b}.missed{color:#ff8a80}.soft{color:#9aa5b1}}
";

/// The page: the verdicts, then each experiment's pictures from the condensed records, and all its
/// runs.
pub(super) fn html(records: &[Record], condensed: &[Record], rows: &[Row]) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <title>Results of the lab</title>\n<style>{PAGE_STYLE}{}</style></head>\n<body>\n<h1>Results of the lab</h1>\n",
        svg::style()
    );
    for reservation in reservations(records) {
        let _ = writeln!(page, "<p class=\"soft\">{}</p>", escape(&reservation));
    }
    requirements(&mut page, rows);
    let overviews = overview::all(condensed);
    let mut experiments: Vec<&str> = Vec::new();
    for record in records {
        if !experiments.contains(&record.experiment.as_str()) {
            experiments.push(&record.experiment);
        }
    }
    for experiment in experiments {
        let own: Vec<&Record> =
            records.iter().filter(|record| record.experiment == experiment).collect();
        let pictures = overviews.iter().filter(|overview| overview.experiment == experiment);
        section(&mut page, experiment, &own, pictures);
    }
    page.push_str("</body></html>\n");
    page
}

/// The table of what was required.
fn requirements(page: &mut String, rows: &[Row]) {
    page.push_str(
        "<h2>What was required</h2>\n<div class=\"wide\"><table><tr><th>experiment<th>what<th>bound<th>tidepool<th><th>peers</tr>\n",
    );
    for row in rows {
        let verdict = Verdict::of(row);
        let class = match verdict {
            Verdict::Met => "met",
            Verdict::NotMet => "missed",
            Verdict::None | Verdict::NotMeasured => "soft",
        };
        let _ = writeln!(
            page,
            "<tr><td>{}<td>{}<td>{}<td>{}<td class=\"{class}\">{}<td>{}</tr>",
            escape(&row.experiment),
            escape(&row.what),
            escape(&row.bound),
            escape(ours(row)),
            verdict.text(),
            escape(&peers(row))
        );
    }
    page.push_str("</table></div>\n");
}

/// An experiment: its pictures, the table of its runs, and a chart of each.
fn section<'a>(
    page: &mut String,
    experiment: &str,
    records: &[&Record],
    pictures: impl Iterator<Item = &'a Overview>,
) {
    let _ = writeln!(page, "<h2>{}</h2>", escape(experiment));
    for picture in pictures {
        let _ = writeln!(page, "<figure>{}</figure>", picture.svg.inline(&picture.title));
    }
    page.push_str("<div class=\"wide\"><table><tr><th>case<th>engine");
    let columns = columns::of(records);
    for column in &columns {
        let _ = write!(page, "<th class=\"num\">{}", column.heading);
    }
    page.push_str("<th>outcome</tr>\n");
    for record in records {
        let _ = write!(page, "<tr><td>{}<td>{}", escape(&record.scenario), escape(&record.label()));
        for cell in columns::cells(&columns, record) {
            let _ = write!(page, "<td class=\"num\">{}", escape(&cell));
        }
        let _ = writeln!(page, "<td>{}</tr>", escape(&outcome(record)));
    }
    page.push_str("</table></div>\n");
    contents(page, records);
    for record in records.iter().filter(|record| !record.series.is_empty()) {
        let title = chart::title(record);
        let _ = writeln!(
            page,
            "<details><summary>{}</summary><figure>{}</figure></details>",
            escape(&title),
            chart::run(record).inline(&title)
        );
    }
}

/// What the pools held at the end, of experiments that ask.
fn contents(page: &mut String, records: &[&Record]) {
    let Some(contents) = columns::contents(records) else { return };
    page.push_str("<p>What the pool held at the end, MiB:</p>\n<div class=\"wide\"><table><tr><th>case<th>engine");
    for index in &contents.indexes {
        let _ = write!(page, "<th class=\"num\">{}", escape(index));
    }
    page.push_str("</tr>\n");
    for (record, cells) in &contents.rows {
        let _ = write!(page, "<tr><td>{}<td>{}", escape(&record.scenario), escape(&record.label()));
        for cell in cells {
            let _ = write!(page, "<td class=\"num\">{cell}");
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table></div>\n");
}
