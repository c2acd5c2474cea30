//! The tables, queries and answers of TPC-H, revision 3: a wholesale supplier's reports.
//!
//! | module | what it has |
//! |---|---|
//! | [`schema`] | the eight tables, and their rows |
//! | [`queries`] | the 22 queries with the parameters of their validation, in MySQL's SQL |
//! | [`answers`] | what they return at scale factor 1, and whether an engine returned it |
//!
//! Rows, query texts and answers come from the crate `tpchgen`, whose rows are those of TPC's own
//! program. There are no refresh functions and no streams of several clients, so nothing here may
//! be called a TPC-H result.

pub mod answers;
pub mod queries;
pub mod schema;

/// The database that the tables are in.
pub const DATABASE: &str = "tpch";

/// How much data there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Thousandths of scale factor 1, which has 6 million order lines.
    pub thousandths: u32,
}

impl Scale {
    /// Scale factor 1: the only one whose answers are published.
    pub const ONE: Scale = Scale { thousandths: 1000 };

    /// The number that the specification calls SF.
    pub fn factor(self) -> f64 {
        f64::from(self.thousandths) / 1000.0
    }

    /// Bytes of the tables with their indexes, in pages of 16 KiB without compression, roughly.
    pub fn size_bytes(self) -> u64 {
        u64::from(self.thousandths) * (2 << 20)
    }
}
