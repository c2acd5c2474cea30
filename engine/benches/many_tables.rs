//! How long an open takes with many tables, after a clean shutdown.
//!
//! `cargo bench -p tidepool-engine --bench many_tables -- DIRECTORY [tables]` (default: 10,000).
//! Makes the tables, each with attachments as long as a server's files of a table, unless they are
//! there, and opens the directory five times.

use std::time::Instant;

use tidepool::{Attachment, Db, IndexDef, Options, Result, TableDef};

/// Bytes that a server keeps of a table: its file, and a description.
const ATTACHED: [usize; 2] = [1500, 700];

fn main() -> Result<()> {
    // Cargo adds `--bench`.
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    let dir = args.next().expect("the first argument is a directory");
    let tables: usize = args.next().map_or(10_000, |count| count.parse().expect("a number"));
    let db = Db::open(&dir, Options::default())?;
    for at in db.table_names()?.len()..tables {
        let name = format!("database/table_{at:06}");
        let bytes = ATTACHED.map(|len| vec![at as u8; len]);
        let attachments: Vec<_> = (1..)
            .zip(&bytes)
            .map(|(kind, bytes)| Attachment { name: &name, kind, bytes: Some(bytes) })
            .collect();
        let def = TableDef::new([IndexDef::unique("primary"), IndexDef::non_unique("k")]);
        db.create_table_with(&name, &def, &attachments)?;
    }
    db.close()?;
    drop(db);
    for _ in 0..5 {
        let began = Instant::now();
        let db = Db::open(&dir, Options::default())?;
        println!("opened with {} tables in {:?}", db.table_names()?.len(), began.elapsed());
        db.close()?;
    }
    Ok(())
}
