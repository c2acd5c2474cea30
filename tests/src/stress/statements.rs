//! Statements of a writer whose effect on its rows is certain.

use std::collections::BTreeSet;

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use super::model::{Row, Rows, blob, blob_sql, point, text, words};

/// The ids of a writer begin at its number times this.
const IDS: u64 = 10_000_000;
/// A changed id is this much larger.
const SHIFT: u64 = 5_000_000;
/// Beyond as many rows a writer deletes more than it inserts.
const MANY_ROWS: usize = 400;

/// What a statement does if it succeeds.
#[derive(Clone, Debug)]
pub enum Effect {
    /// These are the rows then.
    Leaves(Rows),
    /// A unique index refuses it.
    Refused,
    /// Any of these rows are added.
    AddsSome(Rows),
}

/// A statement of a writer.
#[derive(Clone, Debug)]
pub struct Statement {
    pub sql: String,
    pub effect: Effect,
}

/// A random statement of this writer on rows that it has.
pub fn statement(rng: &mut StdRng, writer: u64, rows: &Rows) -> Statement {
    let inserts = if rows.len() > MANY_ROWS { 10 } else { 35 };
    match rng.random_range(0..100) {
        0..8 => insert_ignore(rng, writer),
        choice if choice < 8 + inserts || rows.is_empty() => insert(rng, writer, rows),
        choice if choice < 52 => replace(rng, writer, rows),
        choice if choice < 60 => insert_or_update(rng, writer, rows),
        choice if choice < 80 => update(rng, writer, rows),
        choice if choice < 84 => move_keys(rng, writer, rows),
        choice if choice < 87 => copy_rows(rng, writer, rows),
        choice if choice < 92 => limited(rng, writer, rows),
        _ => delete(rng, writer, rows),
    }
}

fn insert(rng: &mut StdRng, writer: u64, rows: &Rows) -> Statement {
    let new = new_rows(rng, writer);
    let sql = insert_sql("INSERT", writer, &new);
    let mut after = rows.clone();
    let repeats = new.keys().any(|id| rows.contains_key(id));
    after.extend(new);
    let effect = if repeats { Effect::Refused } else { unless_repeated(after) };
    Statement { sql, effect }
}

fn insert_ignore(rng: &mut StdRng, writer: u64) -> Statement {
    let new = new_rows(rng, writer);
    let sql = insert_sql("INSERT IGNORE", writer, &new);
    Statement { sql, effect: Effect::AddsSome(new) }
}

/// Rows with ids that there are and that there are not yet. None has a value of the unique column:
/// it could be that of another writer's row, which the statement would change.
fn old_and_new_rows(rng: &mut StdRng, writer: u64, rows: &Rows) -> Rows {
    let mut given = new_rows(rng, writer);
    for id in rows.keys() {
        if given.len() < 60 && rng.random_bool(0.1) {
            given.insert(*id, new_row(rng));
        }
    }
    given.values_mut().for_each(|row| row.u = None);
    given
}

fn replace(rng: &mut StdRng, writer: u64, rows: &Rows) -> Statement {
    let given = old_and_new_rows(rng, writer, rows);
    let sql = insert_sql("REPLACE", writer, &given);
    let mut after = rows.clone();
    after.extend(given);
    Statement { sql, effect: Effect::Leaves(after) }
}

fn insert_or_update(rng: &mut StdRng, writer: u64, rows: &Rows) -> Statement {
    let given = old_and_new_rows(rng, writer, rows);
    let sql = format!(
        "{} ON DUPLICATE KEY UPDATE n = VALUES(n), b = VALUES(b), t = VALUES(t)",
        insert_sql("INSERT", writer, &given)
    );
    let mut after = rows.clone();
    for (id, new) in given {
        let row = after.entry(id).or_insert_with(|| new.clone());
        (row.n, row.b, row.t) = (new.n, new.b, new.t);
    }
    Statement { sql, effect: Effect::Leaves(after) }
}

fn update(rng: &mut StdRng, writer: u64, rows: &Rows) -> Statement {
    let (chosen, condition) = choose(rng, writer, rows);
    let mut after = rows.clone();
    let mut change = |set: String, change: &dyn Fn(&mut Row)| {
        chosen.iter().for_each(|id| change(after.get_mut(id).expect("was chosen of these")));
        set
    };
    let set = match rng.random_range(0..6) {
        0 => change("n = n + 1".into(), &|row| row.n = row.n.map(|n| n + 1)),
        1 => {
            let v = text(rng);
            change(format!("v = '{v}'"), &|row| row.v = Some(v.clone()))
        }
        2 => {
            let more = rng.random_range(1..10);
            change(format!("u = u + {more}"), &|row| row.u = row.u.map(|u| u + more))
        }
        3 => {
            let (sql, b) = blob(rng);
            change(format!("b = {sql}"), &|row| row.b.clone_from(&b))
        }
        4 => {
            let t = words(rng);
            change(format!("t = '{t}'"), &|row| row.t.clone_from(&t))
        }
        _ => {
            let (sql, p) = point(rng);
            change(format!("p = {sql}"), &|row| row.p.clone_from(&p))
        }
    };
    Statement {
        sql: format!("UPDATE m SET {set} WHERE {condition}"),
        effect: unless_repeated(after),
    }
}

/// Changes primary keys.
fn move_keys(rng: &mut StdRng, writer: u64, rows: &Rows) -> Statement {
    let low: Vec<u64> =
        rows.keys().copied().filter(|id| *id < writer * IDS + SHIFT).take(3).collect();
    if low.is_empty() {
        return delete(rng, writer, rows);
    }
    let mut after = rows.clone();
    let mut refused = false;
    for id in &low {
        let row = after.remove(id).expect("the id is of these");
        refused |= after.insert(id + SHIFT, row).is_some();
    }
    let sql = format!(
        "UPDATE m SET id = id + {SHIFT} WHERE owner = {writer} AND id IN ({})",
        joined(low.iter())
    );
    Statement { sql, effect: if refused { Effect::Refused } else { Effect::Leaves(after) } }
}

fn delete(rng: &mut StdRng, writer: u64, rows: &Rows) -> Statement {
    let (chosen, condition) = choose(rng, writer, rows);
    let mut after = rows.clone();
    after.retain(|id, _| !chosen.contains(id));
    Statement { sql: format!("DELETE FROM m WHERE {condition}"), effect: Effect::Leaves(after) }
}

/// Inserts copies of rows that the statement reads.
fn copy_rows(rng: &mut StdRng, writer: u64, rows: &Rows) -> Statement {
    let (chosen, _) = choose(rng, writer, rows);
    let low: Vec<u64> = chosen.into_iter().filter(|id| *id < writer * IDS + SHIFT).collect();
    if low.is_empty() {
        return delete(rng, writer, rows);
    }
    let mut after = rows.clone();
    let mut refused = false;
    for id in &low {
        let row = Row { u: None, ..rows[id].clone() };
        refused |= after.insert(id + SHIFT, row).is_some();
    }
    let sql = format!(
        "INSERT INTO m (id, owner, n, v, u, b, t, p) \
         SELECT id + {SHIFT}, owner, n, v, NULL, b, t, p FROM m \
         WHERE owner = {writer} AND id IN ({})",
        joined(low.iter())
    );
    Statement { sql, effect: if refused { Effect::Refused } else { Effect::Leaves(after) } }
}

/// Changes or deletes the first or the last rows.
fn limited(rng: &mut StdRng, writer: u64, rows: &Rows) -> Statement {
    let limit = *[1, 3, 30].choose(rng).expect("there are some");
    let mut after = rows.clone();
    let sql = if rng.random_bool(0.5) {
        after.values_mut().take(limit).for_each(|row| row.n = row.n.map(|n| n - 1));
        format!("UPDATE m SET n = n - 1 WHERE owner = {writer} ORDER BY id LIMIT {limit}")
    } else {
        let last: Vec<u64> = rows.keys().rev().take(limit).copied().collect();
        after.retain(|id, _| !last.contains(id));
        format!("DELETE FROM m WHERE owner = {writer} ORDER BY id DESC LIMIT {limit}")
    };
    Statement { sql, effect: Effect::Leaves(after) }
}

/// A writer's rows with one value of the unique column twice can't be.
fn unless_repeated(rows: Rows) -> Effect {
    let mut seen = BTreeSet::new();
    let distinct = rows.values().filter_map(|row| row.u).all(|u| seen.insert(u));
    if distinct { Effect::Leaves(rows) } else { Effect::Refused }
}

/// Some ids, or all, and the condition that finds them.
fn choose(rng: &mut StdRng, writer: u64, rows: &Rows) -> (BTreeSet<u64>, String) {
    let ids: Vec<u64> = rows.keys().copied().collect();
    if rng.random_bool(0.1) {
        return (ids.into_iter().collect(), format!("owner = {writer}"));
    }
    let count = *[1, 2, 10, 60].choose(rng).expect("there are some");
    let chosen: BTreeSet<u64> = ids.choose_multiple(rng, count).copied().collect();
    let list = if chosen.is_empty() { "0".into() } else { joined(chosen.iter()) };
    (chosen, format!("owner = {writer} AND id IN ({list})"))
}

/// Rows with other ids. Two may have one value of the unique column.
fn new_rows(rng: &mut StdRng, writer: u64) -> Rows {
    let count = *[1, 1, 3, 20, 50].choose(rng).expect("there are some");
    (0..count).map(|_| (writer * IDS + rng.random_range(1..SHIFT), new_row(rng))).collect()
}

fn new_row(rng: &mut StdRng) -> Row {
    Row {
        n: rng.random_bool(0.8).then(|| rng.random_range(-50..50)),
        v: rng.random_bool(0.8).then(|| text(rng)),
        u: rng.random_bool(0.8).then(|| match rng.random_range(0..20) {
            0 => rng.random_range(0..1000),
            _ => rng.random_range(0..1_000_000_000),
        }),
        b: blob(rng).1,
        t: words(rng),
        p: point(rng).1,
    }
}

fn insert_sql(verb: &str, writer: u64, rows: &Rows) -> String {
    let number = |value: Option<i64>| value.map_or("NULL".into(), |value| value.to_string());
    let tuple = |(id, row): (&u64, &Row)| {
        let v = row.v.as_ref().map_or("NULL".into(), |v| format!("'{v}'"));
        let (n, u, b) = (number(row.n), number(row.u), blob_sql(&row.b));
        let (t, p) = (&row.t, &row.p);
        format!("({id}, {writer}, {n}, {v}, {u}, {b}, '{t}', ST_GeomFromText('{p}'))")
    };
    let tuples: Vec<String> = rows.iter().map(tuple).collect();
    format!("{verb} INTO m (id, owner, n, v, u, b, t, p) VALUES {}", tuples.join(", "))
}

fn joined<'a>(ids: impl Iterator<Item = &'a u64>) -> String {
    let ids: Vec<String> = ids.map(u64::to_string).collect();
    ids.join(", ")
}
