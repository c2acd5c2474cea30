//! The eight tables. Each has its primary key, and an index for each foreign key.

use std::io::Write;

use mysql::prelude::Queryable;
use mysql::{Conn, LocalInfileHandler};
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator,
    PartSuppGenerator, RegionGenerator, SupplierGenerator,
};

use super::Scale;
use crate::error::{Error, Result};

/// A table: its name, and its columns and indexes.
type Table = (&'static str, &'static str);

/// In the order in which they are filled, the small ones first.
const TABLES: [Table; 8] = [
    (
        "region",
        "r_regionkey INT NOT NULL PRIMARY KEY, r_name CHAR(25) NOT NULL, r_comment VARCHAR(152)",
    ),
    (
        "nation",
        "n_nationkey INT NOT NULL PRIMARY KEY, n_name CHAR(25) NOT NULL, \
         n_regionkey INT NOT NULL, n_comment VARCHAR(152), KEY n_region (n_regionkey)",
    ),
    (
        "supplier",
        "s_suppkey INT NOT NULL PRIMARY KEY, s_name CHAR(25) NOT NULL, \
         s_address VARCHAR(40) NOT NULL, s_nationkey INT NOT NULL, s_phone CHAR(15) NOT NULL, \
         s_acctbal DECIMAL(15,2) NOT NULL, s_comment VARCHAR(101) NOT NULL, \
         KEY s_nation (s_nationkey)",
    ),
    (
        "part",
        "p_partkey INT NOT NULL PRIMARY KEY, p_name VARCHAR(55) NOT NULL, \
         p_mfgr CHAR(25) NOT NULL, p_brand CHAR(10) NOT NULL, p_type VARCHAR(25) NOT NULL, \
         p_size INT NOT NULL, p_container CHAR(10) NOT NULL, \
         p_retailprice DECIMAL(15,2) NOT NULL, p_comment VARCHAR(23) NOT NULL",
    ),
    (
        "partsupp",
        "ps_partkey INT NOT NULL, ps_suppkey INT NOT NULL, ps_availqty INT NOT NULL, \
         ps_supplycost DECIMAL(15,2) NOT NULL, ps_comment VARCHAR(199) NOT NULL, \
         PRIMARY KEY (ps_partkey, ps_suppkey), KEY ps_supplier (ps_suppkey)",
    ),
    (
        "customer",
        "c_custkey INT NOT NULL PRIMARY KEY, c_name VARCHAR(25) NOT NULL, \
         c_address VARCHAR(40) NOT NULL, c_nationkey INT NOT NULL, c_phone CHAR(15) NOT NULL, \
         c_acctbal DECIMAL(15,2) NOT NULL, c_mktsegment CHAR(10) NOT NULL, \
         c_comment VARCHAR(117) NOT NULL, KEY c_nation (c_nationkey)",
    ),
    (
        "orders",
        "o_orderkey BIGINT NOT NULL PRIMARY KEY, o_custkey INT NOT NULL, \
         o_orderstatus CHAR(1) NOT NULL, o_totalprice DECIMAL(15,2) NOT NULL, \
         o_orderdate DATE NOT NULL, o_orderpriority CHAR(15) NOT NULL, \
         o_clerk CHAR(15) NOT NULL, o_shippriority INT NOT NULL, o_comment VARCHAR(79) NOT NULL, \
         KEY o_customer (o_custkey)",
    ),
    (
        "lineitem",
        "l_orderkey BIGINT NOT NULL, l_partkey INT NOT NULL, l_suppkey INT NOT NULL, \
         l_linenumber INT NOT NULL, l_quantity DECIMAL(15,2) NOT NULL, \
         l_extendedprice DECIMAL(15,2) NOT NULL, l_discount DECIMAL(15,2) NOT NULL, \
         l_tax DECIMAL(15,2) NOT NULL, l_returnflag CHAR(1) NOT NULL, \
         l_linestatus CHAR(1) NOT NULL, l_shipdate DATE NOT NULL, l_commitdate DATE NOT NULL, \
         l_receiptdate DATE NOT NULL, l_shipinstruct CHAR(25) NOT NULL, \
         l_shipmode CHAR(10) NOT NULL, l_comment VARCHAR(44) NOT NULL, \
         PRIMARY KEY (l_orderkey, l_linenumber), KEY l_part_supplier (l_partkey, l_suppkey), \
         KEY l_supplier (l_suppkey)",
    ),
];

/// Makes the database and its tables and fills them. `progress` gets the name of each table before
/// it is filled, and the share of the tables that is done.
///
/// # Errors
/// What the server says.
pub fn fill(conn: &mut Conn, scale: Scale, progress: &mut dyn FnMut(&str, f64)) -> Result<()> {
    run(conn, &format!("CREATE DATABASE {} CHARACTER SET latin1", super::DATABASE))?;
    run(conn, &format!("USE {}", super::DATABASE))?;
    run(conn, "SET SESSION foreign_key_checks=0, unique_checks=0")?;
    for (number, (name, columns)) in TABLES.into_iter().enumerate() {
        progress(&format!("filling the table {name} of TPC-H"), number as f64 / 8.0);
        run(conn, &format!("CREATE TABLE {name} ({columns})"))?;
        conn.set_local_infile_handler(Some(LocalInfileHandler::new(move |_, stream| {
            write_rows(name, scale.factor(), stream)
        })));
        run(
            conn,
            &format!(
                "LOAD DATA LOCAL INFILE 'rows' INTO TABLE {name} \
                 FIELDS TERMINATED BY '|' LINES TERMINATED BY '|\\n'"
            ),
        )?;
        run(conn, &format!("ANALYZE TABLE {name}"))?;
    }
    Ok(())
}

fn run(conn: &mut Conn, statement: &str) -> Result<()> {
    conn.query_drop(statement).map_err(Error::sql(statement))
}

/// All rows of a table, a line each, with `|` behind every column.
fn write_rows(table: &str, factor: f64, stream: &mut dyn Write) -> std::io::Result<()> {
    macro_rules! write_all {
        ($generator:ident) => {
            $generator::new(factor, 1, 1).iter().try_for_each(|row| writeln!(stream, "{row}"))
        };
    }
    match table {
        "region" => write_all!(RegionGenerator),
        "nation" => write_all!(NationGenerator),
        "supplier" => write_all!(SupplierGenerator),
        "part" => write_all!(PartGenerator),
        "partsupp" => write_all!(PartSuppGenerator),
        "customer" => write_all!(CustomerGenerator),
        "orders" => write_all!(OrderGenerator),
        "lineitem" => write_all!(LineItemGenerator),
        other => unreachable!("TPC-H has no table {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_as_many_columns_as_its_table() {
        for (name, columns) in TABLES {
            let mut rows = Vec::new();
            write_rows(name, 0.001, &mut rows).unwrap();
            let text = String::from_utf8(rows).unwrap();
            // "NOT NULL" and VARCHAR are in the lines of columns only; DECIMAL(15,2) has a comma.
            let in_table = columns.matches("INT ").count()
                + columns.matches("CHAR(").count()
                + columns.matches("DECIMAL(").count()
                + columns.matches("DATE ").count();
            assert!(text.lines().count() >= 5, "{name}");
            for line in text.lines() {
                assert!(line.ends_with('|'), "{name}: {line}");
                assert_eq!(line.matches('|').count(), in_table, "{name}: {line}");
                assert!(
                    !line.contains('\\'),
                    "{name}: LOAD DATA would take it as an escape: {line}"
                );
            }
        }
    }
}
