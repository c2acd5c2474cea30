//! The nine tables (clause 1.3), with the two secondary indexes that the transactions need.

use crate::client::{Client, Dialect, Result};

const ADDRESS: [&str; 5] = [
    "street_1 VARCHAR(20)",
    "street_2 VARCHAR(20)",
    "city VARCHAR(20)",
    "state CHAR(2)",
    "zip CHAR(9)",
];

/// The columns of an address, each named with a table's prefix.
fn address(prefix: &str) -> String {
    ADDRESS.map(|column| format!("{prefix}_{column} NOT NULL")).join(", ")
}

/// Creates the tables in the connection's default database.
///
/// # Errors
/// What the server says.
pub fn create(conn: &mut dyn Client) -> Result<()> {
    let stock_districts: String =
        (1..=10).map(|d| format!("s_dist_{d:02} CHAR(24) NOT NULL, ")).collect();
    // In the table's definition PostgreSQL knows keys only, no other index; MariaDB would rebuild
    // the table for it.
    let (by_name, separate) = match conn.dialect() {
        Dialect::MySql => (", KEY by_name (c_w_id, c_d_id, c_last, c_first)", None),
        Dialect::Postgres => {
            ("", Some("CREATE INDEX by_name ON customer (c_w_id, c_d_id, c_last, c_first)"))
        }
    };
    let tables = [
        format!(
            "warehouse (w_id INT PRIMARY KEY, w_name VARCHAR(10) NOT NULL, {}, w_tax DECIMAL(4,4) NOT NULL,
             w_ytd DECIMAL(12,2) NOT NULL)",
            address("w")
        ),
        format!(
            "district (d_w_id INT, d_id INT, d_name VARCHAR(10) NOT NULL, {}, d_tax DECIMAL(4,4) NOT NULL,
             d_ytd DECIMAL(12,2) NOT NULL, d_next_o_id INT NOT NULL, PRIMARY KEY (d_w_id, d_id))",
            address("d")
        ),
        format!(
            "customer (c_w_id INT, c_d_id INT, c_id INT, c_first VARCHAR(16) NOT NULL, c_middle CHAR(2) NOT NULL,
             c_last VARCHAR(16) NOT NULL, {}, c_phone CHAR(16) NOT NULL, c_since DATETIME NOT NULL,
             c_credit CHAR(2) NOT NULL, c_credit_lim DECIMAL(12,2) NOT NULL, c_discount DECIMAL(4,4) NOT NULL,
             c_balance DECIMAL(12,2) NOT NULL, c_ytd_payment DECIMAL(12,2) NOT NULL, c_payment_cnt INT NOT NULL,
             c_delivery_cnt INT NOT NULL, c_data VARCHAR(500) NOT NULL, PRIMARY KEY (c_w_id, c_d_id, c_id){by_name})",
            address("c")
        ),
        "history (h_c_id INT NOT NULL, h_c_d_id INT NOT NULL, h_c_w_id INT NOT NULL, h_d_id INT NOT NULL,
         h_w_id INT NOT NULL, h_date DATETIME NOT NULL, h_amount DECIMAL(6,2) NOT NULL, h_data VARCHAR(24) NOT NULL)"
            .into(),
        "new_order (no_w_id INT, no_d_id INT, no_o_id INT, PRIMARY KEY (no_w_id, no_d_id, no_o_id))".into(),
        "orders (o_w_id INT, o_d_id INT, o_id INT, o_c_id INT NOT NULL, o_entry_d DATETIME NOT NULL,
         o_carrier_id INT, o_ol_cnt INT NOT NULL, o_all_local INT NOT NULL, PRIMARY KEY (o_w_id, o_d_id, o_id),
         CONSTRAINT by_customer UNIQUE (o_w_id, o_d_id, o_c_id, o_id))"
            .into(),
        "order_line (ol_w_id INT, ol_d_id INT, ol_o_id INT, ol_number INT, ol_i_id INT NOT NULL,
         ol_supply_w_id INT NOT NULL, ol_delivery_d DATETIME, ol_quantity INT NOT NULL,
         ol_amount DECIMAL(6,2) NOT NULL, ol_dist_info CHAR(24) NOT NULL,
         PRIMARY KEY (ol_w_id, ol_d_id, ol_o_id, ol_number))"
            .into(),
        "item (i_id INT PRIMARY KEY, i_im_id INT NOT NULL, i_name VARCHAR(24) NOT NULL, i_price DECIMAL(5,2) NOT NULL,
         i_data VARCHAR(50) NOT NULL)"
            .into(),
        format!(
            "stock (s_w_id INT, s_i_id INT, s_quantity INT NOT NULL, {stock_districts} s_ytd INT NOT NULL,
             s_order_cnt INT NOT NULL, s_remote_cnt INT NOT NULL, s_data VARCHAR(50) NOT NULL,
             PRIMARY KEY (s_w_id, s_i_id))"
        ),
    ];
    for table in tables {
        let statement = format!("CREATE TABLE {table}");
        conn.query(&match conn.dialect() {
            Dialect::MySql => statement,
            Dialect::Postgres => statement.replace("DATETIME", "TIMESTAMP"),
        })?;
    }
    if let Some(statement) = separate {
        conn.query(statement)?;
    }
    Ok(())
}

/// The names of the tables.
pub const TABLES: [&str; 9] = [
    "warehouse",
    "district",
    "customer",
    "history",
    "new_order",
    "orders",
    "order_line",
    "item",
    "stock",
];
