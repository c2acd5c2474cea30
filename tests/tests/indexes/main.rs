//! FULLTEXT and SPATIAL indexes.

mod fulltext;
mod fulltext_definitions;
mod fulltext_pending;
mod locking_searches;
mod spatial;
mod spatial_definitions;

use std::sync::Arc;

use tidepool::{Db, Options, Table, Transaction, TransactionOptions};
use tidepool_tests::server::Server;

/// Writes to the trees of the table `test.t` what the plugin would not: while the server is
/// stopped. Then it runs again.
///
/// # Panics
/// If the directory can't be written to.
fn write_past_server(server: &mut Server, write: impl FnOnce(&mut Transaction, &Arc<Table>)) {
    server.stop();
    let directory = server.data_dir().join("tidepool");
    let db = Db::open(&directory, Options::default()).expect("the directory opens");
    let table = db.open_table("test/t").expect("the table opens");
    let mut trx = db.begin(TransactionOptions::default());
    write(&mut trx, &table);
    trx.commit().expect("a commit");
    drop((trx, table));
    db.close().expect("it closes");
    server.restart();
}
