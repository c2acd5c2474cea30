//! [`Client`] for MariaDB and MySQL.

use mysql::prelude::Queryable;
use mysql::{Conn, Params};

use super::{Client, Dialect, Result, Row, SqlError, Value};

/// A deadlock, a lock wait timeout, a row changed since the snapshot: to be tried again, by SQL's
/// rules.
const RETRY_CODES: [u16; 3] = [1213, 1205, 1020];

fn error(error: mysql::Error) -> SqlError {
    let retry = match &error {
        mysql::Error::MySqlError(server) if RETRY_CODES.contains(&server.code) => {
            Some(server.code.to_string())
        }
        _ => None,
    };
    SqlError { retry, message: error.to_string() }
}

fn row(row: mysql::Row) -> Row {
    let value = |value| match value {
        mysql::Value::NULL => Value::Null,
        mysql::Value::Int(number) => Value::Int(number),
        mysql::Value::UInt(number) => Value::Int(number as i64),
        mysql::Value::Bytes(bytes) => Value::Text(String::from_utf8_lossy(&bytes).into_owned()),
        other => Value::Text(other.as_sql(true).trim_matches('\'').to_string()),
    };
    Row(row.unwrap().into_iter().map(value).collect())
}

impl Client for Conn {
    fn dialect(&self) -> Dialect {
        Dialect::MySql
    }

    fn query(&mut self, statement: &str) -> Result<Vec<Row>> {
        let rows: Vec<mysql::Row> = Queryable::query(self, statement).map_err(error)?;
        Ok(rows.into_iter().map(row).collect())
    }

    fn exec(&mut self, statement: &str, values: &[Value]) -> Result<Vec<Row>> {
        let value = |value: &Value| match value {
            Value::Null => mysql::Value::NULL,
            Value::Int(number) => mysql::Value::Int(*number),
            Value::Text(text) => mysql::Value::Bytes(text.clone().into_bytes()),
        };
        let params = Params::Positional(values.iter().map(value).collect());
        // The driver takes no list of values for a statement that has no places for them.
        let params = if values.is_empty() { Params::Empty } else { params };
        let rows: Vec<mysql::Row> = Queryable::exec(self, statement, params).map_err(error)?;
        Ok(rows.into_iter().map(row).collect())
    }
}
