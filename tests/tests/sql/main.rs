//! SQL statements and what they answer: rows, errors, plans, tables of information.

mod basic_sql;
mod collations;
mod compatibility;
mod differential_engines;
mod handler_stats;
mod information_schema;
mod moved_rows;
mod named_paths;
mod performance_schema;
mod plans;
mod range_ends;
mod refused_rows;
mod row_counts;
mod row_ids;
mod sql_reference;
mod statements;
mod status_counters;
