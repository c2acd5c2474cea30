//! SQL over either protocol, so that a load is written once for all servers.
//!
//! Statements with parameters have `?` in their places, and are prepared once a connection. What
//! differs between the servers is little, and is dealt with here: how a statement is numbered, how
//! a number with decimals travels, and which errors mean "try again".

use std::fmt;
use std::sync::Arc;

mod mysql_protocol;
mod numeric;
mod postgres_protocol;

pub use postgres_protocol::PostgresClient;

/// A value that goes to a server or comes from it. Decimals are text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Null,
    /// An integer of any width.
    Int(i64),
    /// Text, or a decimal.
    Text(String),
}

macro_rules! from_integers {
    ($($integer:ty),*) => {
        $(impl From<$integer> for Value {
            fn from(value: $integer) -> Value {
                Value::Int(i64::from(value))
            }
        })*
    };
}
from_integers!(i32, u32, i64, bool);

impl From<&str> for Value {
    fn from(value: &str) -> Value {
        Value::Text(value.into())
    }
}

impl From<String> for Value {
    fn from(value: String) -> Value {
        Value::Text(value)
    }
}

impl From<&String> for Value {
    fn from(value: &String) -> Value {
        Value::Text(value.clone())
    }
}

/// A row of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row(pub Vec<Value>);

impl Row {
    /// The integer in a column, from 0.
    ///
    /// # Errors
    /// If it is something else.
    pub fn int(&self, column: usize) -> Result<i64> {
        match self.0.get(column) {
            Some(Value::Int(value)) => Ok(*value),
            Some(Value::Text(text)) => {
                text.parse().map_err(|_| SqlError::other(format!("{text:?} is no integer")))
            }
            other => Err(SqlError::other(format!("column {column} is {other:?}, no integer"))),
        }
    }

    /// The same where only numbers of this size are expected.
    ///
    /// # Errors
    /// If it is something else.
    pub fn number(&self, column: usize) -> Result<u32> {
        let value = self.int(column)?;
        u32::try_from(value).map_err(|_| SqlError::other(format!("{value} is out of range")))
    }

    /// The text in a column, from 0.
    ///
    /// # Errors
    /// If it is NULL or not there.
    pub fn text(&self, column: usize) -> Result<String> {
        match self.0.get(column) {
            Some(Value::Text(text)) => Ok(text.clone()),
            Some(Value::Int(value)) => Ok(value.to_string()),
            other => Err(SqlError::other(format!("column {column} is {other:?}, no text"))),
        }
    }
}

/// Why a statement failed.
#[derive(Clone, Debug)]
pub struct SqlError {
    /// The server's code if the client should retry the transaction: a deadlock and the like.
    pub retry: Option<String>,
    /// What the server or the client says.
    pub message: String,
}

impl SqlError {
    /// An error that no repetition mends.
    pub fn other(message: impl Into<String>) -> SqlError {
        SqlError { retry: None, message: message.into() }
    }
}

impl fmt::Display for SqlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for SqlError {}

/// The result of a statement.
pub type Result<T> = std::result::Result<T, SqlError>;

/// Which SQL a server understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// MariaDB's and MySQL's.
    MySql,
    /// PostgreSQL's.
    Postgres,
}

/// Makes a connection to one database.
pub type Connector = Arc<dyn Fn() -> Result<Box<dyn Client>> + Send + Sync>;

/// A connection.
pub trait Client: Send {
    /// Which SQL it takes.
    fn dialect(&self) -> Dialect;

    /// Runs a statement as text; all values of the result are text.
    ///
    /// # Errors
    /// What the server says.
    fn query(&mut self, statement: &str) -> Result<Vec<Row>>;

    /// Runs a prepared statement.
    ///
    /// # Errors
    /// What the server says.
    fn exec(&mut self, statement: &str, values: &[Value]) -> Result<Vec<Row>>;

    /// Runs a prepared statement of which only the first row is wanted.
    ///
    /// # Errors
    /// What the server says.
    fn first(&mut self, statement: &str, values: &[Value]) -> Result<Option<Row>> {
        Ok(self.exec(statement, values)?.into_iter().next())
    }
}

/// A list of [`Value`]s.
#[macro_export]
macro_rules! values {
    ($($value:expr),* $(,)?) => { [$($crate::client::Value::from($value)),*] };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_is_read_as_what_it_is_wanted_for() {
        let row = Row(vec![Value::Int(7), Value::Text("12.50".into()), Value::Null]);
        assert_eq!((row.int(0).unwrap(), row.number(0).unwrap()), (7, 7));
        assert_eq!(row.text(1).unwrap(), "12.50");
        assert!(row.int(1).is_err() && row.int(2).is_err() && row.text(3).is_err());
        assert!(Row(vec![Value::Int(-1)]).number(0).is_err());
        assert_eq!(Row(vec![Value::Text("42".into())]).int(0).unwrap(), 42);
    }
}
