//! What could not be read, for people and for programs.

use std::fmt::Write as _;

use serde_json::{Value, json};
use tidepool::ForceRecovery;
use tidepool::inspect::salvage::{Gap, LostEntry, Salvaged};

use super::names::TableName;
use super::output::Written;
use crate::bytes::{MIB, human};
use crate::offline::rows::description::{Image, Tree};
use crate::offline::rows::hex;
use crate::terminal::printable_lines;

/// What a client and a server take by default (`max_allowed_packet`).
const PACKET_BYTES: u64 = 16 * MIB;

/// What came of a directory.
pub struct Outcome {
    /// Why a start is refused, and which level of force_recovery helps.
    pub engine_error: Option<String>,
    /// The level that the rows were read with.
    pub level: ForceRecovery,
    /// What of the catalog could not be read.
    pub catalog: Salvaged,
    pub tables: Vec<Table>,
    /// Tables that were asked for, and are not there.
    pub missing: Vec<String>,
}

/// What came of a table.
pub struct Table {
    pub name: TableName,
    /// Number of its space.
    pub space: u32,
    /// What could be read, and what not.
    pub found: Salvaged,
    pub written: Written,
    /// Why its rows are written as bytes.
    pub why_not: Option<String>,
    /// Its clustered index, if it is known.
    pub clustered: Option<Tree>,
}

impl Outcome {
    /// Whether all was read, and what it means is clear. Where a start is refused, the log's
    /// changes are missing that could not be made, or all of them.
    pub fn is_whole(&self) -> bool {
        self.engine_error.is_none()
            && self.catalog.is_whole()
            && self.missing.is_empty()
            && self.tables.iter().all(|table| {
                table.found.is_whole()
                    && table.why_not.is_none()
                    && table.written.raw_rows == 0
                    && table.name.unfinished().is_none()
            })
    }
}

impl Table {
    fn file(&self) -> String {
        tidepool::space_file_name(self.space)
    }

    /// A key as a person can read it: its first column, if that is a number.
    fn shown(&self, key: &[u8]) -> Option<String> {
        let part = self.clustered.as_ref()?.parts.first()?;
        let is_number = matches!(part.image, Image::Signed | Image::Unsigned | Image::RowId);
        if !is_number || part.nullable || part.descending {
            return None;
        }
        // A separator may be shorter than a key: what is missing is as zeroes.
        let mut bytes = key.to_vec();
        bytes.resize(part.image_len, 0);
        if part.image == Image::Signed {
            bytes[0] ^= 0x80;
        }
        let number = bytes.iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
        let unused = 64 - 8 * part.image_len as u32;
        Some(match part.image {
            Image::Signed => ((number << unused) as i64 >> unused).to_string(),
            _ => number.to_string(),
        })
    }

    fn key(&self, key: &[u8]) -> String {
        match self.shown(key) {
            Some(shown) if !key.is_empty() => format!("{shown} (0x{})", hex(key)),
            _ => format!("0x{}", hex(key)),
        }
    }

    fn range(&self, gap: &Gap) -> String {
        let lower = match gap.lower.is_empty() {
            true => "the beginning".to_string(),
            false => self.key(&gap.lower),
        };
        match &gap.upper {
            Some(upper) => format!("keys from {lower} up to, not including, {}", self.key(upper)),
            None => format!("keys from {lower} to the end"),
        }
    }
}

/// The report for people.
pub fn text(outcome: &Outcome) -> String {
    let mut out = String::new();
    // Writing to a string never fails.
    let mut line = |text: String| _ = writeln!(out, "{text}");
    if let Some(error) = &outcome.engine_error {
        line(error.clone());
        line(match outcome.level {
            ForceRecovery::ReadOnly => {
                "  so changes of the log that can't be applied are missing; rows are as they were committed last".into()
            }
            ForceRecovery::NoUndo => {
                "  so rows of transactions that had not committed may be among the rows".into()
            }
            _ => "  so files were read as they are, without the log's changes where they lack, and rows of transactions that had \
                  not committed may be among the rows"
                .to_string(),
        });
    }
    for gap in &outcome.catalog.gaps {
        let page = gap.page.map_or(String::new(), |page| format!(", page {page}"));
        line(format!(
            "system.tpd{page}: a part of the catalog can't be read ({}): tables may be missing here",
            gap.why
        ));
    }
    for lost in &outcome.catalog.lost {
        line(format!(
            "system.tpd: the entry of table {} in the catalog can't be read: {}",
            String::from_utf8_lossy(&lost.key),
            lost.why
        ));
    }
    let more = outcome.catalog.lost_entries - outcome.catalog.lost.len() as u64;
    if more > 0 {
        line(format!("system.tpd: {more} more entries of the catalog can't be read"));
    }
    if outcome.catalog.unsure_entries > 0 {
        line(format!(
            "system.tpd: {} entries of the catalog are of changes that may not have been \
             committed: tables may be listed that were not, or no longer, there",
            outcome.catalog.unsure_entries
        ));
    }
    for note in &outcome.catalog.notes {
        line(note.clone());
    }
    for name in &outcome.missing {
        line(format!("{name}: there is no such table, or its entry in the catalog can't be read"));
    }
    for table in &outcome.tables {
        let (found, written) = (&table.found, &table.written);
        let state = if found.is_whole() { "all rows" } else { "not all rows" };
        line(format!(
            "{}: {state}, {} written, from {}",
            table.name.engine,
            written.rows + written.raw_rows,
            table.file()
        ));
        if found.lacks_changes {
            line(
                "  it has lost changes in a recovery that could not make them: rows may be \
                 missing, older than they should be, or deleted ones"
                    .into(),
            );
        }
        line_of_unfinished(&table.name).into_iter().for_each(&mut line);
        if let Some(why) = &table.why_not {
            line(format!("  as hexadecimal keys and rows: {why}"));
        }
        for gap in &found.gaps {
            let page = gap.page.map_or_else(String::new, |page| format!("page {page}: "));
            line(format!("  lost: {}: {page}{}", table.range(gap), gap.why));
        }
        for lost in &found.lost {
            line(format!("  lost: the row with key {}: {}", table.key(&lost.key), lost.why));
        }
        if found.lost_entries > found.lost.len() as u64 {
            line(format!("  lost: {} more rows", found.lost_entries - found.lost.len() as u64));
        }
        for (key, why) in &written.refused {
            line(format!("  as hexadecimal: the row with key {}: {why}", table.key(key)));
        }
        if found.unsure_entries > 0 {
            line(format!(
                "  unsure: {} rows whose transactions may not have committed",
                found.unsure_entries
            ));
        }
        if found.rescued_leaves > 0 {
            line(format!(
                "  {} leaves were found without the nodes above them",
                found.rescued_leaves
            ));
        }
        for note in &found.notes {
            line(format!("  {note}"));
        }
        line_of_long_statement(written).into_iter().for_each(&mut line);
    }
    line(match outcome.is_whole() {
        true => "all rows of all tables were read".into(),
        false => "not all could be read, or not all is sure: see above".to_string(),
    });
    printable_lines(&out)
}

fn line_of_unfinished(name: &TableName) -> Option<String> {
    name.unfinished().map(|why| format!("  {why}"))
}

/// A row may be longer than what is sent by default.
fn line_of_long_statement(written: &Written) -> Option<String> {
    let bytes = written.statement_max_bytes;
    (bytes >= PACKET_BYTES).then(|| {
        format!(
            "  a statement has {}: load the file with mariadb --max-allowed-packet=1G, after SET \
             GLOBAL max_allowed_packet = 1073741824",
            human(bytes)
        )
    })
}

/// The report for programs.
pub fn as_json(outcome: &Outcome) -> Value {
    let tables = outcome.tables.iter().map(|table| {
        let (found, written) = (&table.found, &table.written);
        let gap = |gap: &Gap| {
            json!({
                "page": gap.page,
                "why": gap.why,
                "lower": hex(&gap.lower),
                "upper": gap.upper.as_deref().map(hex),
                "lower_value": table.shown(&gap.lower),
                "upper_value": gap.upper.as_deref().and_then(|upper| table.shown(upper)),
            })
        };
        let lost = |lost: &LostEntry| json!({"key": hex(&lost.key), "why": lost.why});
        let refused = |(key, why): &(Vec<u8>, String)| json!({"key": hex(key), "why": why});
        json!({
            "name": table.name.engine,
            "file": table.file(),
            "whole": found.is_whole(),
            "rows": written.rows,
            "raw_rows": written.raw_rows,
            "raw_because": table.why_not,
            "files": written.files.iter().map(|path| path.display().to_string()).collect::<Vec<_>>(),
            "gaps": found.gaps.iter().map(gap).collect::<Vec<_>>(),
            "lost": found.lost.iter().map(lost).collect::<Vec<_>>(),
            "lost_rows": found.lost_entries,
            "longest_statement_bytes": written.statement_max_bytes,
            "refused": written.refused.iter().map(refused).collect::<Vec<_>>(),
            "unsure_rows": found.unsure_entries,
            "rescued_leaves": found.rescued_leaves,
            "lacks_changes": found.lacks_changes,
            "unfinished": table.name.unfinished(),
            "notes": found.notes,
        })
    });
    let catalog_lost =
        |lost: &LostEntry| json!({"name": String::from_utf8_lossy(&lost.key), "why": lost.why});
    json!({
        "whole": outcome.is_whole(),
        "engine_error": outcome.engine_error,
        "force_recovery": outcome.level.level(),
        "catalog_gaps": outcome.catalog.gaps.iter().map(|gap| json!({"page": gap.page, "why": gap.why})).collect::<Vec<_>>(),
        "catalog_lost": outcome.catalog.lost.iter().map(catalog_lost).collect::<Vec<_>>(),
        "catalog_lost_entries": outcome.catalog.lost_entries,
        "catalog_unsure_entries": outcome.catalog.unsure_entries,
        "catalog_notes": outcome.catalog.notes,
        "missing": outcome.missing,
        "tables": tables.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(catalog: Salvaged, tables: Vec<(&str, Salvaged)>) -> Outcome {
        let table = |(name, found): (&str, Salvaged)| Table {
            name: TableName::of(name),
            space: 16,
            found,
            written: Written::default(),
            why_not: None,
            clustered: None,
        };
        Outcome {
            engine_error: None,
            level: ForceRecovery::Off,
            catalog,
            tables: tables.into_iter().map(table).collect(),
            missing: Vec::new(),
        }
    }

    #[test]
    fn whatever_is_not_whole_is_said() {
        let whole = outcome(Salvaged::default(), vec![("shop/t", Salvaged::default())]);
        assert!(whole.is_whole() && text(&whole).contains("all rows of all tables were read"));
        let refused = |level| Outcome {
            engine_error: Some("the engine can't start".into()),
            level,
            ..outcome(Salvaged::default(), vec![("shop/t", Salvaged::default())])
        };
        let lost = LostEntry { key: b"shop/gone".to_vec(), why: "cut short".into() };
        let lost = Salvaged { lost: vec![lost], lost_entries: 3, ..Salvaged::default() };
        let unsure = Salvaged { unsure_entries: 2, ..Salvaged::default() };
        let note = "system.tpd: none of its roots is whole";
        let rescued =
            Salvaged { is_rescued: true, notes: vec![note.into()], ..Salvaged::default() };
        let lacking = Salvaged { lacks_changes: true, ..Salvaged::default() };
        let of_catalog = |catalog| outcome(catalog, Vec::new());
        for (outcome, said) in [
            (refused(ForceRecovery::Off), "can't start"),
            (refused(ForceRecovery::ReadOnly), "can't start"),
            (refused(ForceRecovery::NoUndo), "can't start"),
            (refused(ForceRecovery::NoRedo), "can't start"),
            (of_catalog(lost.clone()), "table shop/gone in the catalog can't be read: cut short"),
            (of_catalog(lost), "2 more entries"),
            (of_catalog(unsure), "2 entries of the catalog are of changes"),
            (of_catalog(rescued), note),
            (outcome(Salvaged::default(), vec![("shop/t", lacking)]), "it has lost changes"),
            (
                outcome(Salvaged::default(), vec![("shop/t#P#n0#TMP#", Salvaged::default())]),
                "a partition of an ALTER TABLE that was not finished",
            ),
        ] {
            let text = text(&outcome);
            assert!(!outcome.is_whole(), "{text}");
            assert!(text.contains(said), "{said}: {text}");
            assert!(text.ends_with("see above\n"), "{text}");
            assert_eq!(as_json(&outcome)["whole"], false);
        }
    }

    #[test]
    fn no_name_reaches_the_terminal_as_an_escape_sequence() {
        let lost = LostEntry { key: b"shop/\x1b[2J".to_vec(), why: "index \x1b]0;x\x07".into() };
        let lost = Salvaged { lost: vec![lost], lost_entries: 1, ..Salvaged::default() };
        let text = text(&outcome(lost, vec![("shop/\x07", Salvaged::default())]));
        assert!(text.lines().all(|line| !line.contains(char::is_control)), "{text:?}");
        assert!(text.contains("[2J in the catalog"), "{text}");
    }

    #[test]
    fn a_statement_that_a_client_does_not_send_by_default_is_named() {
        let of = |bytes| {
            line_of_long_statement(&Written { statement_max_bytes: bytes, ..Written::default() })
        };
        assert_eq!(of(15 * MIB), None);
        let line = of(40 * MIB).unwrap();
        assert!(line.contains("40 MiB") && line.contains("--max-allowed-packet=1G"), "{line}");
    }
}
