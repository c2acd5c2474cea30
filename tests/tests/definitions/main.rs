//! Statements that change definitions: ALTER TABLE, foreign keys, partitions, many tables.

mod alter_beside_writers;
mod alter_copy;
mod alter_in_place;
mod alter_partitions;
mod alter_versioned_partitions;
mod dropped_in_use;
mod foreign_key_edges;
mod foreign_key_parents;
mod foreign_keys;
mod instant_columns;
mod instant_columns_histories;
mod many_tables;
