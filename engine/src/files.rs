//! The files of a data directory: their names, and the numbers of the spaces in them.
//!
//! | space | file |
//! |---|---|
//! | 0 | `system.tpd` |
//! | 1 | `undo.tpd` |
//! | 16 and up | `tables/<space id, 8 hex digits>.tpd` |
//!
//! beside `system-mirror.tpd` and `undo-mirror.tpd` (`mirror.rs`), `redo/`, `newest-runs.0` and
//! `.1`, `hot-list`, `ballast` and `lock`. A data directory exists once `redo/control`
//! does. Space ids are never used again. After a backup there is `backups`. A backup holds
//! `tidepool-backup-manifest`, an incremental one `tidepool-backup-increment`, one that is not
//! finished `tidepool-backup-unfinished` as well. `tidepool-backup-restored` is there from the
//! first open of a backup to [`Db::end_restore`](crate::Db::end_restore).

/// The system tablespace: the catalog.
pub const SYSTEM_SPACE: u32 = 0;
/// The undo tablespace.
pub const UNDO_SPACE: u32 = 1;
/// Ids of tables' spaces start here.
pub const FIRST_TABLE_SPACE: u32 = 16;

/// File of the system tablespace.
pub(crate) const SYSTEM_FILE: &str = "system.tpd";
/// A `system.tpd` that is made anew, until it is durable.
pub(crate) const SUCCESSOR_FILE: &str = "system.tpd.new";
/// File of the undo tablespace.
pub(crate) const UNDO_FILE: &str = "undo.tpd";
/// The process that has the directory open holds this file locked.
pub(crate) const LOCK_FILE: &str = "lock";
/// Made before all else in a directory that a backup goes to, and removed when the backup is
/// complete: a directory with this file is never opened.
pub const UNFINISHED_MARK: &str = "tidepool-backup-unfinished";
/// Lies in an incremental backup, which is no data directory by itself.
pub const INCREMENT_MARK: &str = "tidepool-backup-increment";
/// What a backup is of.
pub(crate) const MANIFEST_FILE: &str = "tidepool-backup-manifest";
/// What becomes of the manifest when a restored backup is opened: the directory was a backup, and
/// who decides about its prepared transactions has not done so.
pub(crate) const RESTORED_MARK: &str = "tidepool-backup-restored";
/// Which backups were made of a data directory.
pub(crate) const BACKUPS_FILE: &str = "backups";
/// How far the scrub is.
pub(crate) const SCRUB_FILE: &str = "scrub";
/// Gives its space to what must be written on a full disk.
pub(crate) const BALLAST_FILE: &str = "ballast";
/// Which run of each packed file was durable.
pub(crate) const NEWEST_RUNS_FILES: [&str; 2] = ["newest-runs.0", "newest-runs.1"];
/// Where tables' files are.
pub(crate) const TABLES_DIR: &str = "tables";
/// Directory of the redo log.
pub const REDO_DIR: &str = "redo";
/// Directory of the files of sorts.
pub(crate) const SORT_DIR: &str = "sort";
/// Where files go that no table has and that no DROP is known for, in `tables/`.
pub(crate) const ORPHANS_DIR: &str = "orphans";

/// What the files of a data directory are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// The file of a table.
    Table,
    /// The redo log, and its control file.
    Redo,
    /// The undo tablespace, and its mirror.
    Undo,
    /// The catalog, and its mirror.
    System,
    /// What a sort of an index build has no memory for.
    Sort,
    /// Lists, marks, and what a backup left.
    Other,
}

impl FileKind {
    /// Of the file of this name, which is relative to the data directory.
    pub fn of(name: &str) -> FileKind {
        match name.split_once('/') {
            Some((TABLES_DIR, file)) if space_of_file(file).is_some() => FileKind::Table,
            Some((REDO_DIR, _)) => FileKind::Redo,
            Some((SORT_DIR, _)) => FileKind::Sort,
            _ if name == UNDO_FILE || mirror_file_name(UNDO_SPACE) == Some(name) => FileKind::Undo,
            _ if name == SYSTEM_FILE || mirror_file_name(SYSTEM_SPACE) == Some(name) => {
                FileKind::System
            }
            _ => FileKind::Other,
        }
    }
}

/// Name of the file that mirrors pages of a space; none if the space has none.
pub(crate) fn mirror_file_name(id: u32) -> Option<&'static str> {
    match id {
        SYSTEM_SPACE => Some("system-mirror.tpd"),
        UNDO_SPACE => Some("undo-mirror.tpd"),
        _ => None,
    }
}

/// Name of the file of a space.
pub fn space_file_name(id: u32) -> String {
    match id {
        SYSTEM_SPACE => SYSTEM_FILE.into(),
        UNDO_SPACE => UNDO_FILE.into(),
        _ => format!("{TABLES_DIR}/{id:08x}.tpd"),
    }
}

/// The id of the table's space whose file has this name in `tables/`. The largest is no table's:
/// there would be no next one.
pub(crate) fn space_of_file(name: &str) -> Option<u32> {
    let id = u32::from_str_radix(name.strip_suffix(".tpd")?, 16).ok()?;
    let is_table = (FIRST_TABLE_SPACE..u32::MAX).contains(&id);
    // One number can be written in many ways.
    (is_table && space_file_name(id) == format!("{TABLES_DIR}/{name}")).then_some(id)
}

/// The directory part of a name.
pub(crate) fn dir_of(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(dir, _)| dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_what_a_file_is_for() {
        for (name, kind) in [
            (space_file_name(FIRST_TABLE_SPACE), FileKind::Table),
            ("tables/orphans/00000010.tpd".to_owned(), FileKind::Other),
            ("redo/control".to_owned(), FileKind::Redo),
            (space_file_name(UNDO_SPACE), FileKind::Undo),
            ("undo-mirror.tpd".to_owned(), FileKind::Undo),
            (space_file_name(SYSTEM_SPACE), FileKind::System),
            ("system-mirror.tpd".to_owned(), FileKind::System),
            ("sort/1".to_owned(), FileKind::Sort),
            ("hot-list".to_owned(), FileKind::Other),
        ] {
            assert_eq!(FileKind::of(&name), kind, "{name}");
        }
    }
}
