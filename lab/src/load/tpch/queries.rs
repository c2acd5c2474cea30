//! The 22 queries, with the parameters that the specification validates with, in SQL that MariaDB
//! and MySQL take.
//!
//! Five things differ from the specification's text, as its section 2.2.3 allows: the precision
//! behind `day` in query 1 goes, the number of rows that a query returns at most is a `LIMIT`, the
//! derived table of query 13 names its columns within, the view of query 15 has a fixed name, and
//! query 11's share is divided by the scale factor, as the specification demands.

use super::Scale;

/// How many queries there are.
pub const COUNT: usize = 22;

/// One of the queries.
#[derive(Clone, Debug, PartialEq)]
pub struct Query {
    /// 1 to 22.
    pub number: usize,
    /// Run before it, and not measured.
    pub before: Vec<String>,
    /// The statement that is measured.
    pub statement: String,
    /// Run after it, and not measured.
    pub after: Vec<String>,
}

/// The values of `:1`, `:2`, … of each query.
const PARAMETERS: [&[&str]; COUNT] = [
    &["90"],
    &["15", "BRASS", "EUROPE"],
    &["BUILDING", "1995-03-15"],
    &["1993-07-01"],
    &["ASIA", "1994-01-01"],
    &["1994-01-01", "0.06", "24"],
    &["FRANCE", "GERMANY"],
    &["BRAZIL", "AMERICA", "ECONOMY ANODIZED STEEL"],
    &["green"],
    &["1993-10-01"],
    &["GERMANY", "0.0001"],
    &["MAIL", "SHIP", "1994-01-01"],
    &["special", "requests"],
    &["1995-09-01"],
    &["1996-01-01"],
    &["Brand#45", "MEDIUM POLISHED", "49", "14", "23", "45", "19", "3", "36", "9"],
    &["Brand#23", "MED BOX"],
    &["300"],
    &["Brand#12", "Brand#23", "Brand#34", "1", "10", "20"],
    &["forest", "1994-01-01", "CANADA"],
    &["SAUDI ARABIA"],
    &["13", "31", "23", "29", "30", "18", "17"],
];

/// The rows that a query returns at most.
fn limit(number: usize) -> Option<u32> {
    match number {
        2 | 18 | 21 => Some(100),
        3 => Some(10),
        10 => Some(20),
        _ => None,
    }
}

/// All queries in order.
pub fn all(scale: Scale) -> Vec<Query> {
    (1..=COUNT).map(|number| query(number, scale)).collect()
}

fn query(number: usize, scale: Scale) -> Query {
    let text = tpchgen::q_and_a::queries::query(number as i32).expect("1 to 22");
    let mut text = text
        .replace(" day (3)", " day")
        .replace(":s", "0")
        .replace("count(o_orderkey)", "count(o_orderkey) as c_count")
        .replace("as c_orders (c_custkey, c_count)", "as c_orders");
    // The greatest number first: ":1" is the beginning of ":10".
    for (at, value) in PARAMETERS[number - 1].iter().enumerate().rev() {
        let value = match (number, *value) {
            (11, "0.0001") => format!("{:.10}", 0.0001 / scale.factor()),
            (_, value) => value.to_string(),
        };
        text = text.replace(&format!(":{}", at + 1), &value);
    }
    let statements: Vec<String> = text
        .split(';')
        .map(|statement| statement.trim().to_string())
        .filter(|statement| !statement.is_empty())
        .collect();
    let is_query = |statement: &String| statement.to_ascii_lowercase().starts_with("select");
    let measured = statements.iter().position(is_query).expect("each has a SELECT");
    let mut statement = statements[measured].clone();
    if let Some(rows) = limit(number) {
        statement += &format!("\nlimit {rows}");
    }
    Query {
        number,
        before: statements[..measured].to_vec(),
        statement,
        after: statements[measured + 1..].to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_parameter_is_left_open() {
        for query in all(Scale::ONE) {
            let all = [query.before.clone(), vec![query.statement.clone()], query.after.clone()];
            for statement in all.concat() {
                let open = statement
                    .split(':')
                    .skip(1)
                    .any(|rest| rest.starts_with(|next: char| next.is_ascii_alphanumeric()));
                assert!(!open, "{}: {statement}", query.number);
                assert!(!statement.contains(';'), "{}: {statement}", query.number);
            }
        }
    }

    #[test]
    fn only_query_15_has_a_view() {
        let queries = all(Scale::ONE);
        let with_view: Vec<usize> = queries
            .iter()
            .filter(|query| !query.before.is_empty() || !query.after.is_empty())
            .map(|query| query.number)
            .collect();
        assert_eq!(with_view, [15]);
        assert!(queries[14].before[0].starts_with("create view revenue0"));
        assert_eq!(queries[14].after, ["drop view revenue0"]);
    }

    #[test]
    fn a_larger_scale_makes_the_share_of_query_11_smaller() {
        let share = |thousandths| all(Scale { thousandths })[10].statement.clone();
        assert!(share(1000).contains("* 0.0001000000"));
        assert!(share(10_000).contains("* 0.0000100000"));
    }
}
