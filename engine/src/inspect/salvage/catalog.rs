//! The tables: from the catalog, or from what can be read of it, or from their files alone.

use std::collections::{BTreeSet, HashMap};

use tidepool_pool::PageId;
use tidepool_pool::storage::AlignedBuf;

use super::{SalvageTable, Salvaged};
use crate::catalog::{
    ATTACHMENT_TREE, CATALOG_TREE, TableRecord, attachment_of, attachments_root, catalog_root,
};
use crate::error::Result;
use crate::files::{SYSTEM_SPACE, UNDO_SPACE, space_file_name};
use crate::inspect::Inspection;

pub(super) fn tables(inspection: &Inspection) -> Result<(Vec<SalvageTable>, Salvaged)> {
    let (mut tables, mut found) = (Vec::new(), Salvaged::default());
    match inspection.sound_db() {
        Some(db) => {
            let all = db.catalog().tables();
            tables.extend(all.iter().map(|(name, record)| table(name, record)));
        }
        None => {
            let system = SalvageTable {
                name: "the catalog".into(),
                def: None,
                space: SYSTEM_SPACE,
                clustered: Some((CATALOG_TREE, root(inspection).unwrap_or(0))),
                lost_changes: false,
            };
            let mut unknown = Vec::new();
            let mut see = |key: &[u8], record: &[u8]| {
                let name = String::from_utf8_lossy(key).into_owned();
                match TableRecord::decode(&name, record) {
                    Ok(record) => tables.push(table(&name, &record)),
                    Err(error) => unknown.push((key.to_vec(), error.to_string())),
                }
                Ok(())
            };
            found = inspection.salvage(&system, &mut see, &mut |_| {})?;
            for (key, why) in unknown {
                found.lose(&key, why);
            }
        }
    }
    // Where all of the catalog is there, a file that it doesn't list is no table's.
    if !found.is_whole() || inspection.sound_db().is_none() {
        let known: BTreeSet<u32> = tables.iter().map(|table| table.space).collect();
        let (spaces, _) = inspection.spaces_on_disk()?;
        for space in spaces.into_iter().filter(|id| *id > UNDO_SPACE && !known.contains(id)) {
            let name = space_file_name(space);
            let name =
                format!("#file/{}", name.trim_start_matches("tables/").trim_end_matches(".tpd"));
            tables.push(SalvageTable {
                name,
                def: None,
                space,
                clustered: None,
                lost_changes: false,
            });
        }
    }
    if let Ok(db) = &inspection.db {
        // A start that writes nothing has not marked them.
        let lost = db.inner.env().missing_spaces();
        for table in &mut tables {
            table.lost_changes |= lost.contains(&table.space);
        }
    }
    tables.sort_by(|a, b| a.name.cmp(&b.name));
    Ok((tables, found))
}

fn table(name: &str, record: &TableRecord) -> SalvageTable {
    SalvageTable {
        name: name.into(),
        def: Some(record.def.clone()),
        space: record.space,
        clustered: record.trees.first().map(|tree| (tree.tree, tree.root)),
        lost_changes: record.lost_changes,
    }
}

/// The attachments that can be read, where the engine can't be opened.
pub(super) fn attachments(inspection: &Inspection) -> HashMap<(String, u8), Vec<u8>> {
    let mut found = HashMap::new();
    let root = header(inspection).map_or(0, |header| attachments_root(&header));
    let tree = SalvageTable {
        name: "attachments".into(),
        def: None,
        space: SYSTEM_SPACE,
        clustered: Some((ATTACHMENT_TREE, root)),
        lost_changes: false,
    };
    let mut see = |key: &[u8], bytes: &[u8]| {
        if let Some((name, kind)) = attachment_of(key) {
            found.insert((name.to_string(), kind), bytes.to_vec());
        }
        Ok(())
    };
    // What can't be read is as if it were not there.
    let _ = inspection.salvage(&tree, &mut see, &mut |_| {});
    found
}

/// The root page of the catalog's tree, if the file's header can be read.
fn root(inspection: &Inspection) -> Option<u32> {
    header(inspection).map(|header| catalog_root(&header))
}

fn header(inspection: &Inspection) -> Option<AlignedBuf> {
    let mut bytes = AlignedBuf::zeroed(inspection.page_size().bytes());
    inspection.trusted_page(PageId::new(SYSTEM_SPACE, 0), &mut bytes).ok()?;
    Some(bytes)
}
