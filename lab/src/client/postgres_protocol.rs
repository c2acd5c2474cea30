//! [`Client`] for PostgreSQL.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::path::Path;
use std::time::Duration;

use bytes::{BufMut, BytesMut};
use postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use postgres::{NoTls, SimpleQueryMessage, Statement};

use super::{Client, Dialect, Result, Row, SqlError, Value, numeric};

/// A serialization failure and a deadlock: to be tried again.
const RETRY_CODES: [&str; 2] = ["40001", "40P01"];
/// The superuser of the lab's clusters.
pub const USER: &str = "postgres";

type Failure = Box<dyn StdError + Sync + Send>;

/// A connection to PostgreSQL, with its prepared statements.
pub struct PostgresClient {
    client: postgres::Client,
    prepared: HashMap<String, Statement>,
}

impl PostgresClient {
    /// Connects as the superuser through the socket in a directory.
    ///
    /// # Errors
    /// What the client says.
    pub fn connect(socket_dir: &Path, database: &str) -> Result<PostgresClient> {
        let client = postgres::Config::new()
            .host_path(socket_dir)
            .user(USER)
            .dbname(database)
            .connect_timeout(Duration::from_secs(10))
            .connect(NoTls)
            .map_err(error)?;
        Ok(PostgresClient { client, prepared: HashMap::new() })
    }
}

fn error(error: postgres::Error) -> SqlError {
    let code = error.code().map(|state| state.code().to_string());
    let retry = code.filter(|code| RETRY_CODES.contains(&code.as_str()));
    let message = match error.as_db_error() {
        Some(server) => server.to_string(),
        None => error.to_string(),
    };
    SqlError { retry, message }
}

/// "a = ? AND b = ?" as "a = $1 AND b = $2". No statement of the loads has a question mark
/// elsewhere.
fn numbered(statement: &str) -> String {
    let mut text = String::with_capacity(statement.len() + 16);
    for (number, part) in statement.split('?').enumerate() {
        if number > 0 {
            text.push_str(&format!("${number}"));
        }
        text.push_str(part);
    }
    text
}

impl Client for PostgresClient {
    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    fn query(&mut self, statement: &str) -> Result<Vec<Row>> {
        let messages = self.client.simple_query(statement).map_err(error)?;
        let row = |message: SimpleQueryMessage| match message {
            SimpleQueryMessage::Row(row) => {
                let value = |at| row.get(at).map_or(Value::Null, Value::from);
                Some(Row((0..row.len()).map(value).collect()))
            }
            _ => None,
        };
        Ok(messages.into_iter().filter_map(row).collect())
    }

    fn exec(&mut self, statement: &str, values: &[Value]) -> Result<Vec<Row>> {
        let prepared = match self.prepared.get(statement) {
            Some(prepared) => prepared.clone(),
            None => {
                let prepared = self.client.prepare(&numbered(statement)).map_err(error)?;
                self.prepared.insert(statement.into(), prepared.clone());
                prepared
            }
        };
        let values: Vec<&(dyn ToSql + Sync)> =
            values.iter().map(|value| value as &(dyn ToSql + Sync)).collect();
        let rows = self.client.query(&prepared, &values).map_err(error)?;
        let row = |row: postgres::Row| {
            (0..row.len()).map(|at| row.try_get(at)).collect::<std::result::Result<_, _>>()
        };
        rows.into_iter().map(row).map(|row| row.map(Row).map_err(error)).collect()
    }
}

impl ToSql for Value {
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> std::result::Result<IsNull, Failure> {
        match (self, ty) {
            (Value::Null, _) => return Ok(IsNull::Yes),
            (Value::Int(value), &Type::INT2) => out.put_i16(i16::try_from(*value)?),
            (Value::Int(value), &Type::INT4) => out.put_i32(i32::try_from(*value)?),
            (Value::Int(value), &Type::INT8) => out.put_i64(*value),
            (Value::Int(value), &Type::NUMERIC) => {
                out.extend(numeric::from_text(&value.to_string()).ok_or("no number")?);
            }
            (Value::Text(text), &Type::NUMERIC) => {
                out.extend(numeric::from_text(text).ok_or("no number")?);
            }
            (Value::Text(text), _) => out.put_slice(text.as_bytes()),
            (Value::Int(_), _) => return Err(format!("an integer for {ty}").into()),
        }
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Value {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> std::result::Result<Value, Failure> {
        Ok(match *ty {
            Type::INT2 => Value::Int(i16::from_be_bytes(raw.try_into()?).into()),
            Type::INT4 => Value::Int(i32::from_be_bytes(raw.try_into()?).into()),
            Type::INT8 => Value::Int(i64::from_be_bytes(raw.try_into()?)),
            Type::NUMERIC => Value::Text(numeric::to_text(raw).ok_or("no number")?),
            _ => Value::Text(std::str::from_utf8(raw)?.into()),
        })
    }

    fn from_sql_null(_: &Type) -> std::result::Result<Value, Failure> {
        Ok(Value::Null)
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_numbered() {
        assert_eq!(
            numbered("SELECT a FROM t WHERE b = ? AND c < ?"),
            "SELECT a FROM t WHERE b = $1 AND c < $2"
        );
        assert_eq!(numbered("COMMIT"), "COMMIT");
    }

    #[test]
    fn values_are_written_in_the_width_of_the_column_and_read_back() {
        let there_and_back = |value: &Value, ty: &Type| {
            let mut bytes = BytesMut::new();
            value.to_sql(ty, &mut bytes).map_err(|error| error.to_string())?;
            Value::from_sql(ty, &bytes).map_err(|error| error.to_string())
        };
        for ty in [Type::INT2, Type::INT4, Type::INT8] {
            assert_eq!(there_and_back(&Value::Int(-300), &ty), Ok(Value::Int(-300)));
        }
        let money = Value::Text("-10.05".into());
        assert_eq!(there_and_back(&money, &Type::NUMERIC), Ok(money.clone()));
        assert_eq!(there_and_back(&Value::Int(3), &Type::NUMERIC), Ok(Value::Text("3".into())));
        assert_eq!(there_and_back(&Value::from("BC"), &Type::BPCHAR), Ok(Value::from("BC")));
        assert!(there_and_back(&Value::Int(1 << 40), &Type::INT4).is_err());
        assert!(there_and_back(&Value::Int(1), &Type::TEXT).is_err());
    }
}
