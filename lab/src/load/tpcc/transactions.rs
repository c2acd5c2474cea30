//! The five transactions (clauses 2.4–2.8). Each is the body only: [`super::load`] begins and ends
//! it.

use rand::Rng;
use rand::rngs::StdRng;

use super::Scale;
use super::population::cents;
use super::random::{customer, item, last_name};
use crate::client::{Client, Result, Row, SqlError};
use crate::values;

/// The kinds of transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Enters an order of 5–15 lines.
    NewOrder,
    /// Books a customer's payment.
    Payment,
    /// Reads a customer's last order.
    OrderStatus,
    /// Delivers the oldest open order of each district.
    Delivery,
    /// Counts the recently sold items whose stock is low.
    StockLevel,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 5] =
        [Kind::NewOrder, Kind::Payment, Kind::OrderStatus, Kind::Delivery, Kind::StockLevel];

    /// A kind at random, with the shares of clause 5.2.3.
    pub fn random(rng: &mut StdRng) -> Kind {
        match rng.random_range(0..100) {
            0..43 => Kind::Payment,
            43..47 => Kind::OrderStatus,
            47..51 => Kind::Delivery,
            51..55 => Kind::StockLevel,
            _ => Kind::NewOrder,
        }
    }
}

/// What a body wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Commit, with the number of delivered orders.
    Commit {
        /// Orders that leave `new_order` by this transaction.
        delivered: u64,
    },
    /// Roll back: the order names an item that does not exist.
    Rollback,
}

const COMMIT: Ending = Ending::Commit { delivered: 0 };

/// Runs the body of a transaction for a terminal of warehouse `w`.
///
/// # Errors
/// What the server says; a row that must be there and isn't shows as an error too.
pub fn body(
    kind: Kind,
    conn: &mut dyn Client,
    rng: &mut StdRng,
    scale: &Scale,
    w: u32,
) -> Result<Ending> {
    match kind {
        Kind::NewOrder => new_order(conn, rng, scale, w),
        Kind::Payment => payment(conn, rng, scale, w),
        Kind::OrderStatus => order_status(conn, rng, scale, w),
        Kind::Delivery => delivery(conn, rng, scale, w),
        Kind::StockLevel => stock_level(conn, rng, scale, w),
    }
}

/// The row, which must exist.
fn present(row: Option<Row>, what: &str) -> Result<Row> {
    row.ok_or_else(|| SqlError::other(format!("{what}: no such row")))
}

/// "12.34" as 1234.
fn in_cents(price: &str) -> Result<u64> {
    let digits: String = price.chars().filter(|&character| character != '.').collect();
    digits.parse().map_err(|_| SqlError::other(format!("{price} is no price")))
}

/// Another warehouse than `w`, if there is one.
fn another_warehouse(rng: &mut StdRng, scale: &Scale, w: u32) -> u32 {
    if scale.warehouses == 1 {
        return w;
    }
    let other = rng.random_range(1..scale.warehouses);
    if other >= w { other + 1 } else { other }
}

struct Line {
    supply_w: u32,
    item: u32,
    quantity: u32,
}

fn new_order(conn: &mut dyn Client, rng: &mut StdRng, scale: &Scale, w: u32) -> Result<Ending> {
    let (d, c) = (rng.random_range(1..=scale.districts), customer(rng, scale.customers));
    let wrong_item = rng.random_range(0..100) == 0;
    let mut lines: Vec<Line> = (0..rng.random_range(5..=15))
        .map(|_| {
            let remote = rng.random_range(0..100) == 0;
            let supply_w = if remote { another_warehouse(rng, scale, w) } else { w };
            Line { supply_w, item: item(rng, scale.items), quantity: rng.random_range(1..=10) }
        })
        .collect();
    // Stock rows are locked in one order by all, so that two orders seldom deadlock.
    lines.sort_by_key(|line| (line.supply_w, line.item));
    if wrong_item {
        lines.last_mut().expect("has five lines").item = scale.items + 1;
    }
    let all_local = lines.iter().all(|line| line.supply_w == w);

    let next = conn.first(
        "SELECT d_next_o_id, d_tax FROM district WHERE d_w_id = ? AND d_id = ? FOR UPDATE",
        &values![w, d],
    )?;
    let o = present(next, "district")?.number(0)?;
    conn.exec(
        "UPDATE district SET d_next_o_id = ? WHERE d_w_id = ? AND d_id = ?",
        &values![o + 1, w, d],
    )?;
    let rates = conn.first(
        "SELECT c_discount, c_last, c_credit, w_tax FROM customer JOIN warehouse ON w_id = c_w_id
         WHERE c_w_id = ? AND c_d_id = ? AND c_id = ?",
        &values![w, d, c],
    )?;
    present(rates, "customer")?;
    conn.exec(
        "INSERT INTO orders VALUES (?, ?, ?, ?, NOW(), NULL, ?, ?)",
        &values![w, d, o, c, lines.len() as u32, all_local],
    )?;
    conn.exec("INSERT INTO new_order VALUES (?, ?, ?)", &values![w, d, o])?;
    for (number, line) in (1u32..).zip(&lines) {
        let price = conn.first(
            "SELECT i_price, i_name, i_data FROM item WHERE i_id = ?",
            &values![line.item],
        )?;
        let Some(found) = price else {
            return Ok(Ending::Rollback);
        };
        order_line(conn, (w, d, o), number, line, in_cents(&found.text(0)?)?)?;
    }
    Ok(COMMIT)
}

/// Takes a line's quantity from the stock, and enters the line.
fn order_line(
    conn: &mut dyn Client,
    order: (u32, u32, u32),
    number: u32,
    line: &Line,
    price: u64,
) -> Result<()> {
    let (w, d, o) = order;
    let stock = conn.first(&format!("SELECT s_quantity, s_data, s_dist_{d:02} FROM stock WHERE s_w_id = ? AND s_i_id = ? FOR UPDATE"), &values![line.supply_w, line.item])?;
    let stock = present(stock, "stock")?;
    let (quantity, info) = (stock.int(0)?, stock.text(2)?);
    let mut left = quantity - i64::from(line.quantity);
    if left < 10 {
        left += 91;
    }
    conn.exec(
        "UPDATE stock SET s_quantity = ?, s_ytd = s_ytd + ?, s_order_cnt = s_order_cnt + 1,
         s_remote_cnt = s_remote_cnt + ? WHERE s_w_id = ? AND s_i_id = ?",
        &values![left, line.quantity, line.supply_w != w, line.supply_w, line.item],
    )?;
    let amount = cents(price * u64::from(line.quantity));
    conn.exec(
        "INSERT INTO order_line VALUES (?, ?, ?, ?, ?, ?, NULL, ?, ?, ?)",
        &values![w, d, o, number, line.item, line.supply_w, line.quantity, amount, info],
    )?;
    Ok(())
}

/// A customer: 60 % by last name (the middle one of those who bear it), 40 % by number.
fn choose_customer(
    conn: &mut dyn Client,
    rng: &mut StdRng,
    scale: &Scale,
    w: u32,
    d: u32,
) -> Result<u32> {
    if rng.random_range(0..100) >= 60 {
        return Ok(customer(rng, scale.customers));
    }
    let name = last_name(rng, scale.last_names());
    let bearers = conn.exec(
        "SELECT c_id FROM customer WHERE c_w_id = ? AND c_d_id = ? AND c_last = ? ORDER BY c_first",
        &values![w, d, name],
    )?;
    let middle = bearers.get(bearers.len().saturating_sub(1) / 2).cloned();
    present(middle, "customer by name")?.number(0)
}

fn payment(conn: &mut dyn Client, rng: &mut StdRng, scale: &Scale, w: u32) -> Result<Ending> {
    let d = rng.random_range(1..=scale.districts);
    let (c_w, c_d) = if rng.random_range(0..100) < 85 {
        (w, d)
    } else {
        (another_warehouse(rng, scale, w), rng.random_range(1..=scale.districts))
    };
    let amount = cents(rng.random_range(100..=500_000));
    conn.exec("UPDATE warehouse SET w_ytd = w_ytd + ? WHERE w_id = ?", &values![&amount, w])?;
    let w_name = conn.first("SELECT w_name FROM warehouse WHERE w_id = ?", &values![w])?;
    conn.exec(
        "UPDATE district SET d_ytd = d_ytd + ? WHERE d_w_id = ? AND d_id = ?",
        &values![&amount, w, d],
    )?;
    let d_name =
        conn.first("SELECT d_name FROM district WHERE d_w_id = ? AND d_id = ?", &values![w, d])?;
    let c = choose_customer(conn, rng, scale, c_w, c_d)?;
    let credit = conn.first(
        "SELECT c_credit, c_data FROM customer WHERE c_w_id = ? AND c_d_id = ? AND c_id = ? FOR UPDATE", &values![c_w, c_d, c])?;
    let credit = present(credit, "customer")?;
    conn.exec(
        "UPDATE customer SET c_balance = c_balance - ?, c_ytd_payment = c_ytd_payment + ?,
         c_payment_cnt = c_payment_cnt + 1 WHERE c_w_id = ? AND c_d_id = ? AND c_id = ?",
        &values![&amount, &amount, c_w, c_d, c],
    )?;
    if credit.text(0)? == "BC" {
        let mut longer = format!("{c} {c_d} {c_w} {d} {w} {amount}|{}", credit.text(1)?);
        longer.truncate(500);
        conn.exec(
            "UPDATE customer SET c_data = ? WHERE c_w_id = ? AND c_d_id = ? AND c_id = ?",
            &values![longer, c_w, c_d, c],
        )?;
    }
    let (w_name, d_name) = (present(w_name, "warehouse")?, present(d_name, "district")?);
    let h_data = format!("{}    {}", w_name.text(0)?, d_name.text(0)?);
    conn.exec(
        "INSERT INTO history VALUES (?, ?, ?, ?, ?, NOW(), ?, ?)",
        &values![c, c_d, c_w, d, w, amount, h_data],
    )?;
    Ok(COMMIT)
}

fn order_status(conn: &mut dyn Client, rng: &mut StdRng, scale: &Scale, w: u32) -> Result<Ending> {
    let d = rng.random_range(1..=scale.districts);
    let c = choose_customer(conn, rng, scale, w, d)?;
    let who = conn.first(
        "SELECT c_balance, c_first, c_last FROM customer WHERE c_w_id = ? AND c_d_id = ? AND c_id = ?", &values![w, d, c])?;
    present(who, "customer")?;
    let order = conn.first(
        "SELECT o_id, o_ol_cnt FROM orders WHERE o_w_id = ? AND o_d_id = ? AND o_c_id = ? ORDER BY o_id DESC LIMIT 1", &values![w, d, c])?;
    let order = present(order, "a customer's last order")?;
    let (o, count) = (order.number(0)?, order.number(1)?);
    let lines = conn.exec(
        "SELECT ol_i_id, ol_amount FROM order_line WHERE ol_w_id = ? AND ol_d_id = ? AND ol_o_id = ?", &values![w, d, o])?;
    if lines.len() != count as usize {
        let text = format!(
            "order {w}/{d}/{o} has {} lines, not {count}: read in the middle of a transaction",
            lines.len()
        );
        return Err(SqlError::other(text));
    }
    Ok(COMMIT)
}

fn delivery(conn: &mut dyn Client, rng: &mut StdRng, scale: &Scale, w: u32) -> Result<Ending> {
    let carrier = rng.random_range(1..=10);
    let mut delivered = 0;
    for d in 1..=scale.districts {
        let oldest = conn.first(
            "SELECT no_o_id FROM new_order WHERE no_w_id = ? AND no_d_id = ? ORDER BY no_o_id LIMIT 1 FOR UPDATE", &values![w, d])?;
        let Some(oldest) = oldest else { continue };
        let o = oldest.number(0)?;
        conn.exec(
            "DELETE FROM new_order WHERE no_w_id = ? AND no_d_id = ? AND no_o_id = ?",
            &values![w, d, o],
        )?;
        let c = conn.first(
            "SELECT o_c_id FROM orders WHERE o_w_id = ? AND o_d_id = ? AND o_id = ? FOR UPDATE",
            &values![w, d, o],
        )?;
        let c = present(c, "an order to deliver")?.number(0)?;
        conn.exec(
            "UPDATE orders SET o_carrier_id = ? WHERE o_w_id = ? AND o_d_id = ? AND o_id = ?",
            &values![carrier, w, d, o],
        )?;
        conn.exec(
            "UPDATE order_line SET ol_delivery_d = NOW() WHERE ol_w_id = ? AND ol_d_id = ? AND ol_o_id = ?", &values![w, d, o])?;
        let total = conn.first(
            "SELECT SUM(ol_amount) FROM order_line WHERE ol_w_id = ? AND ol_d_id = ? AND ol_o_id = ?", &values![w, d, o])?;
        conn.exec(
            "UPDATE customer SET c_balance = c_balance + ?, c_delivery_cnt = c_delivery_cnt + 1
             WHERE c_w_id = ? AND c_d_id = ? AND c_id = ?",
            &values![present(total, "lines of an order")?.text(0)?, w, d, c],
        )?;
        delivered += 1;
    }
    Ok(Ending::Commit { delivered })
}

fn stock_level(conn: &mut dyn Client, rng: &mut StdRng, scale: &Scale, w: u32) -> Result<Ending> {
    let (d, threshold) = (rng.random_range(1..=scale.districts), rng.random_range(10..=20));
    let next = conn
        .first("SELECT d_next_o_id FROM district WHERE d_w_id = ? AND d_id = ?", &values![w, d])?;
    let next = present(next, "district")?.int(0)?;
    let low = conn.first(
        "SELECT COUNT(DISTINCT s_i_id) FROM order_line JOIN stock ON s_w_id = ol_w_id AND s_i_id = ol_i_id
         WHERE ol_w_id = ? AND ol_d_id = ? AND ol_o_id < ? AND ol_o_id >= ? AND s_quantity < ?", &values![w, d, next, next - 20, threshold])?;
    present(low, "a count")?;
    Ok(COMMIT)
}
