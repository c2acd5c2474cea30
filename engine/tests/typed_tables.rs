//! Typed tables: rows and their secondary indexes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use tidepool::storage::{SimStorage, Storage};
use tidepool::typed::{Index, TypedTable};
use tidepool::{Db, Error, Isolation, LockMode, LockWait, Options, TableDef, TransactionOptions};

/// A city and a name.
type Person = (String, String);
type People = TypedTable<u64, Person>;

fn options() -> Options {
    Options { lock_wait_timeout: Duration::ZERO, ..Options::small() }
}

fn open(sim: &SimStorage) -> Db {
    Db::open_on(Arc::new(sim.clone()), options()).unwrap()
}

fn by_city() -> Index<u64, Person, (String, String)> {
    Index::new("city", |_, person: &Person| person.clone())
}

fn by_name() -> Index<u64, Person, String> {
    Index::unique("name", |_, person: &Person| person.1.clone())
}

fn person(city: &str, name: &str) -> Person {
    (city.into(), name.into())
}

/// The indexes have what the rows ask for.
#[track_caller]
fn agree(db: &Db, people: &People) -> u64 {
    let check = db.read(|trx| people.check(trx, &mut || true)).unwrap();
    assert_eq!(check.problems, [] as [String; 0]);
    for (name, entries) in &check.entries {
        assert_eq!(*entries, check.rows, "index {name}");
    }
    check.rows
}

fn names(rows: impl Iterator<Item = tidepool::Result<(u64, Person)>>) -> Vec<String> {
    rows.map(|row| row.unwrap().1.1).collect()
}

#[derive(Clone, Debug)]
enum Op {
    Put(u64, Person),
    Insert(u64, Person),
    Remove(u64),
    RemoveRange(u64, u64),
    /// What follows is undone up to here.
    Undo(Vec<Op>),
}

fn op() -> impl Strategy<Value = Op> {
    let word = || prop::sample::select(vec!["", "\0", "a", "a\0", "a\u{1}", "b", "bb"]);
    let person = move || (word(), word()).prop_map(|(city, name)| person(city, name));
    let leaf = prop_oneof![
        6 => (0..12u64, person()).prop_map(|(key, value)| Op::Put(key, value)),
        2 => (0..12u64, person()).prop_map(|(key, value)| Op::Insert(key, value)),
        2 => (0..12u64).prop_map(Op::Remove),
        1 => (0..12u64, 0..12u64).prop_map(|(from, to)| Op::RemoveRange(from, to)),
    ];
    leaf.prop_recursive(1, 4, 4, |op| prop::collection::vec(op, 0..4).prop_map(Op::Undo))
}

type Model = BTreeMap<u64, Person>;

fn apply(people: &People, trx: &mut tidepool::Transaction, op: &Op, model: &mut Model) {
    let taken = |model: &Model, key: u64, value: &Person| {
        model.iter().any(|(other, person)| *other != key && person.1 == value.1)
    };
    match op {
        Op::Put(key, value) => match people.put(trx, key, value) {
            Ok(()) => {
                assert!(!taken(model, *key, value));
                model.insert(*key, value.clone());
            }
            Err(Error::NotUnique { index, .. }) => {
                assert!(index == "name" && taken(model, *key, value));
            }
            Err(error) => panic!("{error}"),
        },
        Op::Insert(key, value) => match people.insert(trx, key, value) {
            Ok(true) => assert!(model.insert(*key, value.clone()).is_none()),
            Ok(false) => assert!(model.contains_key(key)),
            Err(Error::NotUnique { .. }) => {
                assert!(!model.contains_key(key) && taken(model, *key, value));
            }
            Err(error) => panic!("{error}"),
        },
        Op::Remove(key) => {
            assert_eq!(people.remove(trx, key).unwrap(), model.remove(key).is_some());
        }
        Op::RemoveRange(from, to) => {
            let before = model.len();
            model.retain(|key, _| !(from..to).contains(&key));
            let removed = people.remove_range(trx, *from..*to).unwrap();
            assert_eq!(removed, (before - model.len()) as u64);
        }
        Op::Undo(ops) => {
            let (savepoint, mut inner) = (trx.savepoint(), model.clone());
            ops.iter().for_each(|op| apply(people, trx, op, &mut inner));
            trx.rollback_to(savepoint).unwrap();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Against a map of the standard library.
    #[test]
    fn rows_and_indexes_are_those_of_a_model(
        transactions in prop::collection::vec(
            (prop::collection::vec(op(), 1..8), any::<bool>()),
            1..8,
        )
    ) {
        let (city, name) = (by_city(), by_name());
        let db = open(&SimStorage::new(1));
        let people = People::open_or_create(&db, "people", &[&city, &name]).unwrap();
        let mut model = Model::new();
        for (ops, is_commit) in transactions {
            let (mut trx, mut inner) = (db.begin(TransactionOptions::default()), model.clone());
            ops.iter().for_each(|op| apply(&people, &mut trx, op, &mut inner));
            if is_commit {
                trx.commit().unwrap();
                model = inner;
            } else {
                trx.rollback().unwrap();
            }
            prop_assert_eq!(agree(&db, &people), model.len() as u64);
            let mut trx = db.begin(TransactionOptions::default());
            let rows: Vec<_> = people.iter(&mut trx).map(Result::unwrap).collect();
            prop_assert_eq!(&rows, &model.clone().into_iter().collect::<Vec<_>>());
            let mut sorted = rows.clone();
            sorted.sort_by(|a, b| (&a.1, a.0).cmp(&(&b.1, b.0)));
            let by_city: Vec<_> = people.iter_by(&mut trx, &city).map(Result::unwrap).collect();
            prop_assert_eq!(&by_city, &sorted);
            sorted.reverse();
            let back: Vec<_> = people.iter_by(&mut trx, &city).rev().map(Result::unwrap).collect();
            prop_assert_eq!(back, sorted);
            for (key, person) in &model {
                let found = people.get_by(&mut trx, &name, &*person.1).unwrap();
                prop_assert_eq!(found, Some((*key, person.clone())));
            }
        }
    }
}

#[test]
fn ranges_by_an_index_may_have_first_columns_alone() {
    let (city, name) = (by_city(), by_name());
    let db = open(&SimStorage::new(1));
    let people = People::open_or_create(&db, "people", &[&city, &name]).unwrap();
    let rows = [("Bergen", "Emil"), ("Oslo", "Nora"), ("Oslo", "Aksel"), ("Oslo\0", "Ida")];
    db.write(|trx| {
        let mut rows = (0..).zip(rows);
        rows.try_for_each(|(id, (city, name))| people.put(trx, &id, &person(city, name)))
    })
    .unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    let trx = &mut trx;
    assert_eq!(names(people.prefix_by(trx, &city, &("Oslo",))), ["Aksel", "Nora"]);
    assert_eq!(names(people.prefix_by(trx, &city, &("Oslo", "N"))), ["Nora"]);
    assert_eq!(names(people.prefix_by(trx, &name, "A")), ["Aksel"]);
    assert_eq!(names(people.range_by(trx, &city, ("Oslo",)..=("Oslo",))), ["Aksel", "Nora"]);
    assert_eq!(names(people.range_by(trx, &city, ..("Oslo",))), ["Emil"]);
    let above = (std::ops::Bound::Excluded(("Oslo",)), std::ops::Bound::Unbounded);
    assert_eq!(names(people.range_by(trx, &city, above)), ["Ida"]);
    assert_eq!(names(people.range_by(trx, &city, ("Oslo", "Aksel")..=("Oslo", "Nora"))).len(), 2);
    assert_eq!(names(people.range_by(trx, &name, "E".."J")), ["Emil", "Ida"]);
    let mut ends = people.iter_by(trx, &name);
    assert_eq!(ends.next().unwrap().unwrap().1.1, "Aksel");
    assert_eq!(ends.next_back().unwrap().unwrap().1.1, "Nora");
    assert_eq!(names(ends), ["Emil", "Ida"]);
    // The last of all numbers has nothing behind it.
    let last = (std::ops::Bound::Excluded(u64::MAX), std::ops::Bound::Unbounded);
    assert_eq!(people.range(trx, last).count(), 0);
    assert_eq!(people.range(trx, 1..=u64::MAX).count(), 3);
}

#[test]
fn an_entry_that_stays_is_not_touched() {
    let city = Index::new("city", |_: &u64, person: &Person| person.0.clone());
    let db = open(&SimStorage::new(1));
    let people = People::open_or_create(&db, "people", &[&city]).unwrap();
    db.write(|trx| people.put(trx, &1, &person("Oslo", "Nora"))).unwrap();
    let entry_is_free = || {
        let mut other = db.begin(TransactionOptions::default());
        let mut entries = other.range::<&[u8]>(people.table(), ..).of_index(1);
        entries = entries.locked(LockMode::Exclusive, LockWait::NoWait);
        match entries.next() {
            Ok(entry) => entry.is_some(),
            Err(Error::LockNoWait) => false,
            Err(error) => panic!("{error}"),
        }
    };
    let mut trx = db.begin(TransactionOptions::default());
    people.put(&mut trx, &1, &person("Oslo", "Ida")).unwrap();
    assert!(entry_is_free());
    people.put(&mut trx, &1, &person("Bergen", "Ida")).unwrap();
    assert!(!entry_is_free());
    trx.commit().unwrap();
    assert_eq!(agree(&db, &people), 1);
}

#[test]
fn a_row_refused_by_a_unique_index_leaves_nothing() {
    let (city, name) = (by_city(), by_name());
    let db = open(&SimStorage::new(1));
    let people = People::open_or_create(&db, "people", &[&city, &name]).unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    people.put(&mut trx, &1, &person("Oslo", "Nora")).unwrap();
    people.put(&mut trx, &2, &person("Oslo", "Ida")).unwrap();
    let error = people.put(&mut trx, &2, &person("Bergen", "Nora")).unwrap_err().to_string();
    assert_eq!(
        error,
        "table 'people': another row has the key Nora\\x00 in the unique index 'name'"
    );
    assert!(people.insert(&mut trx, &3, &person("Bergen", "Nora")).is_err());
    trx.commit().unwrap();
    assert_eq!(agree(&db, &people), 2);
    let row = db.read(|trx| people.get(trx, &2)).unwrap();
    assert_eq!(row, Some(person("Oslo", "Ida")));
}

#[test]
fn foreign_bytes_are_an_error_that_names_table_and_key() {
    let db = open(&SimStorage::new(1));
    let numbers = TypedTable::<u16, u32>::open_or_create(&db, "numbers", &[]).unwrap();
    db.write(|trx| {
        numbers.put(trx, &1, &10)?;
        trx.put(numbers.table(), &[0, 2], &[1, 2, 3])?;
        trx.put(numbers.table(), &[0, 3, 9], &[0; 4])?;
        numbers.put(trx, &4, &40)
    })
    .unwrap();
    let mut trx = db.begin(TransactionOptions::default());
    let rows: Vec<_> = numbers.iter(&mut trx).map(|row| row.map_err(|e| e.to_string())).collect();
    assert_eq!(
        rows,
        [
            Ok((1, 10)),
            Err("table 'numbers', row with the key \\x00\\x02: it is cut short".into()),
            Err("table 'numbers', row with the key \\x00\\x03\\t: 1 bytes are left over".into()),
            Ok((4, 40)),
        ]
    );
    assert!(matches!(numbers.get(&mut trx, &2), Err(Error::Codec { .. })));
    // The row can be removed all the same.
    assert!(numbers.remove(&mut trx, &2).unwrap());
    let check = numbers.check(&mut trx, &mut || true).unwrap();
    assert_eq!((check.rows, check.problems.len()), (3, 1));
    assert_eq!(numbers.check(&mut trx, &mut || false), Err(Error::Interrupted));
}

#[test]
fn a_check_finds_what_others_have_written_into_the_table() {
    let (city, name) = (by_city(), by_name());
    let db = open(&SimStorage::new(1));
    let people = People::open_or_create(&db, "people", &[&city, &name]).unwrap();
    let table = people.table();
    db.write(|trx| {
        people.put(trx, &1, &person("Oslo", "Nora"))?;
        people.put(trx, &2, &person("Oslo", "Ida"))?;
        people.put(trx, &3, &person("Oslo", "Emil"))?;
        // A row without its entries, entries without their row, and one of another row.
        trx.remove(table, &1u64.to_be_bytes())?;
        trx.insert(table, 0, &4u64.to_be_bytes(), b"Oslo\0Aksel\0")?;
        trx.update(table, 2, b"Ida\0", &3u64.to_be_bytes())
    })
    .unwrap();
    let check = db.read(|trx| people.check(trx, &mut || true)).unwrap();
    assert_eq!(check.rows, 3);
    let has = |what: &str| check.problems.iter().filter(|problem| problem.contains(what)).count();
    assert_eq!(has("it lacks the entry of a row"), 3, "{:?}", check.problems);
    assert_eq!(has("it has an entry of a row that is not there"), 2, "{:?}", check.problems);
    assert_eq!(has("its row asks for another entry"), 1, "{:?}", check.problems);
    // A reader by the index finds out, too.
    let error = db.read(|trx| people.get_by(trx, &name, "Nora")).unwrap_err();
    assert!(matches!(error, Error::IndexDiffers { .. }), "{error}");
    // Built anew, the index is right.
    drop(people);
    for index in ["city", "name"] {
        db.drop_typed_index("people", index).unwrap();
    }
    let people = People::open(&db, "people", &[&city, &name]).unwrap();
    assert_eq!(agree(&db, &people), 3);
}

#[test]
fn another_definition_is_refused() {
    let (city, name) = (by_city(), by_name());
    let sim = SimStorage::new(1);
    let db = open(&sim);
    People::open_or_create(&db, "people", &[&city, &name]).unwrap();
    let refusal = |result: tidepool::Result<People>| result.unwrap_err().to_string();
    assert_eq!(
        refusal(People::open(&db, "people", &[&city])),
        "invalid option: table 'people' has the index 'name', which is not declared: \
         declare it, or drop it by `Db::drop_typed_index`"
    );
    assert_eq!(
        TypedTable::<u32, Person>::open(&db, "people", &[]).unwrap_err().to_string(),
        "invalid option: table 'people' has keys of the type u64, not u32"
    );
    let other = Index::new("name", |_: &u64, person: &Person| person.1.clone());
    let text = refusal(People::open(&db, "people", &[&city, &other]));
    assert!(
        text.contains("(unique, key type string, version 1) than the one declared (not unique,"),
        "{text}"
    );
    let other = by_name().version(2);
    let text = refusal(People::open(&db, "people", &[&city, &other]));
    assert!(text.contains("version 2): drop it by `Db::drop_typed_index`"), "{text}");
    let other = Index::unique("name", |_: &u64, person: &Person| (person.1.clone(),));
    let text = refusal(People::open(&db, "people", &[&city, &other]));
    assert!(text.contains("key type (string)"), "{text}");
    assert!(matches!(People::open(&db, "missing", &[]), Err(Error::TableMissing(_))));
    let text = refusal(People::open(&db, "people", &[&city, &city, &name]));
    assert_eq!(text, "invalid option: index 'city': it is declared twice");
    db.create_table("bytes", &TableDef::map()).unwrap();
    let text = refusal(People::open(&db, "bytes", &[]));
    assert!(text.contains("table 'bytes' is no typed table"), "{text}");
    // After a crash as well, and in any order.
    let db = open(&sim.kill());
    let people = People::open(&db, "people", &[&name, &city]).unwrap();
    let undeclared = by_city();
    let mut trx = db.begin(TransactionOptions::default());
    let mut rows = people.iter_by(&mut trx, &undeclared);
    assert!(matches!(rows.next(), Some(Err(Error::InvalidOption(_)))));
    assert!(rows.next().is_none());
}

#[test]
fn new_indexes_are_built_and_old_ones_dropped() {
    let (city, name) = (by_city(), by_name());
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let people = People::open_or_create(&db, "people", &[]).unwrap();
    db.write(|trx| {
        (0..3000).try_for_each(|n| {
            let row = person(&format!("city {}", n % 7), &format!("name {n}"));
            people.put(trx, &n, &row)
        })
    })
    .unwrap();
    let old = people;
    let people = People::open_or_create(&db, "people", &[&city, &name]).unwrap();
    assert_eq!(agree(&db, &people), 3000);
    // The handle from before is void: it would write past the indexes.
    let error = db.write(|trx| old.put(trx, &1, &person("", ""))).unwrap_err();
    assert!(matches!(error, Error::TableMissing(_)), "{error}");
    drop(people);
    db.drop_typed_index("people", "city").unwrap();
    let db = open(&sim.kill());
    let people = People::open(&db, "people", &[&name]).unwrap();
    assert_eq!(people.table().index_count(), 2);
    assert_eq!(agree(&db, &people), 3000);
    let error = db.drop_typed_index("people", "city").unwrap_err().to_string();
    assert_eq!(error, "invalid option: table 'people' has no index 'city'");
    // Two rows with one key: the table stays as it is.
    db.write(|trx| people.put(trx, &9, &person("x", "last"))).unwrap();
    let unique_city = Index::unique("city", |_: &u64, person: &Person| person.0.clone());
    let error = People::open(&db, "people", &[&name, &unique_city]).unwrap_err().to_string();
    assert_eq!(
        error,
        "table 'people': another row has the key city 0\\x00 in the unique index 'city'"
    );
    let people = People::open(&db, "people", &[&name]).unwrap();
    assert_eq!(agree(&db, &people), 3000);
}

#[test]
fn an_index_is_built_beside_writers() {
    let options = Options {
        lock_wait_timeout: Duration::from_secs(60),
        buffer_pool_size_bytes: 16 << 20,
        ..Options::default()
    };
    let db = Db::open_on(Arc::new(SimStorage::new(1)), options).unwrap();
    let people = People::open_or_create(&db, "people", &[]).unwrap();
    let row = |n: u64, turn: u64| person(&format!("city {}", turn % 5), &format!("name {n}"));
    db.write(|trx| (0..5000).try_for_each(|n| people.put(trx, &n, &row(n, 0)))).unwrap();
    let (city, name) = (by_city(), by_name());
    let (is_built, written) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for first in 0..2 {
            let (db, people, is_built, written) = (&db, &people, &is_built, &written);
            scope.spawn(move || {
                for turn in 1.. {
                    if is_built.load(Ordering::Acquire) {
                        break;
                    }
                    let n = (turn * 7919 + first) % 6000;
                    let result = db.write(|trx| match turn % 5 {
                        0 => people.remove(trx, &n).map(drop),
                        _ => people.put(trx, &n, &row(n, turn)),
                    });
                    match result {
                        Ok(()) => written.fetch_add(1, Ordering::Relaxed),
                        // Its indexes are about to be others, or are.
                        Err(Error::TableBusy(_) | Error::TableMissing(_)) => 0,
                        Err(error) => panic!("{error}"),
                    };
                    // The change needs moments without a transaction.
                    std::thread::sleep(Duration::from_micros(200));
                }
            });
        }
        while written.load(Ordering::Relaxed) < 100 {
            std::thread::yield_now();
        }
        let opened = People::open(&db, "people", &[&city, &name]);
        is_built.store(true, Ordering::Release);
        opened.unwrap();
    });
    let people = People::open(&db, "people", &[&city, &name]).unwrap();
    assert!(agree(&db, &people) > 3000);
}

#[test]
fn a_crash_leaves_rows_and_entries_that_agree() {
    let (city, name) = (by_city(), by_name());
    let crashes = [3, 10, 40, 90, 200, 400];
    for (crash, builds) in crashes.into_iter().flat_map(|crash| [(crash, false), (crash, true)]) {
        let sim = SimStorage::new(crash);
        let db = open(&sim);
        let people = match builds {
            true => People::open_or_create(&db, "people", &[]),
            false => People::open_or_create(&db, "people", &[&city, &name]),
        };
        let people = people.unwrap();
        for n in 0..crash {
            let row = person(&format!("city {}", n % 3), &format!("name {n}"));
            db.write(|trx| people.put(trx, &(n % 50), &row)).unwrap();
            if n % 5 == 4 {
                db.write(|trx| people.remove_range(trx, n % 50..n % 50 + 2)).unwrap();
            }
        }
        if builds {
            People::open(&db, "people", &[&city, &name]).unwrap();
        } else {
            let mut trx = db.begin(TransactionOptions::default());
            people.put(&mut trx, &7, &person("not", "committed")).unwrap();
            people.remove_range(&mut trx, 10..20).unwrap();
            db.flush_log().unwrap();
        }
        let rows =
            db.read(|trx| Ok(People::open(&db, "people", &[&city, &name])?.iter(trx).count()));
        let db = open(&sim.kill());
        let people = People::open(&db, "people", &[&city, &name]).unwrap();
        assert_eq!(agree(&db, &people), rows.unwrap() as u64, "{crash}");
    }
}

#[test]
fn read_committed_gives_rows_that_fit_the_index() {
    let (city, name) = (by_city(), by_name());
    let db = open(&SimStorage::new(1));
    let people = People::open_or_create(&db, "people", &[&city, &name]).unwrap();
    db.write(|trx| {
        (0..20).try_for_each(|n| people.put(trx, &n, &person("Oslo", &format!("{n:02}"))))
    })
    .unwrap();
    let isolation = Isolation::ReadCommitted;
    let mut trx = db.begin(TransactionOptions { isolation, read_only: true });
    let mut rows = people.prefix_by(&mut trx, &city, &("Oslo",));
    // Entries are read some at a time. What changes in between is given as it is, or left out.
    let mut given = 0;
    assert!(rows.next().is_some() && rows.next().is_some());
    db.write(|trx| {
        people.put(trx, &3, &person("Bergen", "03"))?;
        people.remove(trx, &4).map(drop)
    })
    .unwrap();
    for row in rows {
        assert_eq!(row.unwrap().1.0, "Oslo");
        given += 1;
    }
    assert_eq!(given, 16);
    assert!(people.check(&mut trx, &mut || true).is_err());
}

#[test]
fn several_workers_share_rows_by_an_index() {
    let by_age = Index::new("age", |_: &u64, age: &u32| *age);
    let db = open(&SimStorage::new(1));
    let jobs = TypedTable::open_or_create(&db, "jobs", &[&by_age]).unwrap();
    db.write(|trx| (1..=3).try_for_each(|n| jobs.put(trx, &n, &(10 - n as u32)))).unwrap();
    let mut workers = [(); 3].map(|()| db.begin(TransactionOptions::default()));
    let oldest = workers.each_mut().map(|trx| {
        let mut rows = jobs.iter_by(trx, &by_age).locked(LockMode::Exclusive, LockWait::SkipLocked);
        rows.next().unwrap().unwrap().0
    });
    assert_eq!(oldest, [3, 2, 1]);
}

#[test]
fn a_sort_of_a_new_index_leaves_no_file() {
    let sim = SimStorage::new(1);
    let db = open(&sim);
    let people = People::open_or_create(&db, "people", &[]).unwrap();
    db.write(|trx| (0..2000).try_for_each(|n| people.put(trx, &n, &person("c", &n.to_string()))))
        .unwrap();
    drop(people);
    People::open(&db, "people", &[&by_city()]).unwrap();
    assert!(sim.list("sort").unwrap_or_default().is_empty());
}
