//! A TPC-C load, written from the TPC-C specification (revision 5.11): a wholesale supplier with
//! warehouses, districts, customers and orders.
//!
//! | module | clause of the specification |
//! |---|---|
//! | [`schema`] | 1.3, the nine tables |
//! | [`random`] | 2.1.6 and 4.3.2, non-uniform numbers, names and strings |
//! | [`population`] | 4.3.3, the initial rows |
//! | [`transactions`] | 2.4–2.8, the five transactions |
//! | [`load`] | 5.2, terminals that run the mix |
//! | [`consistency`] | 3.3.2, the conditions 1–12 |
//!
//! It is a test of correctness under contention, no benchmark: there are no keying and think times,
//! the scale may be far below a real warehouse's, and nothing here may be called a TPC-C result.

pub mod consistency;
pub mod load;
pub mod population;
pub mod random;
pub mod schema;
pub mod transactions;

pub use load::{Load, LoadOptions, Report};

/// How many rows there are. The specification fixes all but the warehouses; smaller figures load
/// faster.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    pub warehouses: u32,
    /// Districts of each warehouse.
    pub districts: u32,
    /// Customers of each district, and as many initial orders.
    pub customers: u32,
    /// Items, each in stock at every warehouse.
    pub items: u32,
}

impl Scale {
    /// As specified.
    pub fn full(warehouses: u32) -> Scale {
        Scale { warehouses, districts: 10, customers: 3000, items: 100_000 }
    }

    /// Small enough to load in a second or two.
    pub fn small(warehouses: u32) -> Scale {
        Scale { warehouses, districts: 10, customers: 60, items: 500 }
    }

    /// The initial orders of a district that have been delivered: 2100 of 3000.
    pub fn delivered_orders(&self) -> u32 {
        self.customers * 7 / 10
    }

    /// The distinct last names of a district's customers.
    pub fn last_names(&self) -> u32 {
        self.customers.min(1000)
    }
}
