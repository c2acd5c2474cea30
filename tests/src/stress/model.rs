//! A writer's rows, as it knows them, and statements whose effect on them is certain.

use std::collections::{BTreeMap, BTreeSet};

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

/// Words of the FULLTEXT column. None is part of another.
pub const WORDS: [&str; 8] =
    ["alpha", "bravo", "delta", "omega", "sigma", "kappa", "lambda", "theta"];

/// The ids of a writer begin at its number times this.
const IDS: u64 = 10_000_000;
/// A changed id is this much larger.
const SHIFT: u64 = 5_000_000;
/// Beyond as many rows a writer deletes more than it inserts.
const MANY_ROWS: usize = 400;

/// The columns of a row, as [`ROW_COLUMNS`] reads them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub n: Option<i64>,
    pub v: Option<String>,
    pub u: Option<i64>,
    /// Eight letters that the value repeats, and its length.
    pub b: String,
    pub t: String,
    /// A point.
    pub p: String,
}

/// What gives a [`Row`] behind its id.
pub const ROW_COLUMNS: &str = "id, n, v, u, IF(b = REPEAT(LEFT(b, 8), LENGTH(b) DIV 8), \
     CONCAT(LEFT(b, 8), LENGTH(b)), 'not a repetition'), t, ST_AsText(p)";

/// Rows by id.
pub type Rows = BTreeMap<u64, Row>;

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
    let inserts = if rows.len() > MANY_ROWS { 10 } else { 40 };
    match rng.random_range(0..100) {
        0..10 => insert_ignore(rng, writer),
        choice if choice < 10 + inserts || rows.is_empty() => insert(rng, writer, rows),
        choice if choice < 80 => update(rng, writer, rows),
        choice if choice < 86 => move_keys(rng, writer, rows),
        _ => delete(rng, writer, rows),
    }
}

fn insert(rng: &mut StdRng, writer: u64, rows: &Rows) -> Statement {
    let (new, repeats) = new_rows(rng, writer);
    let sql = insert_sql("INSERT", writer, &new);
    let mut after = rows.clone();
    let repeats = repeats || new.keys().any(|id| rows.contains_key(id));
    after.extend(new);
    let effect = if repeats { Effect::Refused } else { unless_repeated(after) };
    Statement { sql, effect }
}

fn insert_ignore(rng: &mut StdRng, writer: u64) -> Statement {
    let (new, _) = new_rows(rng, writer);
    let sql = insert_sql("INSERT IGNORE", writer, &new);
    Statement { sql, effect: Effect::AddsSome(new) }
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

/// New rows, and whether two of them had one id or one value of the unique column.
fn new_rows(rng: &mut StdRng, writer: u64) -> (Rows, bool) {
    let count = *[1, 1, 3, 20, 50].choose(rng).expect("there are some");
    let mut rows = Rows::new();
    let mut repeats = false;
    for _ in 0..count {
        let id = writer * IDS + rng.random_range(1..SHIFT);
        let row = Row {
            n: rng.random_bool(0.8).then(|| rng.random_range(-50..50)),
            v: rng.random_bool(0.8).then(|| text(rng)),
            u: rng.random_bool(0.8).then(|| match rng.random_range(0..20) {
                0 => rng.random_range(0..1000),
                _ => rng.random_range(0..1_000_000_000),
            }),
            b: blob(rng).1,
            t: words(rng),
            p: point(rng).1,
        };
        repeats |= rows.insert(id, row).is_some();
    }
    repeats |= matches!(unless_repeated(rows.clone()), Effect::Refused);
    (rows, repeats)
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

/// Short or long, with letters that collations take for one another.
fn text(rng: &mut StdRng) -> String {
    let letter = *["a", "A", "ä", "b", "B", "x7"].choose(rng).expect("there are some");
    letter.repeat(*[1, 3, 140].choose(rng).expect("there are some"))
}

fn words(rng: &mut StdRng) -> String {
    let count = rng.random_range(0..5);
    let words: Vec<&str> =
        (0..count).map(|_| *WORDS.choose(rng).expect("there are some")).collect();
    words.join(" ")
}

/// The expression of a value within the row or beside it, and how a [`Row`] has it.
fn blob(rng: &mut StdRng) -> (String, String) {
    let repetitions = *[1, 1, 2, 50, 1200, 5000].choose(rng).expect("there are some");
    let b = format!("{:08x}{}", rng.random::<u32>(), repetitions * 8);
    (blob_sql(&b), b)
}

fn blob_sql(b: &str) -> String {
    let (letters, length) = b.split_at(8);
    let length: u64 = length.parse().expect("a length follows the letters");
    format!("REPEAT('{letters}', {})", length / 8)
}

fn point(rng: &mut StdRng) -> (String, String) {
    let p = format!("POINT({} {})", rng.random_range(-20..20), rng.random_range(-20..20));
    (format!("ST_GeomFromText('{p}')"), p)
}

fn joined<'a>(ids: impl Iterator<Item = &'a u64>) -> String {
    let ids: Vec<String> = ids.map(u64::to_string).collect();
    ids.join(", ")
}

/// The first rows in which two sets differ, for a report.
pub fn difference(found: &Rows, expected: &Rows) -> String {
    let ids: BTreeSet<u64> = found.keys().chain(expected.keys()).copied().collect();
    let differing: Vec<u64> =
        ids.into_iter().filter(|id| found.get(id) != expected.get(id)).collect();
    let show =
        |id: &u64| format!("{id}: found {:?}, expected {:?}", found.get(id), expected.get(id));
    let shown: Vec<String> = differing.iter().take(3).map(show).collect();
    format!("{} rows differ: {}", differing.len(), shown.join("; "))
}
