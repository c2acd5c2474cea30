//! Notes of trees in a table's file that are not what they should be.

use super::definition_tests::open;
use super::*;
use crate::ReadRequest;
use crate::catalog::{IndexDef, TableDef, TableRecord};
use crate::table::provisional_trees;
use crate::trx::TransactionOptions;
use tidepool_pool::Access;
use tidepool_pool::page::tree_id;
use tidepool_pool::storage::SimStorage;

/// A file may have been left so by a version that noted a tree twice and forgot one of the notes.
#[test]
fn an_opening_frees_nothing_by_the_note_of_a_tree_that_is_gone() {
    let sim = SimStorage::new(3);
    let db = open(&sim);
    let indexes = [IndexDef::unique("primary"), IndexDef::non_unique("dropped")];
    db.create_table("t", &TableDef::new(indexes.clone())).unwrap();
    let old = db.inner.catalog.get("t").unwrap();
    let kept = [ChangedIndex { def: indexes[0].clone(), from: Some(0) }];
    let table =
        db.change_indexes(&db.open_table("t").unwrap(), &kept).unwrap().commit(&[]).unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    for n in 0..2000u32 {
        trx.insert(&table, 0, &n.to_be_bytes(), &[1; 100]).unwrap();
    }
    trx.commit().unwrap();
    {
        let env = db.inner.env();
        let space = env.space(old.space).unwrap();
        let page = env.pool().shared(&space, old.trees[1].root, Access::Normal).unwrap();
        assert_eq!(tree_id(&page), old.trees[0].tree, "the dropped index's page is the rows' now");
        drop(page);
        provisional_trees::add(env, &space, old.trees[1]).unwrap();
        let now = db.inner.catalog.get("t").unwrap();
        let record = TableRecord { has_notes: true, ..TableRecord::clone(&now) };
        db.inner.catalog.replace(&mut db.inner.definition_trx(), "t", record).unwrap();
    }
    drop((trx, table));
    db.close().unwrap();
    drop(db);

    let db = open(&sim);
    let table = db.open_table("t").unwrap();
    let report = table.check(&db, &mut |_| true).unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    assert_eq!(report.indexes[0].entries, 2000);
    assert_eq!(table.unreachable_pages().unwrap(), [] as [u32; 0]);
    let mut trx = db.begin(TransactionOptions::default());
    let mut value = vec![];
    for n in 0..2000u32 {
        let key = n.to_be_bytes();
        assert!(trx.read(&table, 0, ReadRequest::new(&key, &mut value)).unwrap());
    }
    let record = db.inner.catalog.get("t").unwrap();
    assert!(!record.has_notes);
    let space = db.inner.env().space(record.space).unwrap();
    assert_eq!(provisional_trees::all(db.inner.env(), &space).unwrap(), []);
}
