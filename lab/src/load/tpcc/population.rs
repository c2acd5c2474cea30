//! The initial rows (clause 4.3.3).

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::random::{
    a_string, last_name, last_name_of, n_string, original_string, permutation, zip,
};
use super::{Scale, schema};
use crate::client::{Client, Result};

/// Rows of one INSERT, and INSERTs of one transaction.
const ROWS_PER_STATEMENT: usize = 200;
const STATEMENTS_PER_TRANSACTION: usize = 20;

/// Inserts many rows in batches.
struct Inserter<'a> {
    conn: &'a mut dyn Client,
    table: &'static str,
    rows: Vec<String>,
    statements: usize,
}

impl<'a> Inserter<'a> {
    fn new(conn: &'a mut dyn Client, table: &'static str) -> Inserter<'a> {
        Inserter { conn, table, rows: Vec::new(), statements: 0 }
    }

    /// Adds a row: the values as SQL text, in the order of the columns.
    fn row(&mut self, values: String) -> Result<()> {
        self.rows.push(values);
        if self.rows.len() == ROWS_PER_STATEMENT { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        if self.rows.is_empty() {
            return Ok(());
        }
        if self.statements == 0 {
            self.conn.query("START TRANSACTION")?;
        }
        self.conn.query(&format!(
            "INSERT INTO {} VALUES ({})",
            self.table,
            self.rows.join("), (")
        ))?;
        self.rows.clear();
        self.statements += 1;
        if self.statements == STATEMENTS_PER_TRANSACTION { self.commit() } else { Ok(()) }
    }

    fn commit(&mut self) -> Result<()> {
        self.statements = 0;
        self.conn.query("COMMIT").map(drop)
    }

    fn finish(mut self) -> Result<()> {
        self.flush()?;
        self.commit()
    }
}

/// Creates the tables and fills them. The same seed gives the same rows.
///
/// # Errors
/// What the server says.
pub fn populate(conn: &mut dyn Client, scale: &Scale, seed: u64) -> Result<()> {
    let rng = &mut StdRng::seed_from_u64(seed);
    schema::create(conn)?;
    items(conn, scale, rng)?;
    for w in 1..=scale.warehouses {
        warehouse(conn, scale, rng, w)?;
        stock(conn, scale, rng, w)?;
        for d in 1..=scale.districts {
            customers(conn, scale, rng, w, d)?;
            orders(conn, scale, rng, w, d)?;
        }
    }
    Ok(())
}

fn items(conn: &mut dyn Client, scale: &Scale, rng: &mut StdRng) -> Result<()> {
    let mut insert = Inserter::new(conn, "item");
    for i in 1..=scale.items {
        let (image, name, price) = (
            rng.random_range(1..=10_000),
            a_string(rng, 14, 24),
            cents(rng.random_range(100..=10_000)),
        );
        insert.row(format!("{i}, {image}, '{name}', {price}, '{}'", original_string(rng)))?;
    }
    insert.finish()
}

fn warehouse(conn: &mut dyn Client, scale: &Scale, rng: &mut StdRng, w: u32) -> Result<()> {
    // A warehouse has received what its districts have: ten dollars of every customer.
    let district_ytd = scale.customers * 10;
    let mut insert = Inserter::new(conn, "warehouse");
    let (name, address, tax) = (a_string(rng, 6, 10), address(rng), tax(rng));
    insert.row(format!("{w}, '{name}', {address}, {tax}, {}", district_ytd * scale.districts))?;
    insert.finish()?;
    let mut insert = Inserter::new(conn, "district");
    for d in 1..=scale.districts {
        let (name, address, tax) = (a_string(rng, 6, 10), self::address(rng), self::tax(rng));
        insert.row(format!(
            "{w}, {d}, '{name}', {address}, {tax}, {district_ytd}, {}",
            scale.customers + 1
        ))?;
    }
    insert.finish()
}

fn stock(conn: &mut dyn Client, scale: &Scale, rng: &mut StdRng, w: u32) -> Result<()> {
    let mut insert = Inserter::new(conn, "stock");
    for i in 1..=scale.items {
        let quantity = rng.random_range(10..=100);
        let districts: Vec<String> =
            (0..10).map(|_| format!("'{}'", a_string(rng, 24, 24))).collect();
        let data = original_string(rng);
        insert.row(format!("{w}, {i}, {quantity}, {}, 0, 0, 0, '{data}'", districts.join(", ")))?;
    }
    insert.finish()
}

fn customers(conn: &mut dyn Client, scale: &Scale, rng: &mut StdRng, w: u32, d: u32) -> Result<()> {
    let mut insert = Inserter::new(conn, "customer");
    for c in 1..=scale.customers {
        let last = if c <= scale.last_names() {
            last_name_of(c - 1)
        } else {
            last_name(rng, scale.last_names())
        };
        let (first, address, phone) = (a_string(rng, 8, 16), address(rng), n_string(rng, 16));
        let credit = if rng.random_range(0..10) == 0 { "BC" } else { "GC" };
        let discount = format!("0.{:04}", rng.random_range(0..=5000));
        let data = a_string(rng, 300, 500);
        insert.row(format!(
            "{w}, {d}, {c}, '{first}', 'OE', '{last}', {address}, '{phone}', NOW(), '{credit}', 50000, {discount},
             -10, 10, 1, 0, '{data}'"
        ))?;
    }
    insert.finish()?;
    let mut insert = Inserter::new(conn, "history");
    for c in 1..=scale.customers {
        insert.row(format!("{c}, {d}, {w}, {d}, {w}, NOW(), 10, '{}'", a_string(rng, 12, 24)))?;
    }
    insert.finish()
}

fn orders(conn: &mut dyn Client, scale: &Scale, rng: &mut StdRng, w: u32, d: u32) -> Result<()> {
    let customer_of = permutation(rng, scale.customers);
    let line_counts: Vec<u32> = customer_of.iter().map(|_| rng.random_range(5..=15)).collect();
    let delivered = |o: u32| o <= scale.delivered_orders();
    let mut insert = Inserter::new(conn, "orders");
    for (o, (c, lines)) in (1..).zip(customer_of.iter().zip(&line_counts)) {
        let carrier =
            if delivered(o) { rng.random_range(1..=10).to_string() } else { "NULL".into() };
        insert.row(format!("{w}, {d}, {o}, {c}, NOW(), {carrier}, {lines}, 1"))?;
    }
    insert.finish()?;
    let mut insert = Inserter::new(conn, "order_line");
    for (o, lines) in (1..).zip(&line_counts) {
        for line in 1..=*lines {
            let (item, info) = (rng.random_range(1..=scale.items), a_string(rng, 24, 24));
            let (date, amount) = if delivered(o) {
                ("NOW()", "0".into())
            } else {
                ("NULL", cents(rng.random_range(1..=999_999)))
            };
            insert.row(format!(
                "{w}, {d}, {o}, {line}, {item}, {w}, {date}, 5, {amount}, '{info}'"
            ))?;
        }
    }
    insert.finish()?;
    let mut insert = Inserter::new(conn, "new_order");
    for o in scale.delivered_orders() + 1..=scale.customers {
        insert.row(format!("{w}, {d}, {o}"))?;
    }
    insert.finish()
}

/// Two streets, a city, a state and a zip code, as SQL values.
fn address(rng: &mut StdRng) -> String {
    let (street_1, street_2, city) =
        (a_string(rng, 10, 20), a_string(rng, 10, 20), a_string(rng, 10, 20));
    format!("'{street_1}', '{street_2}', '{city}', '{}', '{}'", a_string(rng, 2, 2), zip(rng))
}

/// A tax rate from 0 to 20 %.
fn tax(rng: &mut StdRng) -> String {
    format!("0.{:04}", rng.random_range(0..=2000))
}

/// An amount of money as SQL text.
pub(super) fn cents(amount: u64) -> String {
    format!("{}.{:02}", amount / 100, amount % 100)
}
