//! The consistency conditions (clause 3.3.2), each as a query for the rows that violate it; and
//! what must be there because it was acknowledged.

use super::transactions::Kind;
use super::{Report, Scale, schema};
use crate::client::{Client, Dialect, Result, Row, Value};

/// The database that holds the tables.
pub const DATABASE: &str = "tpcc";

/// The most violations that are listed of each condition.
const SHOWN: usize = 3;

/// A condition: its name, and the violations found, described.
type Condition = (&'static str, fn(&mut dyn Client) -> Result<Vec<String>>);

/// All twelve conditions.
pub const CONDITIONS: [Condition; 12] = [
    ("1: W_YTD = sum(D_YTD)", warehouse_ytd_is_the_sum_of_its_districts),
    ("2: D_NEXT_O_ID - 1 = max(O_ID) = max(NO_O_ID)", next_order_follows_the_last),
    ("3: new orders are numbered without a gap", new_orders_have_no_gap),
    ("4: sum(O_OL_CNT) = order lines, by district", districts_have_all_order_lines),
    ("5: no carrier if and only if a new order", undelivered_orders_are_new_orders),
    ("6: O_OL_CNT = order lines, by order", orders_have_all_their_lines),
    ("7: no delivery date if and only if no carrier", lines_are_delivered_with_their_order),
    ("8: W_YTD = sum(H_AMOUNT)", warehouse_ytd_is_in_the_history),
    ("9: D_YTD = sum(H_AMOUNT)", district_ytd_is_in_the_history),
    ("10: C_BALANCE = sum(OL_AMOUNT) - sum(H_AMOUNT)", balances_are_deliveries_less_payments),
    ("11: orders - new orders = delivered orders", delivered_orders_are_the_rest),
    ("12: C_BALANCE + C_YTD_PAYMENT = sum(OL_AMOUNT)", balances_and_payments_are_deliveries),
];

/// Checks all conditions, within the connection's transaction if there is one.
///
/// # Errors
/// What the server says.
pub fn broken_conditions(conn: &mut dyn Client) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for (name, check) in CONDITIONS {
        found.extend(
            check(conn)?.into_iter().map(|violation| format!("condition {name}: {violation}")),
        );
    }
    Ok(found)
}

/// Checks all conditions, and the structure of all tables: by CHECK TABLE, or PostgreSQL's module
/// `amcheck`. Returns what is wrong, described; empty if all is well.
///
/// # Errors
/// What the server says.
pub fn violations(conn: &mut dyn Client) -> Result<Vec<String>> {
    let mut found = broken_conditions(conn)?;
    if conn.dialect() == Dialect::Postgres {
        found.extend(broken_indexes(conn)?);
        return Ok(found);
    }
    for table in schema::TABLES {
        let rows = conn.query(&format!("CHECK TABLE {table} EXTENDED"))?;
        if rows.last().is_none_or(|row| row.0.get(3) != Some(&Value::from("OK"))) {
            found.push(format!("CHECK TABLE: {rows:?}"));
        }
    }
    Ok(found)
}

/// Every index against its table, by `amcheck`.
fn broken_indexes(conn: &mut dyn Client) -> Result<Vec<String>> {
    conn.query("CREATE EXTENSION IF NOT EXISTS amcheck")?;
    let indexes = conn.query("SELECT indexname FROM pg_indexes WHERE schemaname = 'public'")?;
    let mut found = Vec::new();
    for index in indexes {
        let index = index.text(0)?;
        if let Err(error) = conn.query(&format!("SELECT bt_index_check('{index}', true)")) {
            found.push(format!("amcheck: {index}: {error}"));
        }
    }
    Ok(found)
}

/// Checks that every acknowledged order, delivery and payment is there, and nothing beside what is
/// in doubt.
///
/// # Errors
/// What the server says.
pub fn lost_or_phantom(
    conn: &mut dyn Client,
    scale: &Scale,
    report: &Report,
) -> Result<Vec<String>> {
    let districts = u64::from(scale.warehouses * scale.districts);
    let (initial, initial_delivered) =
        (districts * u64::from(scale.customers), districts * u64::from(scale.delivered_orders()));
    let count = |conn: &mut dyn Client, query| -> Result<u64> {
        let rows = conn.query(query)?;
        Ok(rows.first().map(|row| row.int(0)).transpose()?.unwrap_or(0).unsigned_abs())
    };
    let entered = count(conn, "SELECT COUNT(*) FROM orders")?;
    let delivered = count(conn, "SELECT COUNT(*) FROM orders WHERE o_carrier_id IS NOT NULL")?;
    // One row for each customer at first, and one for each payment.
    let paid = count(conn, "SELECT COUNT(*) FROM history")?;
    let mut found = Vec::new();
    let mut expect = |what: &str, actual: u64, least: u64, in_doubt: u64| {
        if actual < least || actual > least + in_doubt {
            found.push(format!("{actual} {what}, expected {least}, in doubt {in_doubt}"));
        }
    };
    let least = initial + report.committed(Kind::NewOrder);
    expect("orders entered", entered, least, report.new_orders_in_doubt);
    let least = initial_delivered + report.delivered;
    expect("orders delivered", delivered, least, report.delivered_in_doubt);
    let least = initial + report.committed(Kind::Payment);
    expect("payments", paid, least, report.payments_in_doubt);
    Ok(found)
}

/// The rows that a query finds, described.
fn rows(conn: &mut dyn Client, query: &str) -> Result<Vec<String>> {
    let text = |row: Row| {
        let values: Vec<String> = row.0.iter().map(|value| format!("{value:?}")).collect();
        values.join(", ")
    };
    Ok(conn.query(query)?.into_iter().take(SHOWN).map(text).collect())
}

fn warehouse_ytd_is_the_sum_of_its_districts(conn: &mut dyn Client) -> Result<Vec<String>> {
    rows(
        conn,
        "SELECT w_id, w_ytd, SUM(d_ytd) AS districts FROM warehouse LEFT JOIN district ON d_w_id = w_id
         GROUP BY w_id, w_ytd HAVING SUM(d_ytd) IS NULL OR w_ytd <> SUM(d_ytd)",
    )
}

/// A district without an open order has no largest one.
fn next_order_follows_the_last(conn: &mut dyn Client) -> Result<Vec<String>> {
    rows(
        conn,
        "SELECT d_w_id, d_id, d_next_o_id, last_order, last_new_order FROM district
         LEFT JOIN (SELECT o_w_id, o_d_id, MAX(o_id) AS last_order FROM orders GROUP BY o_w_id, o_d_id) o
           ON o_w_id = d_w_id AND o_d_id = d_id
         LEFT JOIN (SELECT no_w_id, no_d_id, MAX(no_o_id) AS last_new_order FROM new_order GROUP BY no_w_id, no_d_id) n
           ON no_w_id = d_w_id AND no_d_id = d_id
         WHERE last_order IS NULL OR d_next_o_id - 1 <> last_order OR d_next_o_id - 1 <> last_new_order",
    )
}

fn new_orders_have_no_gap(conn: &mut dyn Client) -> Result<Vec<String>> {
    rows(
        conn,
        "SELECT no_w_id, no_d_id, MIN(no_o_id), MAX(no_o_id), COUNT(*) FROM new_order GROUP BY no_w_id, no_d_id
         HAVING MAX(no_o_id) - MIN(no_o_id) + 1 <> COUNT(*)",
    )
}

fn districts_have_all_order_lines(conn: &mut dyn Client) -> Result<Vec<String>> {
    rows(
        conn,
        "SELECT o_w_id, o_d_id, expected, actual
         FROM (SELECT o_w_id, o_d_id, SUM(o_ol_cnt) AS expected FROM orders GROUP BY o_w_id, o_d_id) o
         LEFT JOIN (SELECT ol_w_id, ol_d_id, COUNT(*) AS actual FROM order_line GROUP BY ol_w_id, ol_d_id) l
           ON ol_w_id = o_w_id AND ol_d_id = o_d_id
         WHERE actual IS NULL OR expected <> actual",
    )
}

fn undelivered_orders_are_new_orders(conn: &mut dyn Client) -> Result<Vec<String>> {
    let mut found = rows(
        conn,
        "SELECT o_w_id, o_d_id, o_id, o_carrier_id, no_o_id FROM orders
         LEFT JOIN new_order ON no_w_id = o_w_id AND no_d_id = o_d_id AND no_o_id = o_id
         WHERE (o_carrier_id IS NULL) <> (no_o_id IS NOT NULL)",
    )?;
    found.extend(rows(
        conn,
        "SELECT no_w_id, no_d_id, no_o_id FROM new_order
         LEFT JOIN orders ON o_w_id = no_w_id AND o_d_id = no_d_id AND o_id = no_o_id WHERE o_id IS NULL",
    )?);
    Ok(found)
}

fn orders_have_all_their_lines(conn: &mut dyn Client) -> Result<Vec<String>> {
    rows(
        conn,
        "SELECT o_w_id, o_d_id, o_id, o_ol_cnt, COUNT(ol_number) AS actual FROM orders
         LEFT JOIN order_line ON ol_w_id = o_w_id AND ol_d_id = o_d_id AND ol_o_id = o_id
         GROUP BY o_w_id, o_d_id, o_id, o_ol_cnt HAVING o_ol_cnt <> COUNT(ol_number)",
    )
}

fn lines_are_delivered_with_their_order(conn: &mut dyn Client) -> Result<Vec<String>> {
    rows(
        conn,
        "SELECT ol_w_id, ol_d_id, ol_o_id, ol_number, ol_delivery_d, o_carrier_id FROM order_line
         LEFT JOIN orders ON o_w_id = ol_w_id AND o_d_id = ol_d_id AND o_id = ol_o_id
         WHERE o_id IS NULL OR (ol_delivery_d IS NULL) <> (o_carrier_id IS NULL)",
    )
}

fn warehouse_ytd_is_in_the_history(conn: &mut dyn Client) -> Result<Vec<String>> {
    rows(
        conn,
        "SELECT w_id, w_ytd, SUM(h_amount) AS paid FROM warehouse LEFT JOIN history ON h_w_id = w_id
         GROUP BY w_id, w_ytd HAVING SUM(h_amount) IS NULL OR w_ytd <> SUM(h_amount)",
    )
}

fn district_ytd_is_in_the_history(conn: &mut dyn Client) -> Result<Vec<String>> {
    rows(
        conn,
        "SELECT d_w_id, d_id, d_ytd, paid FROM district
         LEFT JOIN (SELECT h_w_id, h_d_id, SUM(h_amount) AS paid FROM history GROUP BY h_w_id, h_d_id) h
           ON h_w_id = d_w_id AND h_d_id = d_id
         WHERE paid IS NULL OR d_ytd <> paid",
    )
}

/// What each customer was delivered, for the conditions 10 and 12.
const DELIVERED: &str = "(SELECT o_w_id, o_d_id, o_c_id, SUM(ol_amount) AS delivered FROM orders
    JOIN order_line ON ol_w_id = o_w_id AND ol_d_id = o_d_id AND ol_o_id = o_id
    WHERE ol_delivery_d IS NOT NULL GROUP BY o_w_id, o_d_id, o_c_id) d
    ON o_w_id = c_w_id AND o_d_id = c_d_id AND o_c_id = c_id";

fn balances_are_deliveries_less_payments(conn: &mut dyn Client) -> Result<Vec<String>> {
    rows(
        conn,
        &format!(
            "SELECT c_w_id, c_d_id, c_id, c_balance, delivered, paid FROM customer LEFT JOIN {DELIVERED}
             LEFT JOIN (SELECT h_c_w_id, h_c_d_id, h_c_id, SUM(h_amount) AS paid FROM history
                        GROUP BY h_c_w_id, h_c_d_id, h_c_id) h
               ON h_c_w_id = c_w_id AND h_c_d_id = c_d_id AND h_c_id = c_id
             WHERE c_balance <> COALESCE(delivered, 0) - COALESCE(paid, 0)"
        ),
    )
}

/// The specification states the figure 2100, which holds before any delivery; this is its meaning
/// afterwards.
fn delivered_orders_are_the_rest(conn: &mut dyn Client) -> Result<Vec<String>> {
    rows(
        conn,
        "SELECT o_w_id, o_d_id, orders, delivered, COALESCE(open, 0)
         FROM (SELECT o_w_id, o_d_id, COUNT(*) AS orders, COUNT(o_carrier_id) AS delivered FROM orders
               GROUP BY o_w_id, o_d_id) o
         LEFT JOIN (SELECT no_w_id, no_d_id, COUNT(*) AS open FROM new_order GROUP BY no_w_id, no_d_id) n
           ON no_w_id = o_w_id AND no_d_id = o_d_id
         WHERE orders - COALESCE(open, 0) <> delivered",
    )
}

fn balances_and_payments_are_deliveries(conn: &mut dyn Client) -> Result<Vec<String>> {
    rows(
        conn,
        &format!(
            "SELECT c_w_id, c_d_id, c_id, c_balance, c_ytd_payment, delivered FROM customer LEFT JOIN {DELIVERED}
             WHERE c_balance + c_ytd_payment <> COALESCE(delivered, 0)"
        ),
    )
}
